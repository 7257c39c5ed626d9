"""The golden dataset of changes is read forever: deletions, a restore, a tag, a compaction."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import shardio
from shardio.errors import CommitConflictError
from tests.golden.lifecycle.make import EXPECTED, HERE


def test_what_was_written_once_is_read():
    """P19: what was written stays readable."""
    url = HERE / "birds"
    for number, records in EXPECTED.items():
        assert list(shardio.open(url, version=int(number))) == records
        assert shardio.verify(url, version=int(number)).ok
    assert shardio.tags(url) == {"v1": 2}
    assert list(shardio.open(url, version="v1")) == EXPECTED["2"]
    versions = shardio.log(url)[::-1]
    assert [version.manifest.restored_version for version in versions] == [0, 0, 0, 1, 0, 3, 0]
    assert [version.manifest.rolled_back for version in versions[3:5]] == [("day-two",)] * 2
    assert [(len(each.old), len(each.new)) for each in versions[-1].manifest.rewrites] == [(2, 1)]


def test_life_goes_on(tmp_path):
    url = Path(shutil.copytree(HERE / "birds", tmp_path / "birds"))
    shardio.restore(url, 1)
    with (
        pytest.raises(CommitConflictError),
        shardio.DatasetWriter(url, mode="append", session="day-two") as out,
    ):
        out.write(b"bird 6")
    shardio.restore(url, 7)
    report = shardio.erase(url, [0], drop_tags=True)
    assert report.expired_versions == tuple(range(1, 10))
    shardio.gc(url, dry_run=False)
    assert list(shardio.open(url)) == EXPECTED["7"][1:]
