"""P4: a writer that fails publishes nothing."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shardio
from shardio.errors import CommitConflictError, NotFoundError, StorageError
from shardio.storage import connect
from tests.promises.places import EVERYWHERE, IN_A_BUCKET, PLACES, fresh
from tests.servers.proxy import proxy
from tests.suites.errors import refused
from tests.suites.processes import Forked

EVERY_PLACE = pytest.mark.parametrize("place", PLACES)
EVERY_MODE = pytest.mark.parametrize("mode", ["create", "append", "overwrite"])
SMALL = {"block_bytes": 40, "shard_bytes": 100}


class BoomError(Exception):
    pass


def begin(url: str, mode: str) -> list[bytes] | None:
    if mode == "create":
        return None
    with shardio.DatasetWriter(url) as out:
        out.write(b"first")
    return [b"first"]


def check_nothing_new(url: str, before: list[bytes] | None, *, clean: bool = True) -> None:
    if before is None:
        with pytest.raises(NotFoundError):
            shardio.open(url)
    else:
        assert list(shardio.open(url)) == before
        assert shardio.open(url).version == 1
    if clean:
        data = [info.key for info in connect(url).list("data/")]
        assert len(data) == (0 if before is None else 2)
        assert list(connect(url).list_temporaries()) == []
    # A rerun trips over nothing.
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write(b"again")
    assert list(shardio.open(url)) == [*(before or []), b"again"]


def raise_for_last(item: int) -> Iterator[bytes]:
    if item == 3:
        raise BoomError
    yield b"%d" % item


@EVERY_PLACE
@pytest.mark.parametrize("session", [None, "run7"])
def test_shards_of_another_write_stay_though_their_names_begin_alike(session, place, tmp_path, monkeypatch):
    """A write that fails removes what it knows that it stored, not what the hash of its session names."""
    url = fresh(place, tmp_path)
    before = begin(url, "append")
    monkeypatch.setattr("shardio.metadata.naming.session_id", lambda _: "aaaaaaaa")
    with shardio.DatasetWriter(url, mode="append", session=session, **SMALL) as out:
        fill(out)
        with pytest.raises(BoomError):
            shardio.write_dataset(url, range(4), raise_for_last, mode="append", workers=1, tasks=4, **SMALL)
    assert list(shardio.open(url)) == [*before, *(b"%d" % k * 10 for k in range(30))]
    assert len(list(connect(url).list("data/"))) == 2 * len(shardio.open(url).source.table)


def fill(out: shardio.DatasetWriter) -> None:
    for k in range(30):
        out.write(b"%d" % k * 10, "train")


@EVERYWHERE
@EVERY_MODE
@pytest.mark.parametrize("error", [BoomError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
def test_an_exception_in_the_block(mode, error, place, tmp_path):
    """P4: an exception or Ctrl-C inside the block: no new visible record."""
    url = fresh(place, tmp_path)
    before = begin(url, mode)
    with pytest.raises(error), shardio.DatasetWriter(url, mode=mode, **SMALL) as out:
        fill(out)
        raise error
    check_nothing_new(url, before)


@EVERYWHERE
@EVERY_MODE
def test_a_writer_that_is_dropped(mode, place, tmp_path):
    """P4: `del`: no new visible record."""
    url = fresh(place, tmp_path)
    before = begin(url, mode)
    out = shardio.DatasetWriter(url, mode=mode, **SMALL)
    fill(out)
    with pytest.warns(ResourceWarning, match="dropped before it was closed: nothing was committed"):
        del out
    check_nothing_new(url, before)


@EVERY_PLACE
def test_a_writer_that_is_aborted(place, tmp_path):
    url = fresh(place, tmp_path)
    out = shardio.DatasetWriter(url, **SMALL)
    fill(out)
    out.abort()
    out.abort()
    out.close()
    with refused(ValueError, "closed"):
        out.write(b"late")
    check_nothing_new(url, None)


@EVERY_PLACE
def test_a_writer_that_goes_on_after_a_failure_of_the_place(place, tmp_path, monkeypatch):
    """A record that was taken and lost ends the write: leaving the block later publishes nothing either."""
    url = fresh(place, tmp_path)
    out = shardio.DatasetWriter(url, block_bytes=40)
    out.write(b"taken" * 6)
    monkeypatch.setattr(out._splits["train"].spool, "store", refuse)
    with pytest.raises(StorageError):
        out.write(b"closes the block" * 6)
    with pytest.raises((ValueError, StorageError)):
        out.write(b"more")
    with pytest.raises(StorageError):
        out.close()
    check_nothing_new(url, None)


WRITES = pytest.mark.parametrize("verb", ["write", "write_encoded"])


@EVERY_PLACE
@WRITES
@pytest.mark.parametrize("records", [0, 1, 30])
def test_a_writer_takes_nothing_after_its_end(verb, records, place, tmp_path):
    """P4: what is written after the end is refused, in splits that were used and in new ones."""
    url = fresh(place, tmp_path)
    with shardio.DatasetWriter(url, **SMALL) as out:
        for k in range(records):
            out.write(b"%d" % k * 10)
    for _ in range(3):
        for split in ("train", "other"):
            with pytest.raises(ValueError, match="the writer is closed, and nothing can be added"):
                getattr(out, verb)(b"late", split)
    out.close()
    assert (out.version, out.written) == (1, {"train": records} if records else {})
    assert list(shardio.open(url)) == [b"%d" % k * 10 for k in range(records)]


@WRITES
def test_a_writer_takes_nothing_after_an_exception_in_the_block(verb, tmp_path):
    with pytest.raises(BoomError), shardio.DatasetWriter(tmp_path / "ds", **SMALL) as out:
        fill(out)
        raise BoomError
    with pytest.raises(ValueError, match="the writer is closed"):
        getattr(out, verb)(b"late")
    assert (out.written, out.stored_bytes, out.version) == ({}, 0, None), "its shards were removed"
    check_nothing_new(str(tmp_path / "ds"), None)


@WRITES
def test_a_writer_takes_nothing_after_a_commit_that_failed(verb, tmp_path):
    url = str(tmp_path / "ds")
    out = shardio.DatasetWriter(url)
    out.write(b"late")
    with shardio.DatasetWriter(url) as faster:
        faster.write(b"first")
    with pytest.raises(CommitConflictError):
        out.close()
    for call in (lambda: getattr(out, verb)(b"later"), out.close):
        with pytest.raises(StorageError):
            call()
    assert list(shardio.open(url)) == [b"first"]


def test_a_shard_writer_that_is_dropped_says_so(tmp_path):
    out = shardio.ShardWriter(tmp_path / "x.tfrecord")
    out.write(b"wren")
    with pytest.warns(ResourceWarning, match=r"x\.tfrecord was dropped before it was closed"):
        del out
    assert list(tmp_path.iterdir()) == []


def refuse(_block) -> None:
    raise StorageError("no space left")


def in_child(work: Callable[[], None], ready: Path) -> Forked:
    child = Forked(work)
    while not ready.exists():
        time.sleep(0.005)
    return child


def write_and_wait(url: str, ready: Path, **options) -> None:
    """Write until all is ready to be committed, say so, and wait for a signal."""
    with shardio.DatasetWriter(url, **SMALL, **options) as out:
        fill(out)
        ready.touch()
        time.sleep(600)


@pytest.mark.sampled(3)
@EVERY_MODE
@pytest.mark.parametrize("place", ["local", IN_A_BUCKET])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGHUP])
def test_a_signal(mode, number, place, tmp_path):
    """P4: SIGTERM, Ctrl-C, worker death: no new visible record."""
    url, ready = fresh(place, tmp_path), tmp_path / "ready"
    before = begin(url, mode)

    child = in_child(lambda: write_and_wait(url, ready, mode=mode), ready)
    child.kill(number)
    child.end()
    check_nothing_new(url, before, clean=number == signal.SIGINT)


@pytest.mark.slow
def test_killed_in_the_middle_of_an_upload(s3, tmp_path, monkeypatch):
    """P4: an object whose body was cut off is not an object; nothing half of it is ever listed."""
    url, ready, go_on = fresh("s3", tmp_path), tmp_path / "ready", tmp_path / "go on"
    before = begin(url, "append")
    with proxy(s3) as relay:

        def plan(exchange, _answered):
            # The head of the request has passed by and its body is on its way.
            if exchange.method == "PUT" and ".tfrecord" in exchange.path:
                child.kill()
                return -1
            return None

        def work() -> None:
            ready.touch()
            while not go_on.exists():
                time.sleep(0.005)
            with shardio.DatasetWriter(url, mode="append") as out:
                for _ in range(40):
                    out.write(os.urandom(100_000))

        with monkeypatch.context() as through:
            through.setenv("AWS_ENDPOINT_URL", relay.url)
            child = in_child(work, ready)
        relay.plan = plan
        go_on.touch()
        assert child.end()[0] == -signal.SIGKILL
    check_nothing_new(url, before)


def test_a_task_whose_worker_dies_publishes_nothing(tmp_path):
    """P4: worker death: the session cannot be committed before the task has run again."""
    url, ready = str(tmp_path / "ds"), tmp_path / "ready"
    with shardio.DatasetWriter(url, session="run", task=0, commit=False) as out:
        out.write(b"0")

    child = in_child(lambda: write_and_wait(url, ready, session="run", task=1, commit=False), ready)
    child.kill()
    child.end()
    with pytest.raises(NotFoundError) as caught:
        shardio.commit(url, session="run", tasks=2)
    assert caught.value.found == "missing task 1"
    with pytest.raises(NotFoundError):
        shardio.open(url)
    with shardio.DatasetWriter(url, session="run", task=1, commit=False) as out:
        out.write(b"1")
    shardio.commit(url, session="run", tasks=2)
    assert list(shardio.open(url)) == [b"0", b"1"]


REFUSED = (1, b"ValueError")


def outcome(work: Callable[[], object]) -> tuple[int, bytes]:
    """Do something in a forked child; return its exit code and the class of its error."""
    code, answer = Forked(work).end()
    return code, answer.partition(b":")[0]


@pytest.mark.parametrize("size", [1, 30, 3000])
def test_a_forked_child_writes_nothing(size, tmp_path):
    """P15: a child's records are refused, and what it inherited in buffers is not written a second time."""
    url = str(tmp_path / "ds")
    records = [bytes([k]) * size for k in range(200)]

    def drop() -> None:
        nonlocal out
        out = None

    with shardio.DatasetWriter(url, block_bytes=1000, shard_bytes=100_000) as out:
        for record in records[:100]:
            out.write(record)
        for call in (
            lambda: out.write(b"child"),
            lambda: out.write(b"child", "other"),
            lambda: out.write_encoded(b"child"),
            out.close,
        ):
            assert outcome(call) == REFUSED
        assert outcome(out.abort)[0] == 0
        assert outcome(drop)[0] == 0
        for record in records[100:]:
            out.write(record)
    assert list(shardio.open(url)) == records
    assert shardio.verify(url).ok


