"""A TCP proxy that loses replies to order: none of it, some bytes of it, or after it was received in full.

It relays bytes between client and server without understanding them.  What the server sends after the client
has spoken is a reply; the plan says how many of its bytes the client gets before the connection breaks.  By
then the server has done what it was asked to do, and the client cannot know.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import urllib.parse
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.servers.loops import listening, looping


class Exchange(NamedTuple):
    """A request that a reply belongs to: its number, and its first bytes."""

    number: int
    head: bytes

    @property
    def method(self) -> str:
        return self.head.partition(b" ")[0].decode("latin-1")

    @property
    def path(self) -> str:
        return urllib.parse.unquote(self.head.split(b" ", 2)[1].decode("latin-1"))


# Bytes of the reply that are let through; None for all.  Called before the request is passed on, and again,
# with `answered`, once the reply begins.  Before, it may also be a reply that the client gets in place of the
# server's, which hears nothing.
Plan = Callable[[Exchange, bool], "int | bytes | None"]
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Proxy:
    """Relays to one server; `plan` may be replaced at any time."""

    def __init__(self, upstream: str) -> None:
        parts = urllib.parse.urlsplit(upstream)
        self._upstream = (parts.hostname, parts.port)
        self.url = ""
        self.plan: Plan = lambda _exchange, _answered: None
        self.delay = 0.0  # seconds by which every reply comes later, as from a bucket far away
        self.exchanges: list[Exchange] = []
        self.lost = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                to_reader, to_writer = await asyncio.open_connection(*self._upstream)
                try:
                    await _Link(self, (reader, writer), (to_reader, to_writer)).run()
                finally:
                    to_writer.close()
        finally:
            # Also where the proxy ends while a client is connected.
            writer.close()


class _Link:
    """One connection; requests are told from replies by which side spoke last."""

    def __init__(self, proxy: Proxy, client: tuple, server: tuple) -> None:
        self._proxy = proxy
        self._client, self._to_client = client
        self._server, self._to_server = server
        self._exchange: Exchange | None = None
        self._answering = True

    async def run(self) -> None:
        sides = [asyncio.ensure_future(self._requests()), asyncio.ensure_future(self._replies())]
        try:
            await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for side in sides:
                side.cancel()
            await asyncio.gather(*sides, return_exceptions=True)

    async def _requests(self) -> None:
        while data := await self._client.read(1 << 16):
            if self._answering:
                self._answering = False
                self._exchange = Exchange(len(self._proxy.exchanges), data[:1000])
                self._proxy.exchanges.append(self._exchange)
                planned = self._proxy.plan(self._exchange, False)
                if isinstance(planned, bytes):
                    self._proxy.lost += 1
                    await self._answer(data, planned)
                    continue
                if planned == -1:
                    # The request itself is lost.
                    self._proxy.lost += 1
                    self._break()
                    return
            self._to_server.write(data)
            await self._to_server.drain()

    async def _answer(self, data: bytes, reply: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        found = _LENGTH.search(head)
        if b"100-continue" in head.lower():
            self._to_client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while found and len(body) < int(found[1]) and (more := await self._client.read(1 << 16)):
            body += more
        self._to_client.write(reply)
        await self._to_client.drain()
        self._answering = True

    async def _replies(self) -> None:
        left: int | None = None
        while data := await self._server.read(1 << 16):
            # "100 Continue" is not a reply: the body of the request is still to come.
            interim = data.startswith(b"HTTP/1.1 100") and data.endswith(b"\r\n\r\n") and len(data) < 100
            if not self._answering and not interim:
                self._answering = True
                assert self._exchange is not None
                cut = self._proxy.plan(self._exchange, True)
                assert not isinstance(cut, bytes)
                left = cut
                if self._proxy.delay:
                    await asyncio.sleep(self._proxy.delay)
            if left is not None:
                part, left = data[:left], left - len(data)
                self._to_client.write(part)
                if left <= 0:
                    self._proxy.lost += 1
                    await self._to_client.drain()
                    self._break()
                    return
                continue
            self._to_client.write(data)
            await self._to_client.drain()

    def _break(self) -> None:
        link = self._to_client.get_extra_info("socket")
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._to_client.transport.abort()


@contextlib.contextmanager
def proxy(upstream: str) -> Iterator[Proxy]:
    """Run a proxy on a loop of its own."""
    relay = Proxy(upstream)
    with looping(lambda: listening(relay.handle)) as relay.url:
        yield relay
