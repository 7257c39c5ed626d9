"""Writers that race for versions of one dataset, wherever it is, and the laws of what they leave."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from typing import Any

import shardio
from shardio.errors import CommitConflictError
from shardio.metadata import naming
from tests.promises.stores import faulty


def race(count: int, work, *, line: str | None = None) -> list[Any]:
    """Run `work(number)` in threads; where a key is given as the line, all wait for each other before they
    create it.
    """
    start, last = threading.Barrier(count), threading.Barrier(count)
    there = threading.local()

    def run(number: int) -> Any:
        start.wait()
        try:
            return work(number)
        except CommitConflictError as error:
            return error

    def wait_at_the_line(verb: str, key: str) -> str:
        if verb == "put_if_absent" and key == line and not hasattr(there, "before"):
            there.before = True
            last.wait()
        return ""

    with faulty(wait_at_the_line), concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def write_one(url: str, mode: str, record: bytes) -> bytes:
    with shardio.DatasetWriter(url, mode=mode) as out:
        out.write(record)
    return record


def append_from_process(url: str, number: int) -> None:
    for k in range(3):
        write_one(url, "append", b"%d-%d" % (number, k))


def check_racers(url: str) -> None:
    """P3: 16 racers for one version, one winner."""
    results = race(16, lambda number: write_one(url, "create", b"%d" % number), line=naming.manifest_key(1))
    winners = [result for result in results if isinstance(result, bytes)]
    assert len(winners) == 1
    assert list(shardio.open(url)) == winners
    assert shardio.open(url).version == 1


def check_overwriters(url: str) -> None:
    """P3: of overwriters with one base one wins; what the others stored is removed."""
    write_one(url, "create", b"first")
    results = race(
        16, lambda number: write_one(url, "overwrite", b"%d" % number), line=naming.manifest_key(2)
    )
    winners = [result for result in results if isinstance(result, bytes)]
    assert len(winners) == 1
    assert list(shardio.open(url)) == winners
    # Lists are named by content, so another writer may be about to name them; only gc can tell.
    report = shardio.gc(url, dry_run=False)
    assert {info.key.rpartition("/")[0] for info in report.doomed} <= {"_shardio/lists"}
    assert report.unclaimed == {}
    assert list(shardio.open(url)) == winners


def check_processes(url: str, kills: int, method: str = "fork") -> None:
    """P3: appends of processes that race are all there; of those killed, each whole or not at all."""
    write_one(url, "create", b"first")
    context = multiprocessing.get_context(method)
    workers = [context.Process(target=append_from_process, args=(url, number)) for number in range(4)]
    for worker in workers:
        worker.start()
    dice = random.Random(5)
    for worker in workers[:kills]:
        time.sleep(dice.uniform(0.1, 0.6))
        os.kill(worker.pid, signal.SIGKILL)
    for worker in workers:
        worker.join()
    assert all(worker.exitcode == 0 for worker in workers[kills:])
    found = Counter(shardio.open(url))
    every = [b"first", *(b"%d-%d" % (n, k) for n in range(4) for k in range(3))]
    sure = [b"first", *(b"%d-%d" % (n, k) for n in range(kills, 4) for k in range(3))]
    assert max(found.values()) == 1
    assert set(sure) <= set(found) <= set(every)
    assert shardio.open(url).version == len(found)
