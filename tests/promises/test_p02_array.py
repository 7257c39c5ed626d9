"""P1, P2 of job arrays: 64 tasks, random kills and reruns, one commit, an exact multiset of records."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

import shardio
from shardio.errors import NotFoundError
from tests.parallel.places import Place

SMALL = {"block_bytes": 256, "shard_bytes": 1024}


def record(task: int, k: int) -> bytes:
    return b"task %d record %d " % (task, k) * (1 + k % 7)


def run_task(place: Place, url: str, task: int, count: int) -> None:
    """What a job does: skip what is safe, write the rest."""
    with shardio.DatasetWriter(
        url, session="array", task=task, commit=False, **SMALL, **place.storage
    ) as out:
        safe = out.written
        place_of = {"a": 0, "b": 0}
        for k in range(count):
            split = "b" if k % 5 == 0 else "a"
            place_of[split] += 1
            if place_of[split] > safe[split]:
                out.write(record(task, k), split)


def attempt(place: Place, url: str, task: int, count: int, *, seconds: float) -> bool:
    """Run a task in a process of its own that dies after so many seconds; tell whether it ended before."""
    child = os.fork()
    if child == 0:
        try:
            # By default this signal ends a process at once, as SIGKILL does: nothing is cleaned up.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            run_task(place, url, task, count)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGALRM)
    return code == 0


def run_array(place: Place, tasks: int, count: int, kills: int, dice: random.Random) -> str:
    """Run all tasks in random order, with so many kills at least, and reruns until each has ended."""
    began = time.monotonic()
    assert attempt(place, place.url(), 0, count, seconds=60)
    seconds = time.monotonic() - began  # what a task takes that is not killed, or more
    url = place.url()
    todo = list(range(tasks)) + dice.sample(range(tasks), tasks // 8)  # some are run though they have ended
    while todo or kills > 0:
        task = todo.pop(dice.randrange(len(todo))) if todo else dice.randrange(tasks)
        if attempt(place, url, task, count, seconds=seconds * dice.uniform(0.05, 1.2)):
            seconds *= 0.93
        else:
            kills -= 1
            todo.append(task)
            seconds *= 1.1  # a slow machine gets there, too
    return url


def check(place: Place, url: str, tasks: int, count: int) -> None:
    for split, chosen in (("a", lambda k: k % 5), ("b", lambda k: not k % 5)):
        wanted = [record(task, k) for task in range(tasks) for k in range(count) if chosen(k)]
        ds = shardio.open(url, split, **place.storage)
        assert list(ds) == wanted
        some = range(0, len(ds), 17)
        assert ds.read(some) == [wanted[k] for k in some]


@pytest.mark.slow
def test_an_array_of_64_with_random_kills_and_reruns(tmp_path) -> None:
    """P1, P2: rerunning a task replaces nothing and doubles nothing; the commit counts each record once."""
    place = Place(tmp_path, None)
    url = run_array(place, 64, 16, 11, random.Random(11))
    with pytest.raises(NotFoundError):
        shardio.open(url)
    version = shardio.commit(url, session="array", tasks=64)
    assert version.number == 1
    check(place, url, 64, 16)
    # A task that is run again, and a commit that is repeated, change nothing.
    assert attempt(place, url, 7, 16, seconds=60)
    assert shardio.commit(url, session="array", tasks=64).digest == version.digest
    check(place, url, 64, 16)
    shardio.gc(url, dry_run=False)
    check(place, url, 64, 16)
