"""P3: stores whose conditional creation is not one step."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from pathlib import PurePosixPath

import pytest

import shardio
from tests.promises.racing import race
from tests.servers.faults import Request, fault_server
from tests.servers.s3 import options_for


@pytest.mark.slow
def test_writers_that_all_look_before_one_writes_lose_nothing(monkeypatch):
    """P3: where a store looks first and writes then, the manifest is read back once all have written."""
    true = time.sleep
    looked: Counter[str] = Counter()
    all_have_looked: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
    between: set[object] = set()

    async def until_all_have_looked(request: Request) -> None:
        if "/manifests/" in request.path:
            between.add(creation := object())
            looked[request.path] += 1
            # Six writers look for version 2; one of them wins each, and the others look for the next.
            if looked[request.path] == 8 - int(PurePosixPath(request.path).stem):
                all_have_looked[request.path].set()
            await all_have_looked[request.path].wait()
            between.remove(creation)

    def sleep(seconds: float) -> None:
        # As long as a creation took, or longer: by then all have written that looked before.
        begun = between.copy()
        while not begun.isdisjoint(between.copy()):
            true(0.005)

    with fault_server() as server:
        options = options_for(server.url)
        url = "s3://bucket/ds"
        with shardio.DatasetWriter(url, storage_options=options) as out:
            out.write(b"first")
        server.looks_first = until_all_have_looked
        monkeypatch.setattr(time, "sleep", sleep)

        def append(number: int) -> bytes:
            with shardio.DatasetWriter(url, mode="append", storage_options=options) as out:
                out.write(b"%d" % number)
            return b"%d" % number

        done = race(6, append)
        found = list(shardio.open(url, storage_options=options, engine="fsspec"))
    assert sorted(found) == sorted([b"first", *done])
    assert len(done) == 6
    assert sorted(looked.values()) == [1, 2, 3, 4, 5, 6]
