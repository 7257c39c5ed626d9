"""Runs coroutines from synchronous code, on the event loop that fsspec keeps in a thread of its own.

Sharing that loop means one I/O thread per process whatever the number of stores; fsspec makes a new one in a
forked child.  Nothing starts before the first use.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["current_loop", "on_io_thread", "run", "submit"]

T = TypeVar("T")


def current_loop() -> asyncio.AbstractEventLoop:
    """Return this process's I/O loop; it is started when there is none."""
    from fsspec.asyn import get_loop

    loop: asyncio.AbstractEventLoop = get_loop()
    return loop


def on_io_thread() -> bool:
    """Return whether this is the I/O thread, in which no store can be called; a finalizer may run there."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return False
    return running is current_loop()


def submit(work: Coroutine[Any, Any, T]) -> Callable[[], T]:
    """Start a coroutine and return what waits for its result, once; an interrupt of the wait cancels it.

    Raises:
        RuntimeError: called from the I/O thread itself, which would wait for itself.
    """
    loop = current_loop()
    if on_io_thread():
        work.close()
        msg = "a store was called from fsspec's own I/O thread; call it from another thread"
        raise RuntimeError(msg)
    # An error holds the frames that it passed through, and all that their callers hold.  If one of them held
    # the error in turn, by the future, a writer would live until the collector runs, in whatever thread.
    pending = [asyncio.run_coroutine_threadsafe(work, loop)]

    def wait() -> T:
        future = pending.pop()
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            del future

    return wait


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result; see `submit`."""
    return submit(work)()
