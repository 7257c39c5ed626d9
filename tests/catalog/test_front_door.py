"""What users ask the catalog for, through the functions that they call."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardio
from shardio.errors import CommitConflictError, FormatError, NotFoundError
from tests.promises.places import PLACES, fresh
from tests.suites.errors import refused


def write(url: str, *records: bytes, mode: str = "overwrite", **options) -> None:
    with shardio.DatasetWriter(url, mode=mode, **options) as out:
        out.write_many(records)


def test_damage_of_a_version_is_told_although_another_expired(tmp_path):
    """Only a version that is gone itself is looked up again."""
    url = str(tmp_path / "ds")
    for record in (b"wren", b"robin", b"hawk"):
        write(url, record)
    (ref,) = shardio.log(url)[1].manifest.lists
    shardio.gc(url, expire=[1], dry_run=False)
    (tmp_path / "ds" / ref.key).write_bytes(b"")
    with pytest.raises(FormatError):
        shardio.open(url, version=2)


def test_versions_tell_their_metadata(tmp_path):
    write(str(tmp_path / "ds"), b"wren", metadata={"made of": "birds"})
    (version,) = shardio.log(tmp_path / "ds")
    assert dict(version.metadata) == {"made of": "birds"}


@pytest.mark.parametrize(("records", "kept"), [([], {"shuffled": True}), ([b"robin"], {})])
def test_new_records_end_what_was_said_of_the_order(tmp_path, records, kept):
    write(str(tmp_path / "ds"), b"wren", metadata={"shuffled": True})
    write(str(tmp_path / "ds"), *records, mode="append")
    assert dict(shardio.log(tmp_path / "ds")[0].metadata) == kept


def test_an_overwrite_says_which_version_came_in_between(tmp_path):
    url = str(tmp_path / "ds")
    write(url, b"wren")
    out = shardio.DatasetWriter(url, mode="overwrite")
    out.write(b"robin")
    write(url, b"finch", mode="append")
    with pytest.raises(CommitConflictError) as caught:
        out.close()
    assert (caught.value.expected, caught.value.found) == ("version 1 to be the latest", "version 2")
    assert list(shardio.open(url)) == [b"wren", b"finch"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("below", ["inner", "deep/er/inner"])
def test_datasets_are_not_nested(place, below, tmp_path):
    url = fresh(place, tmp_path)
    write(url, b"wren")
    with refused(CommitConflictError, url, url=f"{url}/{below}"):
        write(f"{url}/{below}", b"robin")
    assert list(shardio.open(url)) == [b"wren"]
    with pytest.raises(NotFoundError):
        shardio.open(f"{url}/{below}")


def test_a_dataset_behind_a_link_is_not_nested_either(tmp_path):
    write(str(tmp_path / "ds"), b"wren")
    (tmp_path / "ds" / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "ds" / "folder")
    with refused(CommitConflictError, str(tmp_path / "ds")):
        write(str(tmp_path / "link" / "inner"), b"robin")


@pytest.mark.parametrize(
    ("files", "command"),
    [(["a.tfrecord"], "adopt"), (["a.parquet"], "convert"), (["a.tfrecord", "a.tfrecord.shardidx"], None)],
)
def test_a_folder_without_a_dataset_says_what_makes_one(tmp_path: Path, files, command):
    for name in files:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(NotFoundError) as caught:
        shardio.open(tmp_path)
    assert caught.value.url == str(tmp_path)
    if command:
        assert f"`shardio {command} {tmp_path}" in str(caught.value.advice)
    else:
        assert caught.value.found is None
