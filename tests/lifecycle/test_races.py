"""Changes that race: what expires meanwhile is not damage, and what was acknowledged is there once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import shardio
from shardio.catalog import Catalog
from shardio.cli import main
from shardio.errors import CommitConflictError, FormatError, NotFoundError, SchemaError, StorageError
from tests.lifecycle.races import race
from tests.servers import s3 as servers_s3
from tests.suites.errors import refused

SCHEMA = {"n": "int64"}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["local", "s3"])
def test_processes_that_change_one_dataset_at_random(place, tmp_path) -> None:
    if place == "local":
        check_race(str(tmp_path / "ds"), None, seed=1, steps=20)
        return
    with servers_s3.moto() as endpoint:
        url = f"s3://{servers_s3.make_bucket(endpoint)}/race"
        check_race(url, servers_s3.options_for(endpoint), seed=2, steps=8)


def check_race(url: str, options: Any, *, seed: int, steps: int) -> None:
    """Nothing is lost or doubled, and what is refused is a conflict that says what to do."""
    raced = race(url, options, seed, steps)
    assert raced.failed == []
    assert raced.did["append"]
    assert all(error.advice for _, error in raced.refused)
    found = sorted(int(value["n"]) for value in shardio.open(url, storage_options=options))
    assert found == raced.expected
    assert shardio.verify(shardio.Address(url, storage_options=options)).ok


class Meddler:
    """Another process: it commits and collects whenever the latest version has been looked up.

    Args:
        url: of the dataset.
        monkeypatch: of the test.
        times: how often it does so.
        keep: how many versions it keeps.
        change: what it commits, called with a number each time; lists of shards are written again by it.
    """

    def __init__(
        self,
        url: str,
        monkeypatch: Any,
        times: int,
        keep: int = 1,
        change: Callable[[str, int], object] = lambda url, number: append(url, 1000 + number),
    ) -> None:
        self.left = times
        latest = Catalog.latest

        def meddled(catalog: Catalog) -> Any:
            found = latest(catalog)
            if found is not None and self.left > 0:
                left, self.left = self.left - 1, 0  # what it does itself is left alone
                change(url, left)
                shardio.gc(url, keep=keep, dry_run=False)
                self.left = left
            return found

        monkeypatch.setattr(Catalog, "latest", meddled)


def append(url: str, *numbers: int) -> None:
    with shardio.DatasetWriter(url, SCHEMA, mode="append", block_bytes=64) as out:
        for n in numbers:
            out.write({"n": n})


@pytest.fixture
def url(tmp_path) -> str:
    url = str(tmp_path / "ds")
    for first in range(0, 12, 4):
        append(url, *range(first, first + 4))
    shardio.delete(url, [1])
    return url


def numbers(url: str) -> list[int]:
    return sorted(int(value["n"]) for value in shardio.open(url))


def value_of(number: int) -> list[dict[str, int]]:
    return [{"n": number}]


def in_parts(url: str, *numbers: int) -> None:
    for task, number in enumerate(numbers):
        part: dict[str, Any] = {"session": "parts", "task": task, "commit": False, "mode": "append"}
        with shardio.DatasetWriter(url, SCHEMA, **part) as out:
            out.write({"n": number})
    shardio.commit(url, session="parts", tasks=len(numbers))


FIVE: dict[str, Any] = {"where": lambda columns: columns["n"] == 5, "features": ["n"]}
OLD = [0, *range(2, 12)]
CALLS: dict[str, tuple[Callable[[str], Any], list[int]]] = {
    "open": (lambda url: list(shardio.open(url)), OLD),
    "append": (lambda url: append(url, 50), [*OLD, 50]),
    "delete": (lambda url: shardio.delete(url, **FIVE), [n for n in OLD if n != 5]),
    "delete, dry run": (lambda url: shardio.delete(url, **FIVE, dry_run=True), OLD),
    "erase": (lambda url: shardio.erase(url, **FIVE), [n for n in OLD if n != 5]),
    "compact": (lambda url: shardio.compact(url, workers=1), OLD),
    "table": (lambda url: shardio.build_table(url, ["n"], workers=1), OLD),
    "keys": (lambda url: shardio.build_keys(url, "n", workers=1), OLD),
    "gc": (lambda url: shardio.gc(url, keep=1, dry_run=False), OLD),
    "tag": (lambda url: shardio.tag(url, "new"), OLD),
    "restore": (lambda url: (shardio.tag(url, "new"), shardio.restore(url, "new")), OLD),
    "rename split": (lambda url: shardio.rename_split(url, "train", "all-of-them"), OLD),
    "set schema": (lambda url: shardio.set_schema(url, {"n": shardio.Feature("int64", default=1)}), OLD),
    "verify": (lambda url: shardio.verify(url).to_dict()["ok"] or pytest.fail("damage"), OLD),
    "info": (lambda url: main(["info", url]) == 0 or pytest.fail("an error"), OLD),
    "log": (shardio.log, OLD),
    "append in parallel": (
        lambda url: shardio.write_dataset(url, [50], value_of, schema=SCHEMA, mode="append", workers=1),
        [*OLD, 50],
    ),
    "append in parts": (lambda url: in_parts(url, 50, 51), [*OLD, 50, 51]),
    "export": (lambda url: shardio.export_dataset(url, url + "-out", kind="jsonl"), OLD),
    "repair": (shardio.repair, OLD),
}


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:records are read")
@pytest.mark.parametrize("name", CALLS)
def test_what_expires_while_it_is_looked_at_is_looked_up_again(name, url, monkeypatch) -> None:
    call, expected = CALLS[name]
    with monkeypatch.context() as patch:
        Meddler(url, patch, times=3)
        call(url)
    assert [n for n in numbers(url) if n < 1000] == expected


def test_tasks_begun_before_and_after_another_process_changes_the_schema(url) -> None:
    part: dict[str, Any] = {"session": "parts", "commit": False, "mode": "append"}
    for task, default in enumerate((7, 8)):
        with shardio.DatasetWriter(url, **part, task=task) as out:
            out.write({"n": 50 + task})
        shardio.set_schema(url, {"n": shardio.Feature("int64", default=default)})
    shardio.commit(url, session="parts", tasks=2)
    assert numbers(url) == [*OLD, 50, 51]
    assert shardio.open(url).features["n"].default == 8
    # What two processes changed in two ways is told.
    part["session"] = "again"
    for task, extra in enumerate(("int64", "text")):
        kind = {"n": shardio.Feature("int64", default=8), "extra": shardio.Feature(extra, optional=True)}
        with shardio.DatasetWriter(url, schema=kind, **part, task=task) as out:
            out.write({"n": 60 + task})
        append(url, 70 + task)
    with pytest.raises(SchemaError):
        shardio.commit(url, session="again", tasks=2)


def test_a_reader_whose_version_expires_is_told(url) -> None:
    """Never that something is damaged; also where damage is to be skipped."""
    shardio.build_table(url, ["n"], workers=1)
    shardio.build_keys(url, "n", workers=1)
    readers = [
        shardio.open(url, mmap=False, on_error=on_error) for on_error in ("raise", "skip") for _ in range(5)
    ]
    shardio.compact(url, workers=1)
    shardio.gc(url, keep=1, dry_run=False)
    ways: list[Callable[[Any], Any]] = [
        list,
        lambda ds: ds[3],
        lambda ds: ds.find(3),
        lambda ds: ds.filter("n = 3"),
        lambda ds: list(shardio.stream(ds, global_batch=2, seed=1)),
    ]
    for way, ds in zip(ways * 2, readers, strict=True):
        with pytest.raises(NotFoundError, match=f"version {ds.version} expired while it was read"):
            way(ds)
    assert numbers(url) == OLD


def test_what_is_damaged_is_said_though_others_commit(url, tmp_path) -> None:
    for path in (tmp_path / "ds" / "_shardio" / "lists").iterdir():
        path.unlink()
    with pytest.raises(FormatError):
        shardio.open(url)
    with pytest.raises(FormatError):
        append(url, 50)


def test_versions_that_expire_without_end_end_in_advice_that_works(url, monkeypatch) -> None:
    def rename(url: str, number: int) -> None:
        (split,) = shardio.open(url).splits
        shardio.rename_split(url, split, f"split{number}")

    with monkeypatch.context() as patch:
        Meddler(url, patch, times=10**9, change=rename)
        with pytest.raises(StorageError) as caught:
            shardio.open(url)
    assert "`shardio gc --keep 10`" in str(caught.value.advice)
    with monkeypatch.context() as patch:
        Meddler(url, patch, times=10**9, keep=10, change=rename)
        assert len(shardio.open(url)) == len(OLD)


def test_a_change_is_refused_where_its_shards_are_gone(url) -> None:
    ds = shardio.open(url)
    shardio.compact(url, workers=1)
    shardio.gc(url, keep=1, dry_run=False)
    with pytest.raises(NotFoundError, match=f"version {ds.version} expired"):
        shardio.delete(url, [0], version=ds.version)
    with refused(CommitConflictError, "mode="):
        shardio.DatasetWriter(url, SCHEMA, mode="create").close()
