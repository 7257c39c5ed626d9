"""A global shuffle at write time: one permutation of all records, in bounded memory, resumable."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import shardio
from shardio.errors import CommitConflictError
from shardio.order import Permutation
from shardio.parallel import _shuffle
from tests.parallel import jobs
from tests.suites.datasets import numbers
from tests.suites.errors import refused

WRITE = functools.partial(shardio.write_dataset, schema=jobs.SCHEMA)


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.mark.parametrize("tasks", [1, 5, 32])
def test_the_order_hangs_on_the_seed_alone(tmp_path, threads, tasks, monkeypatch) -> None:
    """Any seed gives one permutation of all records of a split, whatever the number of tasks."""
    monkeypatch.setattr(_shuffle, "_LOOKUP_RECORDS", 64)
    url = tmp_path / "ds"
    report = WRITE(
        url,
        range(500),
        jobs.two_splits,
        shuffle=True,
        seed=3,
        executor=threads,
        tasks=tasks,
        spool_dir=tmp_path,
    )
    assert numbers(url) == Permutation(500, 3)[range(500)].tolist()
    assert numbers(url, "test") == [10 * k for k in Permutation(50, 3)[range(50)].tolist()]
    assert numbers(url) != list(range(500))
    assert report.records == {"train": 500, "test": 50}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds"], "the spool is gone"


def test_lookups_are_bounded_in_bytes(tmp_path, threads, monkeypatch) -> None:
    """Memory stays bounded where records are large."""
    monkeypatch.setattr(_shuffle, "_LOOKUP_BYTES", 100_000)
    most = 0
    runs = _shuffle._runs

    def watched(spool):
        nonlocal most
        for split, start, stop in runs(spool):
            most = max(most, stop - start)
            yield split, start, stop

    monkeypatch.setattr(_shuffle, "_runs", watched)
    url = tmp_path / "ds"
    shardio.write_dataset(
        url, range(30), jobs.picture, shuffle=True, seed=1, executor=threads, spool_dir=tmp_path
    )
    assert most == 4
    assert sorted(int(value[:8]) for value in shardio.open(url)) == list(range(30))


def test_items_that_fail_are_left_out_of_the_shuffle(tmp_path, threads) -> None:
    url = tmp_path / "ds"
    report = WRITE(
        url, range(100), jobs.misfit_at_77, shuffle=True, seed=1, on_error="skip", executor=threads
    )
    assert [bad.item for bad in report.skipped] == [77]
    assert sorted(numbers(url)) == [n for n in range(100) if n != 77]


def test_an_append_takes_the_schema_of_the_dataset(tmp_path, threads) -> None:
    url = tmp_path / "ds"
    WRITE(url, range(5), jobs.number, executor=threads)
    shardio.write_dataset(
        url, range(5, 10), jobs.number, shuffle=True, seed=1, mode="append", executor=threads
    )
    assert numbers(url)[:5] == list(range(5))
    assert sorted(numbers(url)) == list(range(10))


def test_nothing_to_shuffle(tmp_path, threads) -> None:
    assert WRITE(tmp_path / "ds", [], jobs.number, shuffle=True, seed=1, executor=threads).records == {}


def test_a_rerun_finds_the_first_pass_done(tmp_path, threads, monkeypatch) -> None:
    """A killed driver continues where it was, in the second pass too."""
    url, spool = tmp_path / "ds", tmp_path / "spool"
    items = [(n, str(tmp_path / "log")) for n in range(50)]
    (tmp_path / "log").mkdir()

    def fail(self, run):
        raise OSError("the spool's disk is gone")

    options = {"shuffle": True, "seed": 2, "session": "s", "executor": threads, "spool_dir": spool}
    spool.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(_shuffle._Spooled, "__call__", fail)
        with refused(OSError, "disk is gone"):
            WRITE(url, items, jobs.log_task, **options)
    first = len(list((tmp_path / "log").iterdir()))
    assert first == 50
    assert len(list(spool.iterdir())) == 1
    report = WRITE(url, items, jobs.log_task, **options)
    assert len(list((tmp_path / "log").iterdir())) == first, "no item is worked on again"
    assert numbers(url) == Permutation(50, 2)[range(50)].tolist()
    assert list(Path(spool).iterdir()) == []
    again = WRITE(url, items, jobs.log_task, **options)
    assert (again.version, again.reused) == (report.version, report.tasks)
    assert len(list((tmp_path / "log").iterdir())) == first


def rows_of(url, split="train") -> list[int]:
    return shardio.open(str(url), split).source.table.live_rows.tolist()


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", [list, iter])
def test_records_into_a_number_of_shards(tmp_path, threads, shuffle, kind, monkeypatch) -> None:
    """As equal as can be, of every split, in the order that the write has without it."""
    monkeypatch.setattr(_shuffle, "_LOOKUP_RECORDS", 64)
    url = tmp_path / "ds"
    items = kind(range(503))
    options = {"shuffle": shuffle, "seed": 3, "executor": threads, "spool_dir": tmp_path}
    WRITE(url, items, jobs.two_splits, shards=5, **options)
    order = Permutation(503, 3)[range(503)].tolist() if shuffle else range(503)
    assert numbers(url) == list(order)
    assert rows_of(url) == [100, 101, 100, 101, 101]
    assert rows_of(url, "test") == [10, 10, 10, 10, 11]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds"], "the spool is gone"


def test_fewer_records_than_shards(tmp_path, threads) -> None:
    url = tmp_path / "ds"
    WRITE(url, range(3), jobs.two_splits, shards=5, executor=threads, spool_dir=tmp_path)
    assert rows_of(url) == [1, 1, 1]
    assert numbers(url) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"shards": 0}, "between 1 and"),
        ({"shards": 2, "tasks": 3}, "leave tasks=3 out"),
        ({"shards": 2, "shard_bytes": 1000}, "give one of them"),
    ],
)
def test_a_number_of_shards_that_cannot_be_kept_is_refused(tmp_path, threads, options, error) -> None:
    with pytest.raises(ValueError, match=error):
        WRITE(tmp_path / "ds", range(10), jobs.two_splits, executor=threads, **options)
    assert not (tmp_path / "ds").exists()


@pytest.mark.parametrize("fractions", [None, {"train": 0.5, "test": 0.5}])
def test_a_conversion_into_a_number_of_shards(tmp_path, fractions) -> None:
    source = tmp_path / "source.jsonl"
    source.write_text("".join(f'{{"n": {n}}}\n' for n in range(50)), encoding="utf-8")
    report = shardio.convert_dataset(source, tmp_path / "ds", split=fractions, shards=4)
    for name, records in report.records.items():
        rows = rows_of(tmp_path / "ds", name)
        assert (len(rows), sum(rows)) == (4, records)
        assert max(rows) - min(rows) <= 1
        found = numbers(tmp_path / "ds", name)
        assert found == sorted(found)


@pytest.mark.parametrize("how", [{"shuffle": True, "seed": 1}, {"shards": 3}])
@pytest.mark.parametrize("kind", [list, iter])
def test_a_session_in_two_passes_is_of_its_items(tmp_path, how, kind) -> None:
    """Committed, it is the answer to a rerun with the same items, and to no other."""
    options = {**how, "session": "s", "workers": 1, "spool_dir": tmp_path}
    report = WRITE(tmp_path / "ds", kind(range(20)), jobs.number, **options)
    again = WRITE(tmp_path / "ds", kind(range(20)), jobs.number, **options)
    assert (again.version, again.records) == (report.version, {"train": 20})
    seed = {"seed": 2} if "seed" in how else {"shards": 4}
    for items, other in ((range(1, 21), {}), (range(21), {}), (range(20), seed)):
        with pytest.raises(CommitConflictError):
            WRITE(tmp_path / "ds", kind(items), jobs.number, **options | other)


def test_another_seed_does_not_continue_a_shuffle(tmp_path) -> None:
    """Tasks that had ended hold other records than the same ones of the other order."""
    options = {"shuffle": True, "tasks": 4, "session": "s", "workers": 1, "spool_dir": tmp_path}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_shuffle, "_LOOKUP_RECORDS", 5)
        read = _shuffle._Spooled._read

        def fail(self, split, start, stop):
            if start >= 10:
                raise OSError("gone")
            return read(self, split, start, stop)

        with pytest.MonkeyPatch.context() as failing:
            failing.setattr(_shuffle._Spooled, "_read", fail)
            with refused(OSError, "gone"):
                WRITE(tmp_path / "ds", range(20), jobs.number, seed=1, **options)
        with pytest.raises(CommitConflictError):
            WRITE(tmp_path / "ds", range(20), jobs.number, seed=2, **options)
        report = WRITE(tmp_path / "ds", range(20), jobs.number, seed=1, **options)
    assert report.reused == 2
    assert numbers(tmp_path / "ds") == Permutation(20, 1)[range(20)].tolist()


def test_a_spool_is_of_one_dataset_and_one_schema(tmp_path) -> None:
    """Sessions of two datasets may have one id, and the same items."""
    options = {"shuffle": True, "session": "s", "workers": 1, "spool_dir": tmp_path}
    with pytest.MonkeyPatch.context() as patch:

        def fail(self, run):
            raise OSError("gone")

        patch.setattr(_shuffle._Spooled, "__call__", fail)
        with refused(OSError, "gone"):
            WRITE(tmp_path / "one", range(20), jobs.number, **options)
    WRITE(tmp_path / "two", range(20), lambda n: {"n": -n}, **options)
    assert sorted(numbers(tmp_path / "two")) == list(range(-19, 1))
    shardio.write_dataset(tmp_path / "one", range(20), jobs.number, schema={"n": "float32"}, **options)
    assert sorted(numbers(tmp_path / "one")) == list(range(20))
