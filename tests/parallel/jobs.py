"""What the workers of these tests run; they import it by its name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from shardio.storage import TEMPORARY

SCHEMA = {"n": "int64"}
KEPT = []


def number(item):
    return {"n": item}


def two_splits(item):
    yield {"n": item}
    if item % 10 == 0:
        yield "test", {"n": item}


def slow(item):
    time.sleep(0.004)
    return {"n": item}


def until_seen(flag):
    """Yield a record, and another one when the first was counted."""
    yield {"n": 1}
    yield {"n": 2}
    deadline = time.monotonic() + 300
    while not Path(flag).exists():
        assert time.monotonic() < deadline, "nobody saw the first record"
        time.sleep(0.01)
    yield {"n": 3}


def boom_at_77(item):
    if item == 77:
        raise RuntimeError("boom")
    return {"n": item}


def boom_at_77_of_traced(item):
    """Take the items of `log_task`."""
    return boom_at_77(item[0])


def number_of_traced(item):
    return {"n": item[0]}


def boom_half_way(item):
    yield {"n": item}
    if item % 10 == 7:
        raise KeyError("half-way")
    yield {"n": item}


def misfit_at_77(item):
    return {"n": "seventy-seven" if item == 77 else item}


class PickyError(Exception):
    """Cannot be unpickled: its constructor wants more than it passes on."""

    def __init__(self, code, *, detail):
        super().__init__(f"{code}: {detail}")


def picky(item):
    if item == 5:
        raise PickyError(404, detail="gone")
    return {"n": item}


def kill_once(item):
    """Kill the worker at item 333, the first time."""
    number, flag = item
    if number == 333 and not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"n": number}


def kill_always(item):
    """Kill the worker at item 333, each time, and leave a trace of it."""
    number, folder = item
    if number == 333:
        Path(folder, f"death.{time.monotonic_ns()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"n": number}


def log_task(item):
    """Leave a trace of each item that is worked on."""
    number, folder = item
    Path(folder, f"{number}.{time.monotonic_ns()}").touch()
    return {"n": number}


def wait_for_ever(item):
    """Write a record, say that this worker is at work, and then wait until it is ended."""
    yield {"n": 0}
    Path(item, str(os.getpid())).touch()
    while True:
        time.sleep(0.05)


def stopped_while_a_file_is_made(item):
    """Be told to end when the next file under construction is there; something keeps the error."""
    true = Path.open

    def opened(path, *arguments, **options):
        file = true(path, *arguments, **options)
        if path.name.startswith(TEMPORARY):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(3)
            except BaseException as error:
                KEPT.append(error)
                raise
        return file

    Path.open = opened
    return {"n": item}


class StoppedInAFinalizer:
    """Be told to end in a finalizer, which ignores what is raised in it."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)


def stopped_in_a_finalizer(folder):
    """Be told to end at the first item; leave a file where another follows."""
    told = folder / str(os.getpid())
    if told.exists():
        (folder / "went on").touch()
    told.touch()
    StoppedInAFinalizer()
    return {"n": 0}


def wait_for_a_file(item):
    """Take an item of `held_back`."""
    number, flag = item
    while flag and not Path(flag).exists():
        time.sleep(0.01)
    return slow(number)


def held_back(numbers, flag):
    """Return items of which the last quarter waits until a file is there: no kill before comes too late."""
    numbers = list(numbers)
    return [[n, str(flag) if k >= len(numbers) * 3 // 4 else ""] for k, n in enumerate(numbers)]


def picture(item):
    """A record that does not compress, of the item's number and some 20 KB."""
    return b"%08d" % item + os.urandom(20_000)
