"""Uploads in the background: bounded, in order, and nothing left behind."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import gc
import threading
import weakref

import pytest

from shardio.storage import Uploads
from tests.suites.errors import refused


class Gate:
    """Work that waits until it is let through, and writes down when it ran."""

    def __init__(self, done: list, name: object) -> None:
        self.name = name
        self.open = threading.Event()
        self.begun = threading.Event()
        self._done = done

    def store(self) -> None:
        self.begun.set()
        assert self.open.wait(600)
        self._done.append(("stored", self.name))

    def acknowledge(self) -> None:
        self._done.append(("acknowledged", self.name))


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert [thread for thread in threading.enumerate() if thread.name == "shardio-upload"] == []


def test_they_are_acknowledged_in_the_order_in_which_they_were_begun() -> None:
    """A receipt acknowledges all before it, whichever upload ends first."""
    done: list = []
    uploads = Uploads(3)
    gates = [Gate(done, k) for k in range(3)]
    for gate in gates:
        uploads.begin(gate.store, gate.acknowledge)
    for gate in gates:
        assert gate.begun.wait(600), "several are under way at once"
    for k in (2, 1):
        gates[k].open.set()
        while ("stored", k) not in done:
            pass
    assert [kind for kind, _ in done] == ["stored", "stored"]
    gates[0].open.set()
    uploads.finish()
    assert [name for kind, name in done if kind == "acknowledged"] == [0, 1, 2]


def test_no_more_are_under_way_than_allowed() -> None:
    running, most = 0, 0
    lock = threading.Lock()
    pairs = threading.Barrier(2)  # one alone would wait

    def store() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        pairs.wait(600)
        with lock:
            running -= 1

    uploads = Uploads(2)
    for _ in range(20):
        uploads.begin(store, lambda: None)
    uploads.finish()
    assert most == 2


def test_a_failure_is_told_at_the_next_call_and_ever_after() -> None:
    done: list = []
    uploads = Uploads(3)

    def fail() -> None:
        raise OSError("no room")

    late = Gate(done, "late")
    uploads.begin(fail, lambda: done.append("acknowledged nothing"))
    with refused(OSError, "no room"):
        while True:
            uploads.check()
    with refused(OSError, "no room"):
        uploads.begin(late.store, late.acknowledge)
    with refused(OSError, "no room"):
        uploads.finish()
    assert done == []
    uploads.cancel()


def test_nothing_is_acknowledged_what_comes_after_a_failure() -> None:
    """P4: a receipt whose predecessor is missing would acknowledge records that are not there."""
    done: list = []
    uploads = Uploads(3)
    first, second = Gate(done, 1), Gate(done, 2)

    def fail() -> None:
        first.store()
        raise OSError("reset")

    uploads.begin(fail, first.acknowledge)
    uploads.begin(second.store, second.acknowledge)
    second.open.set()
    first.open.set()
    with refused(OSError, "reset"):
        uploads.finish()
    uploads.cancel()
    assert ("acknowledged", 2) not in done
    assert ("stored", 2) in done


def test_a_failure_to_acknowledge_counts_like_one_to_store() -> None:
    done: list = []
    uploads = Uploads(3)

    def refuse() -> None:
        raise OSError("receipt")

    uploads.begin(lambda: None, refuse)
    second = Gate(done, 2)
    second.open.set()
    with contextlib.suppress(OSError):
        uploads.begin(second.store, second.acknowledge)
    with refused(OSError, "receipt"):
        uploads.finish()
    uploads.cancel()
    assert ("acknowledged", 2) not in done


def test_what_is_cancelled_ends_without_being_acknowledged() -> None:
    done: list = []
    uploads = Uploads(3)
    gate = Gate(done, 1)
    uploads.begin(gate.store, gate.acknowledge)
    assert gate.begun.wait(600)

    def open_once_cancelled() -> None:
        while not uploads.cancelled:
            pass
        gate.open.set()

    opens = threading.Thread(target=open_once_cancelled)
    opens.start()
    uploads.cancel()
    opens.join()
    assert done == [("stored", 1)]


def test_a_thread_that_cannot_start_is_a_failure(monkeypatch) -> None:
    """What never ran must not count as stored."""
    uploads = Uploads(3)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with refused(RuntimeError, "can't start"):
            uploads.begin(lambda: None, lambda: None)
    with pytest.raises(concurrent.futures.CancelledError):
        uploads.finish()
    uploads.cancel()


@pytest.mark.parametrize("runs", [False, True])
def test_an_upload_whose_start_was_interrupted_is_not_waited_for(monkeypatch, runs) -> None:
    """Ctrl-C came before its thread ran, or after, when it may have ended, too."""
    done: list = []
    uploads = Uploads(3)
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if runs:
            start(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            uploads.begin(lambda: done.append("stored"), lambda: done.append("acknowledged"))
    uploads.cancel()
    assert done == ["stored", "acknowledged"][: len(done) if runs else 0]
    assert not uploads._under_way


@pytest.mark.slow
def test_an_upload_that_ended_is_forgotten() -> None:
    """Memory stays bounded: neither a chain of uploads nor what they were given stays."""

    class Heavy:
        pass

    uploads = Uploads(2)
    seen = []

    def begin() -> None:
        heavy = Heavy()
        seen.append(weakref.ref(heavy))
        uploads.begin(functools.partial(id, heavy), functools.partial(id, heavy))

    for _ in range(10):
        begin()
    uploads.finish()
    gc.collect()
    assert [ref for ref in seen if ref() is not None] == []


def test_at_least_one_must_be_allowed() -> None:
    with refused(ValueError, "at_once="):
        Uploads(0)
