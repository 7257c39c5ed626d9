"""P3: stores whose conditional creation is not one step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

import shardio
from shardio.errors import StorageError
from tests.promises.racing import race
from tests.servers.faults import FaultServer, Request, fault_server
from tests.servers.s3 import options_for


def looking_first(
    server: FaultServer, looks_first: Callable[[Request], Awaitable[None]], apart: float = 0.0
) -> tuple[list[bytes], list[Exception], list[bytes]]:
    """Let six writers append to a server that looks first and writes then; return what was acknowledged, the
    errors, and what is there in the end. They begin so many seconds apart.
    """
    options = options_for(server.url)
    url = "s3://bucket/ds"
    with shardio.DatasetWriter(url, storage_options=options) as out:
        out.write(b"first")
    server.looks_first = looks_first
    errors: list[Exception] = []

    def append(number: int) -> bytes | None:
        time.sleep(number * apart)
        try:
            with shardio.DatasetWriter(url, mode="append", storage_options=options) as out:
                out.write(b"%d" % number)
        except StorageError as error:
            errors.append(error)
            return None
        return b"%d" % number

    done = [record for record in race(6, append) if record is not None]
    return done, errors, list(shardio.open(url, storage_options=options, engine="fsspec"))


# A writer may read a manifest that is about to be replaced, and base its own on it: where that happens, in
# one run of five, the dataset is damaged. Stores that create in one step, which the documentation asks for,
# have no such moment.
@pytest.mark.xfail(strict=False, reason="a writer takes an unconfirmed manifest of another for the latest")
@pytest.mark.slow
def test_a_store_that_races_only_sometimes_loses_nothing_that_was_acknowledged(monkeypatch):
    """P3: where a store looks first and writes then, the manifest is read back once all have written."""
    true = time.sleep
    with fault_server() as server:

        async def slow_manifests(request: Request) -> None:
            if "/manifests/" in request.path:
                await asyncio.sleep(0.3)

        def sleep(seconds: float) -> None:
            # So long as a creation took: by then all have written that looked before. A busy machine keeps no
            # such time, so this waits for what is meant.
            if seconds < 0.29:
                true(seconds)
            while seconds >= 0.29 and server.between:
                true(0.005)

        monkeypatch.setattr(time, "sleep", sleep)
        done, errors, found = looking_first(server, slow_manifests, apart=0.04)
    assert errors == []
    assert len(done) == 6
    assert sorted(found) == sorted([b"first", *done])