def test_a_forked_child_stores_no_shard(tmp_path):
    path = tmp_path / "x.tfrecord"
    with shardio.ShardWriter(path, block_bytes=10) as out:
        out.write(b"wren")
        out.write(b"robin")
        assert outcome(lambda: out.write(b"child")) == REFUSED
        assert outcome(out.close) == REFUSED
        assert outcome(out.abort)[0] == 0
        assert [each.name for each in tmp_path.iterdir() if each.suffix] == []
        out.write(b"hawk")
    assert list(shardio.open_shard(path)) == [b"wren", b"robin", b"hawk"]


def test_a_forked_child_that_leaves_the_block_does_no_harm(tmp_path):
    """P15: the writer is the parent's; neither its spool nor its stored shards go."""
    url = str(tmp_path / "ds")
    with shardio.DatasetWriter(url, **SMALL) as out:
        fill(out)

        def leave() -> None:
            nonlocal out
            try:
                with out:
                    raise SystemExit
            finally:
                del out
                gc.collect()

        assert outcome(leave) == (1, b"SystemExit")
        assert outcome(out.close) == REFUSED
        out.write(b"last")
    assert len(shardio.open(url)) == 31
    assert shardio.open(url).version == 1
    assert list(shardio.open(url))[-1] == b"last"
