"""A write or a change commits only onto the history that it began with."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import shardio
from shardio.errors import CommitConflictError


def make(url: Path, first: int, versions: int = 1) -> None:
    for version in range(versions):
        with shardio.DatasetWriter(url, schema={"n": "int64"}, mode="append" if version else "create") as out:
            for n in range(first, first + 5):
                out.write({"n": n})


def replace(url: Path, versions: int) -> None:
    other = url.with_name("other")
    make(other, 500, versions)
    shutil.rmtree(url / "_shardio")
    shutil.copytree(other, url, dirs_exist_ok=True)


def remove(url: Path) -> None:
    shutil.rmtree(url / "_shardio")


def replace_with_another(url: Path) -> None:
    replace(url, versions=2)


def replace_with_longer(url: Path) -> None:
    replace(url, versions=4)


def restore_older_copy(url: Path) -> None:
    (url / "_shardio" / "manifests" / f"{2:020d}.manifest").unlink()
    (url / "_shardio" / "latest").unlink(missing_ok=True)


MEANWHILE = [remove, replace_with_another, replace_with_longer, restore_older_copy]


def numbers(url: Path) -> list[int]:
    return sorted(int(record["n"]) for record in shardio.open(url))


@pytest.fixture
def url(tmp_path: Path) -> Path:
    make(tmp_path / "d", 0, versions=2)
    return tmp_path / "d"


def refused(url: Path, meanwhile: Callable[[Path], None], commit: Callable[[], object]) -> None:
    with pytest.raises((CommitConflictError, shardio.errors.NotFoundError)):
        commit()
    if meanwhile is remove:
        assert not list(url.glob("_shardio/manifests/*"))
    else:
        assert 1000 not in numbers(url)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_a_writer_commits_onto_no_other_dataset(url, meanwhile, mode) -> None:
    out = shardio.DatasetWriter(url, schema={"n": "int64"}, mode=mode)
    out.write({"n": 1000})
    meanwhile(url)
    refused(url, meanwhile, out.close)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_a_session_commits_onto_no_other_dataset(url, meanwhile, mode) -> None:
    out = shardio.DatasetWriter(url, schema={"n": "int64"}, mode=mode, session="run", commit=False)
    out.write({"n": 1000})
    meanwhile(url)
    out.close()
    refused(url, meanwhile, lambda: shardio.commit(url, session="run", tasks=1))


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_an_adoption_commits_onto_no_other_dataset(url, meanwhile, tmp_path) -> None:
    shard = tmp_path / "x.tfrecord"
    with shardio.ShardWriter(shard) as out:
        out.write(shardio.codecs.encode_example({"n": 1000}))

    def adopt_late(_progress: object) -> None:
        nonlocal done
        if not done:
            done = True
            meanwhile(url)

    done = False
    refused(url, meanwhile, lambda: shardio.adopt(shard, into=url, progress=adopt_late))
    assert done


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_a_change_commits_onto_no_other_dataset(url, meanwhile) -> None:
    def late(_progress: object) -> None:
        nonlocal done
        if not done:
            done = True
            meanwhile(url)

    done = False
    with pytest.raises(shardio.errors.ShardioError):
        shardio.compact(url, workers=1, progress=late)
    assert done
    if meanwhile is not remove:
        assert "compact" not in {each.operation for each in shardio.log(url)}


def test_an_append_that_lost_a_race_is_still_committed(url) -> None:
    first = shardio.DatasetWriter(url, schema={"n": "int64"}, mode="append")
    first.write({"n": 1000})
    make_more = shardio.DatasetWriter(url, schema={"n": "int64"}, mode="append")
    make_more.write({"n": 1001})
    make_more.close()
    first.close()
    assert {1000, 1001} <= set(numbers(url))
