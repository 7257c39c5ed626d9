"""`write_dataset`: what goes in comes out, in order, once; what fails is named and publishes nothing."""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import shardio
from shardio.errors import (
    CommitConflictError,
    CommitOutcomeUnknownError,
    NotFoundError,
    SchemaError,
    StorageError,
)
from shardio.storage import LocalStore, UnknownOutcomeError
from tests.parallel import jobs
from tests.suites.datasets import numbers
from tests.suites.errors import refused

WRITE = functools.partial(shardio.write_dataset, schema=jobs.SCHEMA)


@pytest.fixture
def url(tmp_path) -> str:
    return str(tmp_path / "ds")


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as executor:
        yield executor


def objects(url: str) -> list[str]:
    return sorted(path.name for path in Path(url).rglob("*") if path.is_file())


def test_a_process_pool_is_the_default(url) -> None:
    report = WRITE(url, range(500), jobs.two_splits)
    assert numbers(url, "train") == list(range(500))
    assert numbers(url, "test") == list(range(0, 500, 10))
    assert report.records == {"train": 500, "test": 50}
    assert (report.version, report.tasks, report.reused, report.skipped) == (1, 32, 0, [])
    assert shardio.open(url, "train").digest == report.digest
    assert not any("receipt" in name or report.session in name for name in objects(url + "/_shardio"))


@pytest.mark.parametrize("tasks", [1, 2, 7, 40])
def test_records_stand_in_the_order_of_their_items(url, threads, tasks) -> None:
    """Order of records is reproducible, whatever the number of tasks."""
    WRITE(url, range(100), jobs.number, executor=threads, tasks=tasks, ordered=True)
    assert numbers(url) == list(range(100))


def test_items_may_be_an_iterator(url, threads) -> None:
    report = WRITE(url, iter(range(600)), jobs.number, executor=threads)
    assert numbers(url) == list(range(600))
    assert report.tasks == 3


@pytest.mark.parametrize("items", [[], iter([])])
def test_no_items_make_an_empty_version(url, threads, items) -> None:
    report = WRITE(url, items, jobs.number, executor=threads)
    assert (report.version, report.records) == (1, {})


def test_without_a_schema_records_are_bytes(url, threads) -> None:
    shardio.write_dataset(url, ["a", "b"], str.encode, executor=threads)
    assert list(shardio.open(url)) == [b"a", b"b"]


def test_options_of_the_writer_are_passed_on(url, threads, tmp_path) -> None:
    spool = tmp_path / "spool"
    WRITE(
        url, range(50), jobs.number, executor=threads, tasks=2, compression="zstd", shard_bytes=200,
        block_bytes=64, metadata={"by": "a test"}, spool_dir=spool,
    )  # fmt: skip
    assert numbers(url) == list(range(50))
    assert shardio.open(url).metadata == {"by": "a test"}
    assert len(list(Path(url, "data").rglob("*.zst"))) > 2
    assert list(spool.iterdir()) == []


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (None, []),
        (b"one", [("train", b"one")]),
        (("val", b"one"), [("val", b"one")]),
        ([b"one", b"two"], [("train", b"one"), ("train", b"two")]),
        ([("a", b"one"), b"two", ("b", b"three")], [("a", b"one"), ("train", b"two"), ("b", b"three")]),
        ((value for value in [b"one"]), [("train", b"one")]),
        ([], []),
    ],
)
def test_what_a_function_may_return(url, threads, returned, expected) -> None:
    shardio.write_dataset(url, [0], lambda _: returned, executor=threads)
    found = [
        (split, value) for split in shardio.open(url, "all").splits for value in shardio.open(url, split)
    ]
    assert sorted(found) == sorted(expected)


def test_a_function_that_raises_is_named_with_its_item_and_publishes_nothing(url) -> None:
    """P4: a function that raises on one item: which item, what; nothing is visible."""
    with refused(RuntimeError, "boom") as caught:
        WRITE(url, range(100), jobs.boom_at_77)
    assert caught.value.__notes__ == ["shardio: at item 77, 77"]
    with pytest.raises(NotFoundError):
        shardio.open(url)
    assert objects(url) == [], "a write without a session cannot be continued"


