"""P3 on S3: concurrent writers never lose or mix data; overwrites conflict loudly."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter

import pytest

import shardio
from shardio.errors import CommitConflictError
from tests.promises.places import fresh
from tests.promises.test_p03_concurrent import append_from_process, race, write_one


def test_of_16_racers_for_one_version_one_wins(s3, tmp_path):
    """P3: 16 racers for one version, one winner."""
    url = fresh("s3", tmp_path)
    results = race(16, lambda number: write_one(url, "create", b"%d" % number))
    winners = [result for result in results if isinstance(result, bytes)]
    assert len(winners) == 1
    assert list(shardio.open(url)) == winners
    assert shardio.open(url).version == 1


def test_of_overwriters_one_wins(s3, tmp_path):
    """P3: an overwrite fails with `CommitConflictError` unless its base is still the latest."""
    url = fresh("s3", tmp_path)
    write_one(url, "create", b"first")
    writers = [shardio.DatasetWriter(url, mode="overwrite") for _ in range(6)]
    for number, out in enumerate(writers):
        out.write(b"%d" % number)

    def close(number: int) -> bytes:
        writers[number].close()
        return b"%d" % number

    results = race(6, close)
    winners = [result for result in results if isinstance(result, bytes)]
    assert len(winners) == 1
    assert list(shardio.open(url)) == winners
    assert sum(isinstance(result, CommitConflictError) for result in results) == 5


@pytest.mark.parametrize("kills", [False, True])
def test_appends_of_racing_and_killed_processes_are_whole(kills, s3, tmp_path):
    """P3: appends of processes that race are all there; of those killed, each whole or not at all."""
    url = fresh("s3", tmp_path)
    write_one(url, "create", b"first")
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=append_from_process, args=(url, number)) for number in range(4)]
    for worker in workers:
        worker.start()
    dice = random.Random(5)
    for worker in workers[:2] if kills else []:
        time.sleep(dice.uniform(0.1, 0.6))
        os.kill(worker.pid, signal.SIGKILL)
    for worker in workers:
        worker.join()
    assert all(worker.exitcode == 0 for worker in (workers[2:] if kills else workers))
    found = Counter(shardio.open(url))
    every = [b"first", *(b"%d-%d" % (n, k) for n in range(4) for k in range(3))]
    sure = [b"first", *(b"%d-%d" % (n, k) for n in range(2, 4) for k in range(3))] if kills else every
    assert max(found.values()) == 1
    assert set(sure) <= set(found) <= set(every)
    assert shardio.open(url).version == len(found)
