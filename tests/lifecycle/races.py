"""Processes that change one dataset at random, and what must be there afterwards.

`race(url, options, seed, steps)` starts them and returns what they did.
"""

from __future__ import annotations

import multiprocessing
import random
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import shardio
from shardio import Feature
from shardio.errors import CommitConflictError, NotFoundError

PROCESSES = 4
_OWN = 1_000_000  # numbers of the records of each process


class Racer:
    """One process: what it wrote, and has not deleted, is there whatever the others do."""

    def __init__(self, url: str, options: Any, number: int, seed: int) -> None:
        self.url, self.number = url, number
        self.how: dict[str, Any] = {"storage_options": options}
        self.random = random.Random(f"{seed}-{number}")
        self.mine: set[int] = set()
        self.written = 0
        self.did: Counter[str] = Counter()
        self.refused: list[tuple[str, CommitConflictError]] = []
        self.failed: list[str] = []

    def run(self, steps: int) -> None:
        deeds = [self.append] * 4 + [self.delete, self.collect, self.look] * 2
        deeds += [self.erase, self.compact, self.table, self.keys, self.tag, self.untag, self.schema]
        deeds += [self.verify]
        for deed in self.random.choices(deeds, k=steps):
            try:
                deed()
            except CommitConflictError as error:
                self.refused.append((deed.__name__, error))
            except Exception:  # noqa: BLE001 - the test shows it
                self.failed.append(f"{deed.__name__}: {traceback.format_exc()}")
            else:
                self.did[deed.__name__] += 1

    def append(self) -> None:
        new = range(self.written, self.written + self.random.randrange(1, 12))
        self.written = new.stop
        small = {"block_bytes": 64, "shard_bytes": 200}
        with shardio.DatasetWriter(self.url, {"n": "int64"}, mode="append", **small, **self.how) as out:
            for n in new:
                out.write({"n": self.number * _OWN + n})
        self.mine.update(self.number * _OWN + n for n in new)

    def delete(self) -> None:
        self._remove(shardio.delete)

    def erase(self) -> None:
        self._remove(shardio.erase, drop_tags=True)

    def _remove(self, function: Callable[..., Any], **options: Any) -> None:
        some = set(self.random.sample(sorted(self.mine), min(len(self.mine), 3)))
        if some:
            function(
                shardio.Address(self.url, **self.how),
                where=lambda columns: np.isin(columns["n"], sorted(some)),
                features=["n"],
                **options,
            )
            self.mine -= some

    def compact(self) -> None:
        shardio.compact(shardio.Address(self.url, **self.how), shard_bytes=2000, workers=1)

    def table(self) -> None:
        shardio.build_table(shardio.Address(self.url, **self.how), ["n"], workers=1)

    def keys(self) -> None:
        shardio.build_keys(shardio.Address(self.url, **self.how), "n", workers=1)

    def collect(self) -> None:
        shardio.gc(shardio.Address(self.url, **self.how), keep=self.random.choice([1, 1, 3]), dry_run=False)

    def tag(self) -> None:
        shardio.tag(shardio.Address(self.url, **self.how), self.random.choice("ab"), move=True)

    def untag(self) -> None:
        name = self.random.choice("ab")
        if name in shardio.tags(shardio.Address(self.url, **self.how)):
            try:
                shardio.untag(shardio.Address(self.url, **self.how), name)
            except NotFoundError as error:
                if "there is no tag" not in error.what:  # another one was quicker
                    raise

    def schema(self) -> None:
        feature = Feature("int64", default=self.random.randrange(3))
        shardio.set_schema(shardio.Address(self.url, **self.how), {self.random.choice("xyz"): feature})

    def look(self) -> None:
        ds = shardio.open(self.url, **self.how)
        try:
            found = [int(value["n"]) for value in ds]
        except NotFoundError as error:
            # A reader stays with its version, and is informed when that expires.
            if error.what == f"version {ds.version} expired while it was read":
                return
            raise
        assert sorted(n for n in found if n // _OWN == self.number) == sorted(self.mine)

    def verify(self) -> None:
        report = shardio.verify(shardio.Address(self.url, **self.how))
        assert report.ok, report.findings


class Raced(NamedTuple):
    """What the processes of a race did."""

    did: Counter[str]
    refused: list[tuple[str, CommitConflictError]]
    failed: list[str]
    expected: list[int]


def _run(url: str, options: Any, number: int, seed: int, steps: int, results: Any) -> None:
    warnings.simplefilter("ignore")
    racer = Racer(url, options, number, seed)
    racer.run(steps)
    results.put((racer.did, racer.refused, racer.failed, racer.mine))


def race(url: str, options: Any, seed: int, steps: int) -> Raced:
    """Let processes change a new dataset at random; return what they did and which records must be there."""
    with shardio.DatasetWriter(url, {"n": "int64"}, storage_options=options) as out:
        out.write({"n": 0})
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=_run, args=(url, options, number, seed, steps, results), daemon=True)
        for number in range(1, PROCESSES + 1)
    ]
    did, refused, failed, expected = Counter[str](), [], [], {0}
    try:
        for process in processes:
            process.start()
        for _ in processes:
            done, conflicts, errors, mine = results.get(timeout=300)
            did.update(done)
            refused += conflicts
            failed += errors
            expected |= mine
    finally:
        for process in processes:
            process.kill()
            process.join()
    return Raced(did, refused, failed, sorted(expected))
