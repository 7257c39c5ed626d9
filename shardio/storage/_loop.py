"""Runs coroutines from synchronous code, on the event loop that fsspec keeps in a thread of its own.

Sharing that loop means one I/O thread per process whatever the number of stores; fsspec makes a new one in a
forked child.  Nothing starts before the first use.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["current_loop", "run", "submit"]

T = TypeVar("T")


def current_loop() -> asyncio.AbstractEventLoop:
    """Return this process's I/O loop; it is started when there is none."""
    from fsspec.asyn import get_loop

    loop: asyncio.AbstractEventLoop = get_loop()
    return loop


def submit(work: Coroutine[Any, Any, T]) -> Callable[[], T]:
    """Start a coroutine and return what waits for its result; an interrupt of the wait cancels it.

    Raises:
        RuntimeError: called from the I/O thread itself, which would wait for itself.
    """
    loop = current_loop()
    try:
        inside = asyncio.get_running_loop() is loop
    except RuntimeError:
        inside = False
    if inside:
        work.close()
        msg = "a store was called from fsspec's own I/O thread; call it from another thread"
        raise RuntimeError(msg)
    future = asyncio.run_coroutine_threadsafe(work, loop)

    def wait() -> T:
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    return wait


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result; see `submit`."""
    return submit(work)()
