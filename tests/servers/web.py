"""A web server with range requests, for a folder of files, in a thread of this process."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tests.servers.loops import looping

if TYPE_CHECKING:
    import pathlib
    from collections.abc import AsyncIterator, Iterator

    from aiohttp import web


@contextlib.contextmanager
def serving(app: web.Application) -> Iterator[str]:
    """Run an aiohttp application; yield its URL."""
    from aiohttp import web

    @contextlib.asynccontextmanager
    async def server() -> AsyncIterator[str]:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    with looping(server) as url:
        yield url


@contextlib.contextmanager
def folder_server(folder: pathlib.Path) -> Iterator[str]:
    """Serve the files of a folder; yield its URL."""
    from aiohttp import web

    app = web.Application()
    app.router.add_static("/", folder)
    with serving(app) as url:
        yield url
