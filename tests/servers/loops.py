"""Run a server on an event loop in a thread of its own, and end it so that nothing of it is pending."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def looping(server: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """Enter a server on a new loop; yield what it gives.

    When the block ends the server is left. Then the tasks of its connections that are still there are
    cancelled and waited for: a loop that is closed with a pending task says so when the task is collected,
    in the middle of another test.
    """
    entered: concurrent.futures.Future[T] = concurrent.futures.Future()
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    async def run() -> None:
        try:
            async with server() as value:
                entered.set_result(value)
                await ended.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Connections that were closed are let go in the rounds after.
        for _ in range(3):
            await asyncio.sleep(0)

    def work() -> None:
        try:
            loop.run_until_complete(run())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield entered.result()
    finally:
        with contextlib.suppress(RuntimeError):  # it never began, and its loop is closed
            loop.call_soon_threadsafe(ended.set)
        thread.join()


@contextlib.asynccontextmanager
async def listening(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    tls: ssl.SSLContext | None = None,
):
    """Listen on a free port of the loopback; yield the URL. Connections are left to `looping`."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await handle(reader, writer)
        if tls is not None:  # whose end would wait for the client's
            writer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
