"""Sessions: job arrays, reruns with and without `written`, killed attempts; reruns double nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

import shardio
from shardio.catalog import Catalog, find_safe_work
from shardio.errors import CommitConflictError, FormatError, NotFoundError, SchemaError
from shardio.format import Limits
from shardio.metadata import naming
from shardio.storage import connect
from tests.promises.places import PLACES, fresh
from tests.promises.stores import Counting, faulty
from tests.suites.errors import refused

EVERY_PLACE = pytest.mark.parametrize("place", PLACES)
SMALL = {"block_bytes": 40, "shard_bytes": 100}


def task_records(task: int, count: int = 30) -> list[tuple[str, bytes]]:
    return [("b-c" if k % 3 == 0 else "a", b"task %d record %d" % (task, k)) for k in range(count)]


def run_task(
    url: str,
    task: int,
    *,
    resume: bool = False,
    die_after: int | None = None,
    session: str = "run",
    **options,
) -> int:
    """Write a task; return how many records it had to write."""
    out = shardio.DatasetWriter(
        url, mode="append", session=session, task=task, commit=False, **{**SMALL, **options}
    )
    done = out.written if resume else {}
    done = dict(done)
    count = 0
    for split, record in task_records(task):
        if done.get(split, 0) > 0:
            done[split] -= 1
            continue
        if die_after is not None and count == die_after:
            # No abort, no close, no receipt: only what is stored already is left.
            out._ended = "killed"
            out._task._uploads.finish()
            for part in out._splits.values():
                part.spool._file.close()
            return count
        out.write(record, split)
        count += 1
    out.close()
    return count


def all_records(url: str, tasks: int) -> None:
    for split in ("a", "b-c"):
        wanted = [record for task in range(tasks) for name, record in task_records(task) if name == split]
        assert list(shardio.open(url, split)) == wanted


@EVERY_PLACE
def test_a_job_array(place, tmp_path):
    """A commit MUST take one complete attempt of every task."""
    url = fresh(place, tmp_path)
    for task in (2, 0, 1):
        run_task(url, task)
        with pytest.raises(NotFoundError):
            shardio.open(url)
    version = shardio.commit(url, session="run", tasks=3)
    assert version.number == 1
    all_records(url, 3)
    merged = version.manifest.session("run")
    assert merged is not None
    assert (merged.tasks, merged.version, merged.rows) == (3, 1, {"a": 60, "b-c": 30})


@EVERY_PLACE
def test_committing_again_is_a_success(place, tmp_path):
    """A session that was merged with the same SHA-256 MUST be a success without a new version; with another
    it MUST be `CommitConflictError`.
    """
    url = fresh(place, tmp_path)
    for task in range(2):
        run_task(url, task)
    first = shardio.commit(url, session="run", tasks=2)
    assert shardio.commit(url, session="run", tasks=2).number == first.number
    # The same content cut another way is the same content.
    run_task(url, 1, block_bytes=1000, compression="zstd")
    assert shardio.commit(url, session="run", tasks=2).number == first.number
    all_records(url, 2)
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write(b"later", "a")
    assert shardio.commit(url, session="run", tasks=2).number == 2, "even after other commits"
    with shardio.DatasetWriter(url, mode="append", session="run", task=1, commit=False) as out:
        for split, record in [*task_records(1), ("a", b"one more")]:
            out.write(record, split)
    with pytest.raises(CommitConflictError) as caught:
        shardio.commit(url, session="run", tasks=2)
    assert "SHA-256" in str(caught.value.expected)


@EVERY_PLACE
def test_committing_again_after_gc_is_a_success(place, tmp_path):
    """Whether the session is merged MUST be asked before the fence: garbage collection may have given up its
    shards since.

    The advice to write under a new session would double the data.
    """
    url = fresh(place, tmp_path)
    run_task(url, 0)
    shardio.commit(url, session="run", tasks=1)
    # Later attempts of the same task; gc gives up what they stored, and any of them may be taken next time.
    for _ in range(6):
        run_task(url, 0)
    assert shardio.gc(url, dry_run=False).deleted > 0
    assert shardio.commit(url, session="run", tasks=1).number == 2
    all_records(url, 1)
    run_task(url, 0)
    with shardio.DatasetWriter(url, mode="overwrite") as out:
        out.write(b"new", "a")
    # Now not even the shards that were merged are there any more.
    shardio.gc(url, keep=1, dry_run=False)
    assert shardio.commit(url, session="run", tasks=1).number == 4
    assert list(shardio.open(url, "all")) == [b"new"]


@pytest.mark.sampled(3)
@EVERY_PLACE
@pytest.mark.parametrize("die_after", range(0, 30, 3))
def test_a_killed_task_goes_on_from_what_is_stored(die_after, place, tmp_path):
    """Under a session's own id a rerun that reads `written` skips what is safe, and doubles nothing."""
    url = fresh(place, tmp_path)
    run_task(url, 0)
    wrote = run_task(url, 1, die_after=die_after)
    rest = run_task(url, 1, resume=True)
    assert wrote + rest >= 30
    if die_after > 20:
        assert rest < 20, "what was stored is not written again"
    shardio.commit(url, session="run", tasks=2)
    all_records(url, 2)


