"""The list of sabotages is not stale, and some of them are tried in every run."""

from __future__ import annotations

import pytest

from tests.promises.sabotage import LIST, caught, copy, problem


@pytest.mark.parametrize(
    "sabotage", LIST, ids=[f"{number}-{each.promise}" for number, each in enumerate(LIST, 1)]
)
def test_the_list_is_not_stale(sabotage):
    assert problem(sabotage) is None


@pytest.mark.slow
@pytest.mark.timeout(900)  # a dozen runs of pytest, one after another
def test_some_sabotages_are_caught(tmp_path, long):
    """All of them with `--hypothesis-profile=long`, or by `python tests/promises/sabotage.py`."""
    root = copy(tmp_path / "copy")
    quick = [
        sabotage for sabotage in LIST if long or sabotage.test.startswith("tests/metadata/test_sealed.py::")
    ]
    quick += [sabotage for sabotage in LIST if sabotage.file == "indexer/_tar.py" and sabotage not in quick]
    assert len(quick) >= 4
    assert [sabotage for sabotage in quick if not caught(sabotage, root)] == []