def test_a_value_that_does_not_fit_is_named_with_its_item(url) -> None:
    with refused(SchemaError, "'n'") as caught:
        WRITE(url, range(100), jobs.misfit_at_77)
    assert caught.value.__notes__ == ["shardio: at item 77, 77"]


@pytest.mark.parametrize("function", [jobs.boom_at_77, jobs.misfit_at_77])
def test_skip_leaves_the_item_out_and_lists_it(url, threads, function) -> None:
    report = WRITE(url, range(100), function, on_error="skip", executor=threads)
    assert numbers(url) == [n for n in range(100) if n != 77]
    (bad,) = report.skipped
    assert (bad.item, bad.where) == (77, "item 77, 77")
    assert bad.reason.startswith("RuntimeError: boom" if function is jobs.boom_at_77 else "SchemaError: ")


def test_an_item_is_taken_whole_or_not_at_all(url, threads) -> None:
    report = WRITE(url, range(20), jobs.boom_half_way, on_error="skip", executor=threads)
    assert numbers(url) == [n for n in range(20) if n % 10 != 7 for _ in range(2)]
    assert [bad.item for bad in report.skipped] == [7, 17]


def test_more_failures_than_a_task_may_have_end_the_write(url, threads) -> None:
    def fail(item):
        raise ValueError(f"no {item}")

    with pytest.raises(ValueError, match=r"more than 1000 .*of item 1000 .*no 1000"):
        WRITE(url, range(2000), fail, on_error="skip", executor=threads, tasks=1)


def test_a_store_that_fails_is_not_the_items_fault(url, threads, monkeypatch) -> None:
    """A full disk, expired credentials: named, not skipped, nothing published."""

    def full(self, key, data, *, move):
        raise StorageError("the filesystem refused: No space left on device", url=key)

    monkeypatch.setattr(LocalStore, "_put_if_absent", full)
    with pytest.raises(StorageError):
        WRITE(url, range(10), jobs.number, on_error="skip", executor=threads)


def test_an_error_that_cannot_travel_arrives_in_words(url, monkeypatch) -> None:
    # Dask, which another test may have imported here, teaches all errors there are to travel.
    monkeypatch.delitem(copyreg.dispatch_table, jobs.PickyError, raising=False)
    with refused(RuntimeError, "PickyError", "404") as caught:
        WRITE(url, range(10), jobs.picky)
    assert caught.value.__notes__ == ["shardio: at item 5, 5"]


@pytest.mark.slow
def test_an_error_that_cannot_travel_arrives_where_pickle_sends_contexts(url) -> None:
    """As it does once Dask's package is imported, which is before the error's class is known here."""
    lines = """
    import distributed, shardio, sys
    from tests.parallel import jobs
    try:
        shardio.write_dataset(sys.argv[1], range(10), jobs.picky, schema=jobs.SCHEMA)
    except RuntimeError as error:
        print(error, error.__notes__)
    """
    command = [sys.executable, "-c", textwrap.dedent(lines), url]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout == "PickyError: 404: gone ['shardio: at item 5, 5']\n", done.stderr


def test_a_function_that_cannot_travel_is_refused_before_anything_starts(url) -> None:
    with pytest.raises(TypeError, match="cannot be sent to worker processes"):
        WRITE(url, [1], lambda item: {"n": item})
    assert not Path(url).exists()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"on_error": "ignore"}, ValueError, "on_error='ignore'"),
        ({"mode": "replace"}, ValueError, "mode='replace'"),
        ({"ordered": True, "shuffle": True}, ValueError, "one of them"),
        ({"tasks": 0}, ValueError, "tasks=0"),
        ({"task": 3}, TypeError, "task="),
        ({"commit": False}, TypeError, "commit="),
        ({"session": "no/slash"}, ValueError, "no/slash"),
        ({"shard_bytes": 0}, ValueError, "shard_bytes=0"),
        ({"colour": "red"}, TypeError, "colour"),
    ],
)
def test_options_that_make_no_sense_are_named(url, threads, options, error, words) -> None:
    with pytest.raises(error, match=words):
        WRITE(url, [1], jobs.number, executor=threads, **options)


