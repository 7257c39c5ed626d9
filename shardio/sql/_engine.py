"""A process that runs queries in DuckDB, where the system bounds what they take.

It is ended when a query takes too long or is not wanted any more, and its memory is bounded by the system:
neither is possible from within.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shardio.sql import _child as child

MOST_ROWS = 1 << 16  # of one query
_MEMORY = 1 << 30
_SECONDS = 60.0  # of a processor, for one query
# So many times as long it may take where others have the processors; where the system does not count what a
# process takes of them (Windows), all of it counts.
_BUSY = 10 if hasattr(signal, "SIGXCPU") else 1
_WAIT = 0.2  # seconds between two looks whether anybody still wants the answer
_KEPT = 2  # processes that wait for the next query: starting one takes about half a second


class QueryError(Exception):
    """Why a query has no answer."""


class _RefusedError(QueryError):
    """What DuckDB says of a query; it waits for the next one."""


class _SqlEngine:
    """A process that runs DuckDB; for one query at a time, of the process that started it."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        # The child finds its packages where this process would.
        command = [sys.executable, "-P", child.__file__, os.pathsep.join(sys.path), str(_MEMORY)]
        self._process = subprocess.Popen(  # noqa: S603 - this Python, and a file of ours
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdin is not None  # noqa: S101 - pipes were asked for
        assert self._process.stdout is not None  # noqa: S101
        self._sink, self._source = self._process.stdin, self._process.stdout
        self._thread = ThreadPoolExecutor(1, "shardio-sql")

    def _answer(self) -> tuple[dict[str, Any], bytes] | None:
        """Return what the process says; None where it has ended."""
        head = self._source.read(child.HEAD.size)
        if len(head) < child.HEAD.size:
            return None
        told, given = child.HEAD.unpack(head)
        text, values = self._source.read(told), self._source.read(given)
        return (json.loads(text), values) if len(text) + len(values) == told + given else None

    @property
    def is_usable(self) -> bool:
        """Whether it is this process's own, and there."""
        return self._owner == os.getpid() and self._process.poll() is None

    def ask(self, request: dict[str, Any], data: Any, waiting: Callable[[], None]) -> tuple[Any, bytes]:
        """Return the answer to a request.

        Raises:
            QueryError: the query failed, took too long, or ended the process.
        """
        text = json.dumps({**request, "seconds": _SECONDS}).encode()
        with contextlib.suppress(BrokenPipeError):  # why it ended is said below
            self._sink.write(child.HEAD.pack(len(text), len(data)) + text)
            self._sink.write(data)
            self._sink.flush()
        answering = self._thread.submit(self._answer)
        for _ in range(round(_SECONDS * _BUSY / _WAIT)):
            with contextlib.suppress(TimeoutError):
                found = answering.result(_WAIT)
                break
            waiting()
        else:
            raise QueryError(_OVER_TIME)
        if found is None:
            raise self._death()
        answer, values = found
        if "error" in answer:
            raise QueryError(_OVER_MEMORY) if answer["memory"] else _RefusedError(answer["error"])
        return answer, values

    def _death(self) -> QueryError:
        code = self._process.wait()
        if code < 0 and signal.Signals(-code).name == "SIGXCPU":
            return QueryError(_OVER_TIME)
        # What libraries do that ask for memory and do not look whether they have it.
        if code in (-signal.SIGABRT, -signal.SIGSEGV):
            return QueryError(f"{_OVER_MEMORY}; or DuckDB failed ({signal.Signals(-code).name})")
        return QueryError(f"the process that ran DuckDB ended, with code {code}")

    def end(self) -> None:
        """End the process, whatever it does."""
        if self._owner != os.getpid():
            return  # of before a fork: its pipes and its lock are the parent's
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._sink.close()
        self._thread.shutdown()
        self._source.close()


_OVER_MEMORY = (
    f"it needs more than {_MEMORY >> 30} GB of memory for {MOST_ROWS:,} records or fewer; leave out "
    "functions that make long text or long lists, such as repeat"
)
_OVER_TIME = (
    f"it took more than {_SECONDS:.0f} seconds for {MOST_ROWS:,} records or fewer; write a condition that "
    "costs less for each record"
)
_waiting_engines: list[_SqlEngine] = []


def _engine() -> _SqlEngine:
    while _waiting_engines:
        with contextlib.suppress(IndexError):  # another thread was quicker
            engine = _waiting_engines.pop()
            if engine.is_usable:
                return engine
            engine.end()
    return _SqlEngine()


@atexit.register
def end_engines() -> None:
    while _waiting_engines:
        _waiting_engines.pop().end()


def ask(
    sql: str,
    parameters: list[Any] | None = None,
    *,
    table: Any = None,
    rows: bool = True,
    waiting: Callable[[], None] = lambda: None,
) -> Any:
    """Return the rows of a query, or where `rows` is False the bools of its one column, as bytes.

    Raises:
        QueryError: it failed; it took too long, or too much.
    """
    data: Any = b""
    if table is not None:
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        data = sink.getvalue()
    engine, waits = _engine(), False
    try:
        answer, values = engine.ask({"sql": sql, "parameters": parameters or [], "rows": rows}, data, waiting)
        waits = True
    except _RefusedError:
        waits = True
        raise
    finally:
        if waits and len(_waiting_engines) < _KEPT:
            _waiting_engines.append(engine)
        else:
            engine.end()
    return answer["rows"] if rows else values
