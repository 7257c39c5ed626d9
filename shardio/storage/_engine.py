"""Which client reads data: obstore where it is installed and understands the options, fsspec's otherwise.

obstore moves about ten times as many small ranges per CPU second as s3fs.  Three things keep it from data,
each told once in one line: options that cannot be translated, a first read that fails where fsspec's
succeeds, and a process forked after obstore was used, where its threads are gone and a call would hang.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import re
from typing import TYPE_CHECKING

from shardio.storage._verdict import Verdict, diagnose

if TYPE_CHECKING:
    from shardio.storage._backends import Backend
    from shardio.storage._client import Client, Reader, Reply
    from shardio.storage._process import Process
    from shardio.storage._tuning import Tuning

__all__ = ["Engine", "EngineError", "read_with"]

_log = logging.getLogger("shardio")
# Paths that obstore does not take: with control characters or empty components.
_UNNAMEABLE = re.compile(r"[\x00-\x1f\x7f]|(?<!:)//")
# The process that has used obstore, if any; its forked children must not.
_used_by: int | None = None


class EngineError(Exception):
    """The engine that was insisted on cannot be used."""


class Engine:
    """The data engine of one store in one process."""

    def __init__(self) -> None:
        self.reader: Reader | None = None
        self.settled = False
        self.lock = asyncio.Lock()

    def reader_of(self, path: str) -> Reader | None:
        """Return the reader of an object, or None where fsspec's client reads it."""
        return None if _UNNAMEABLE.search(path) else self.reader

    def settle(self, reader: Reader | None) -> None:
        """Let `reader` read from now on, or fsspec's client where it is None."""
        self.reader = reader
        self.settled = True


async def read_with(
    backend: Backend, state: Process, tuning: Tuning, path: str, place: tuple[int, int]
) -> Reply:
    """Send one range request with the data engine of this process.

    Raises:
        Exception: what the client raised; `EngineError` where the one insisted on is of no use.
    """
    client = await state.client()
    engine = state.engine
    if _UNNAMEABLE.search(path):
        return await client.fetch(path, *place)
    if not engine.settled:
        async with engine.lock:
            if not engine.settled:
                reader = await _open(backend, client, tuning)
                if reader is not None:
                    return await _first(backend, state, (client, reader), (path, *place))
                # Nothing to find out, so nobody waits for this reply.
                engine.settle(None)
    return await (engine.reader or client).fetch(path, *place)


async def _first(
    backend: Backend, state: Process, clients: tuple[Client, Reader], request: tuple[str, int, int]
) -> Reply:
    """Send the first request by obstore, which settles who reads from now on."""
    client, reader = clients
    try:
        reply = await reader.fetch(*request)
    except Exception as error:
        verdict = diagnose(error).verdict
        if backend.engine == "obstore" or verdict not in {Verdict.ABSENT, Verdict.DENIED, Verdict.REFUSED}:
            raise
        # The same request by the other client tells whether the options were translated wrongly.
        reply = await client.fetch(*request)
        state.engine.settle(None)
        _say(backend, diagnose(error).text)
        return reply
    state.engine.settle(reader)
    return reply


async def _open(backend: Backend, client: Client, tuning: Tuning) -> Reader | None:
    global _used_by  # noqa: PLW0603 - a fact about the process
    if backend.engine == "fsspec" or backend.kind == "other":
        return None
    if importlib.util.find_spec("obstore") is None:
        return None
    reason = None
    if _used_by not in {None, os.getpid()}:
        reason = "this process was forked after obstore was used; start workers with forkserver or spawn"
    else:
        from shardio.storage._obstore import UntranslatableError, open_reader

        try:
            reader = await open_reader(backend, client, tuning)
        except UntranslatableError as error:
            reason = str(error)
        else:
            _used_by = os.getpid()
            return reader
    if backend.engine == "obstore":
        raise EngineError(reason)
    _say(backend, reason)
    return None


def _say(backend: Backend, reason: str) -> None:
    _log.warning("%s is read with fsspec instead of obstore: %s", backend.url, reason)