def test_create_is_refused_before_any_work(url, threads) -> None:
    WRITE(url, [1], jobs.number, executor=threads)
    worked = []
    with pytest.raises(CommitConflictError):
        WRITE(url, [1], worked.append, executor=threads)
    assert worked == []


def test_a_rerun_runs_only_the_tasks_that_have_not_ended(url, tmp_path) -> None:
    """A killed or failed driver is rerun with the same session and continues."""
    items = [(n, str(tmp_path)) for n in range(100)]
    with ThreadPoolExecutor(1) as executor:
        with refused(RuntimeError, "boom"):
            WRITE(url, items, jobs.boom_at_77_of_traced, session="s", tasks=10, executor=executor)
        with pytest.raises(NotFoundError):
            shardio.open(url)
        report = WRITE(url, items, jobs.log_task, session="s", tasks=10, executor=executor)
    assert 7 <= report.reused < 10
    assert report.records == {"train": 100}, "those of earlier runs too"
    assert numbers(url) == list(range(100))
    worked = sorted(int(path.name.split(".")[0]) for path in tmp_path.iterdir() if path.name[0].isdigit())
    # The task behind the one that fails may have been begun, and ended, before it was cancelled.
    again = sorted({number // 10 for number in worked})
    assert 7 in again
    assert len(again) == 10 - report.reused
    assert worked == [number for task in again for number in range(10 * task, 10 * task + 10)]


@pytest.mark.parametrize("items", [range(600), iter(range(600))])
def test_a_session_that_was_committed_is_a_success_again(url, threads, items) -> None:
    """P2: never applied twice."""
    items = list(items)
    first = WRITE(url, iter(items), jobs.number, session="s", executor=threads)
    again = WRITE(url, iter(items), jobs.number, session="s", executor=threads)
    assert (again.version, again.digest, again.reused) == (first.version, first.digest, first.tasks)
    assert numbers(url) == items


def test_tasks_that_ended_out_of_order_are_not_counted_twice(url, threads) -> None:
    """Only the last tasks of a stream are done: their number still is that of all tasks."""
    with shardio.DatasetWriter(url, schema=jobs.SCHEMA, session="s", task=2, commit=False) as out:
        for n in range(512, 600):
            out.write({"n": n})
    report = WRITE(url, iter(range(600)), jobs.number, session="s", executor=threads)
    assert (report.tasks, report.reused) == (3, 1)
    assert numbers(url) == list(range(600))


def test_duplicates_of_a_speculative_task_are_dropped(url) -> None:
    """An engine may run a task twice, at once or later; both leave receipts, one counts."""

    class Twice(ThreadPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            other = super().submit(fn, *args, **kwargs)
            future = super().submit(fn, *args, **kwargs)
            self.others.append(other)
            return future

    with Twice(4) as executor:
        executor.others = []
        report = WRITE(url, range(100), jobs.number, executor=executor, tasks=8)
        for other in executor.others:
            other.result()
    assert report.records == {"train": 100}
    assert numbers(url) == list(range(100))


def test_an_unknown_outcome_of_the_commit_keeps_everything_and_says_how_to_finish(
    url, threads, monkeypatch
) -> None:
    """P2: what may have been committed is never removed."""
    put = LocalStore._put_if_absent

    def lost(self, key, data, *, move):
        if "manifests" in key:
            raise UnknownOutcomeError("no answer", url=key)
        return put(self, key, data, move=move)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "_put_if_absent", lost)
        with pytest.raises(CommitOutcomeUnknownError) as caught:
            WRITE(url, range(10), jobs.number, executor=threads, tasks=4)
    (note,) = caught.value.__notes__
    words = note.split("shardio commit ")[1].split()
    version = shardio.commit(words[0], session=words[2], tasks=int(words[4]))
    assert version.number == 1
    assert numbers(url) == list(range(10))


def test_a_session_given_up_by_garbage_collection_is_refused_before_any_work(url, threads) -> None:
    WRITE(url, range(10), jobs.number, executor=threads)
    with shardio.DatasetWriter(url, schema=jobs.SCHEMA, mode="append", session="old", commit=False) as out:
        out.write({"n": 1})
    shardio.gc(url, abandon=["old"], dry_run=False)
    worked = []
    with pytest.raises(CommitConflictError):
        WRITE(url, [1], worked.append, session="old", mode="append", executor=threads)
    assert worked == []


@pytest.mark.parametrize("how", ["processes", "threads", "here"])
def test_progress_moves_while_a_task_runs(url, tmp_path, threads, how) -> None:
    seen = []

    def show(progress) -> None:
        seen.append(progress)
        if progress.records:
            (tmp_path / "seen").touch()

    options = {"processes": {"workers": 2}, "threads": {"executor": threads}, "here": {"workers": 1}}[how]
    WRITE(url, [tmp_path / "seen"], jobs.until_seen, progress=show, **options)
    assert any(each.done == 0 and each.records for each in seen)
    assert seen[-1][:3] == (1, 1, 3)
    assert [each.records for each in seen] == sorted(each.records for each in seen)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_what_a_progress_function_raises_is_not_an_error_of_an_item(url, on_error, monkeypatch) -> None:
    monkeypatch.setattr("shardio.parallel._pool._BEAT_SECONDS", 0)

    def show(progress) -> None:
        if progress.records:
            raise LookupError("the display broke")

    with pytest.raises(LookupError) as caught:
        WRITE(url, range(10), jobs.number, workers=1, tasks=1, on_error=on_error, progress=show)
    assert not hasattr(caught.value, "__notes__")
    with pytest.raises(NotFoundError):
        shardio.open(url)


def test_a_stream_tells_its_number_of_tasks_at_the_end(url, threads) -> None:
    seen = []
    WRITE(url, iter(range(600)), jobs.number, executor=threads, progress=seen.append)
    assert (3, 3, 600) in [each[:3] for each in seen]
    assert seen[-1][:3] == (1, 1, 600), "their shards, which are small, become one"


def broken_at(number: int):
    """Return a function that fails at one item."""

    def records(item):
        if item["n"] == number:
            raise OSError("the network is down")
        return {"n": item["n"]}

    return records


@dataclasses.dataclass
class Photo:
    path: str
    crop: np.ndarray


def plain(numbers):
    return [{"n": n, "more": [n, "x", None, b"y", Path("a")]} for n in numbers]


@pytest.mark.parametrize(
    "other", [Photo("b", np.zeros(2)), Photo("a", np.ones(2)), Photo("a", np.zeros(2, "f4"))]
)
def test_arrays_and_dataclasses_tell_items_apart(other, url) -> None:
    how = {"session": "run", "workers": 1, "schema": {"n": "int64"}}
    for _ in range(2):
        shardio.write_dataset(url, [Photo("a", np.zeros(2))], lambda item: {"n": 1}, **how)
    with pytest.raises(CommitConflictError):
        shardio.write_dataset(url, [other], lambda item: {"n": 1}, **how)


@pytest.mark.parametrize("kind", ["in front", "more tasks", "changed", "NumPy", "as a stream"])
def test_a_rerun_with_other_items_is_refused(kind, url) -> None:
    """Tasks that had ended are known by their number: with others a record would be lost, or come twice."""
    as_given = iter if kind == "as a stream" else list
    count = 300 if kind == "as a stream" else 12
    made = np.arange if kind == "NumPy" else range
    items, how = plain(made(count)), {"session": "run", "workers": 1, "schema": {"n": "int64"}}
    if kind != "as a stream":
        how["tasks"] = 4
    other = {"in front": plain([99, *range(12)]), "more tasks": items}.get(
        kind, [*plain(made(99, 100)), *items[1:]]
    )
    with refused(OSError, "network"):
        shardio.write_dataset(url, as_given(items), broken_at(count - 2), **how)
    more = {"tasks": 6} if kind == "more tasks" else {}
    with refused(CommitConflictError, "session="):
        shardio.write_dataset(url, as_given(other), broken_at(-1), **how | more)
    report = shardio.write_dataset(url, as_given(plain(range(count))), broken_at(-1), **how)
    assert report.reused
    assert numbers(url) == list(range(count))
    with pytest.raises(CommitConflictError):
        shardio.write_dataset(url, as_given(other), broken_at(-1), **how | more)
