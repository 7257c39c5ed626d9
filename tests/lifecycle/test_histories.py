"""Whatever is done to a dataset, in any order, readers see what a model of dicts says."""

from __future__ import annotations

import pytest

from tests.lifecycle.histories import STEPS, History

pytestmark = pytest.mark.filterwarnings("ignore:.*(records are read|are in no index|shards)")


FIRST = (
    "append",
    "keys",
    "table",
    "rename",
    "default",
    "convert",
    "keys",
    "delete",
    "compact",
    "drop",
    "restore",
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("encoding", ["example", "tensors"])
def test_a_history(tmp_path, encoding) -> None:
    history = History(tmp_path, 7, encoding)
    history.run(10, *FIRST)
    assert history.took["find_all"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_histories(tmp_path, seed) -> None:
    history = History(tmp_path, 1000 + seed, ["example", "tensors"][seed % 2])
    history.run(60)
    assert len(history.took) > len(set(STEPS)) // 2