@EVERY_PLACE
@pytest.mark.parametrize("die_after", [0, 10, 29])
def test_a_killed_task_may_begin_again(die_after, place, tmp_path):
    """A rerun that does not read `written` starts from its first record; what was stored is left."""
    url = fresh(place, tmp_path)
    run_task(url, 0, die_after=die_after)
    assert run_task(url, 0) == 30
    shardio.commit(url, session="run", tasks=1)
    all_records(url, 1)
    shardio.gc(url, dry_run=False)
    all_records(url, 1)


@pytest.mark.slow
@settings(max_examples=max(15, settings().max_examples // 10))
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=5), st.booleans())
def test_any_history_of_kills_ends_with_every_record_once(history, resume):
    """Attempt after attempt, with and without `written`, killed anywhere."""
    url = fresh("memory", Path())
    for reads, die_after in history:
        run_task(url, 0, resume=reads, die_after=die_after)
    run_task(url, 0, resume=resume)
    shardio.commit(url, session="run", tasks=1)
    all_records(url, 1)
    # And once more, by a caller that does not know that it is done.
    run_task(url, 0, resume=True)
    assert shardio.commit(url, session="run", tasks=1).number == 1


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("fault", ["before", "after", "half", "lost before", "lost after"])
def test_a_task_whose_store_fails_anywhere_runs_again(fault, tmp_path):
    """Every store call of a task failing in turn, then a rerun that reads `written`."""
    counting = Counting()
    with faulty(counting):
        run_task(fresh("memory", tmp_path), 0)
    for at in range(len(counting.calls)):
        url = fresh("memory", tmp_path)
        with faulty(Counting(at, fault)), contextlib.suppress(shardio.ShardioError):
            run_task(url, 0)
        run_task(url, 0, resume=True)
        shardio.commit(url, session="run", tasks=1)
        all_records(url, 1)


def test_written_counts_by_split(tmp_path):
    url = fresh("memory", tmp_path)
    run_task(url, 0, die_after=25)
    out = shardio.DatasetWriter(url, mode="append", session="run", commit=False, **SMALL)
    written = out.written
    assert 0 < written["a"] <= 17
    assert written["never"] == 0
    assert out.written == written
    out.abort()
    fresh_out = shardio.DatasetWriter(url, mode="append", session="other", **SMALL)
    assert fresh_out.written == {}
    fresh_out.abort()
    unnamed = shardio.DatasetWriter(url, mode="append", **SMALL)
    assert unnamed.written == {}
    unnamed.abort()


@EVERY_PLACE
def test_a_single_writer_with_a_session_runs_again(place, tmp_path):
    """`session="run7"`: a rerun continues; after the commit it is a success that adds nothing."""
    url = fresh(place, tmp_path)
    for round_ in range(3):
        with shardio.DatasetWriter(url, session="run7", **SMALL) as out:
            done = out.written
            assert sum(done.values()) == (0 if round_ == 0 else 30)
            for split, record in task_records(0):
                if done[split]:
                    done[split] -= 1
                    continue
                out.write(record, split)
        assert out.version == 1
    all_records(url, 1)


