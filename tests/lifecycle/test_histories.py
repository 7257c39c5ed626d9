"""Whatever is done to a dataset, in any order, readers see what a model of dicts says."""

from __future__ import annotations

import pytest

from tests.lifecycle.histories import ENCODINGS, STEPS, STEPS_OF_SEQUENCES, History
from tests.promises.places import fresh

pytestmark = pytest.mark.filterwarnings("ignore:.*(records are read|are in no index|shards)")


FIRST = (
    "append",
    "keys",
    "table",
    "rename",
    "default",
    "convert",
    "join",
    "keys",
    "delete",
    "compact",
    "drop",
    "restore",
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_history(tmp_path, encoding) -> None:
    history = History(tmp_path, 7, encoding)
    history.run(10, *(step for step in FIRST if not history.nested or step in STEPS_OF_SEQUENCES))
    assert history.nested or history.took["find_all"]


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(12))
def test_histories(tmp_path, seed) -> None:
    history = History(tmp_path, 1000 + seed, ENCODINGS[seed % 3])
    history.run(60)
    assert len(history.took) > len(set(STEPS_OF_SEQUENCES if history.nested else STEPS)) // 2


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_histories_on_s3(tmp_path, encoding) -> None:
    history = History(tmp_path, 2000, encoding, fresh("s3", tmp_path))
    history.run(8, *(step for step in FIRST if not history.nested or step in STEPS_OF_SEQUENCES), "collect")
    assert history.nested or history.took["find_all"]