def test_missing_tasks_are_named(tmp_path):
    url = fresh("memory", tmp_path)
    for task in (0, 3, 4, 9):
        run_task(url, task)
    with pytest.raises(NotFoundError) as caught:
        shardio.commit(url, session="run", tasks=10)
    assert caught.value.found == "missing tasks 1-2, 5-8"
    with refused(ValueError, "tasks 3-4, 9"):
        shardio.commit(url, session="run", tasks=1)
    with pytest.raises(NotFoundError):
        shardio.commit(url, session="never", tasks=1)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"session": "run", "tasks": 0}, "tasks=0 must be between 1 and"),
        ({"session": "run", "tasks": 1, "mode": "replace"}, "mode='replace' must be one of"),
        ({"session": "../x", "tasks": 1}, "not a name for a session"),
    ],
)
def test_senseless_commits(options, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        shardio.commit(fresh("memory", tmp_path), **options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"task": 1}, "need a session="),
        ({"commit": False}, "need a session="),
        ({"session": "auto.x"}, "shardio's own"),
        ({"session": "a=b"}, "not a name for a session"),
        ({"session": "run", "task": -1}, "task=-1"),
        ({"shard_bytes": 0}, "shard_bytes=0"),
        ({"mode": "replace"}, "mode='replace' must be one of create, append, overwrite"),
        ({"compression": "lz4"}, "compression must be None"),
        ({"block_bytes": 0}, "block_bytes=0 must be between"),
        ({"block_bytes": 1 << 30}, "block_bytes=1073741824 must be between"),
        ({"compression": "gzip", "level": 10}, "compression level 10"),
        ({"level": 3}, "there is no compression"),
        ({"encoding": "tensors"}, "needs a schema"),
    ],
)
def test_senseless_writers(options, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        shardio.DatasetWriter(tmp_path / "ds", **options)
    for task in (True, "1"):
        with pytest.raises(TypeError, match="must be an integer"):
            shardio.DatasetWriter(tmp_path / "ds", session="run", task=task)
    assert not (tmp_path / "ds").exists(), "nothing was touched"


def test_tasks_that_disagree(tmp_path):
    url = fresh("memory", tmp_path)
    with shardio.DatasetWriter(url, session="run", task=0, commit=False, mode="create") as out:
        out.write(b"0")
    with shardio.DatasetWriter(url, session="run", task=1, commit=False, mode="append") as out:
        out.write(b"1")
    with refused(ValueError, "'append'", "'create'", "mode="):
        shardio.commit(url, session="run", tasks=2)
    assert shardio.commit(url, session="run", tasks=2, mode="create").number == 1
    for task, schema in enumerate(({"a": "int64"}, {"a": "float32"})):
        with shardio.DatasetWriter(
            url, schema, session="mixed", task=task, commit=False, mode="overwrite"
        ) as out:
            out.write({"a": 1})
    with pytest.raises(SchemaError):
        shardio.commit(url, session="mixed", tasks=2)
    for task in range(2):
        with shardio.DatasetWriter(
            url, {"a": "int64"}, session="one", task=task, commit=False, mode="overwrite"
        ) as out:
            out.write({"a": 1})
    shardio.commit(url, session="one", tasks=2)
    assert len(shardio.open(url)) == 2


@EVERY_PLACE
def test_an_array_that_overwrites_has_one_base(place, tmp_path):
    url = fresh(place, tmp_path)
    with shardio.DatasetWriter(url) as out:
        out.write(b"first")
    for task in range(2):
        with shardio.DatasetWriter(url, mode="overwrite", session="new", task=task, commit=False) as out:
            out.write(b"%d" % task)
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write(b"in between")
    with pytest.raises(CommitConflictError):
        shardio.commit(url, session="new", tasks=2)
    assert list(shardio.open(url)) == [b"first", b"in between"]


def receipts(url: str) -> list[str]:
    return [info.key for info in connect(url).list(naming.SESSIONS)]


def test_a_receipt_under_anothers_name_is_refused(tmp_path):
    url = fresh("memory", tmp_path)
    run_task(url, 0)
    store = connect(url)
    (complete,) = [key for key in receipts(url) if naming.ReceiptKey.parse(key).sequence is None]
    data = store.get(complete, max_bytes=10_000)
    store.delete(complete)
    for other in (complete.replace("00000-", "00001-"), complete.replace("/run/", "/ran/")):
        store.put_if_absent(other, data)
    with pytest.raises(FormatError):
        shardio.commit(url, session="ran", tasks=1)
    with pytest.raises(FormatError):
        find_safe_work(Catalog(store), "run", 1)


def test_a_receipt_that_no_commit_would_take_is_refused(monkeypatch):
    """A writer MUST NOT store what it would refuse to read: nothing is published, and the advice works."""
    monkeypatch.setitem(Catalog.__init__.__kwdefaults__, "limits", Limits(manifest=1450))
    url = fresh("memory", None)
    with pytest.raises(FormatError) as caught:
        run_task(url, 0)
    assert "larger shards" in str(caught.value)
    assert "more tasks" in str(caught.value)
    assert not list(connect(url).list("_shardio/manifests/"))
    run_task(url, 0, session="large", block_bytes=200, shard_bytes=400)
    shardio.commit(url, session="large", tasks=1)
    assert len(shardio.open(url, "all")) == 30
