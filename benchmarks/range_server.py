"""A read-only object server for measurements: a folder behind S3's GET and HEAD, with latency added to order.

    python benchmarks/range_server.py FOLDER [--latency SECONDS]

It prints its URL and serves until its input is closed; `served` runs it for another benchmark.  Paths are
`/bucket/key`, the bucket a folder; ranges are those of one interval.  Every reply waits `latency` seconds,
as a network would make it wait; nothing else is slowed.  `GET /-/count` tells the number of requests and
bytes so far.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import hashlib
import mmap
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_RANGE = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d*)", re.IGNORECASE)
_TYPES = b"application/octet-stream"
_SMALL = 1 << 20


class Content(NamedTuple):
    """A file's bytes and its ETag."""

    data: memoryview
    etag: bytes


class Server:
    """What all connections share."""

    def __init__(self, folder: Path, latency: float) -> None:
        self.folder = folder
        self.latency = latency
        self.requests = 0
        self.sent = 0

    @functools.cache  # noqa: B019 - one server a process
    def content(self, path: str) -> Content | None:
        """Return a file of the folder, mapped, or None."""
        file = self.folder / path
        if not file.is_file():
            return None
        with file.open("rb") as opened:
            # A map keeps a descriptor, of which there may be fewer than small files.
            small = file.stat().st_size < _SMALL
            data = opened.read() if small else mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        return Content(memoryview(data), hashlib.md5(path.encode()).hexdigest().encode())


class Connection(asyncio.Protocol):
    """HTTP/1.1, one request after another."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each request whose head is complete; none has a body."""
        self._pending += data
        while (end := self._pending.find(b"\r\n\r\n")) >= 0:
            head, self._pending = self._pending[:end], self._pending[end + 4 :]
            latency = self._server.latency
            if latency:
                asyncio.get_running_loop().call_later(latency, self._answer, head)
            else:
                self._answer(head)

    def _answer(self, head: bytes) -> None:
        if self._transport.is_closing():
            return
        server = self._server
        method, target, _ = head.split(b"\r\n", 1)[0].split(b" ")
        path = urllib.parse.unquote(target.partition(b"?")[0].decode()).lstrip("/")
        if path == "-/count":
            self._send(b"200 OK", b"%d %d" % (server.requests, server.sent))
            return
        server.requests += 1
        content = server.content(path)
        if content is None:
            self._send(b"404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>")
            return
        body, status, extra = content.data, b"200 OK", b""
        if match := _RANGE.search(head):
            start, stop = int(match[1]), min(int(match[2] or len(body)) + 1, len(body))
            extra = b"Content-Range: bytes %d-%d/%d\r\n" % (start, stop - 1, len(body))
            body, status = body[start:stop], b"206 Partial Content"
        extra += b'ETag: "%s"\r\nLast-Modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n' % content.etag
        server.sent += len(body)
        self._send(status, body, extra, head=method == b"HEAD")

    def _send(
        self, status: bytes, body: bytes | memoryview, extra: bytes = b"", *, head: bool = False
    ) -> None:
        start = b"HTTP/1.1 %s\r\nContent-Length: %d\r\nContent-Type: %s\r\nAccept-Ranges: bytes\r\n%s\r\n"
        filled = start % (status, len(body), _TYPES, extra)
        if head:
            self._transport.write(filled)
        elif len(body) < 1 << 16:
            self._transport.write(filled + body)
        else:
            self._transport.write(filled)
            self._transport.write(body)


@contextlib.contextmanager
def served(folder: Path, latency: float = 0.0) -> Iterator[str]:
    """Run the server in a process of its own; yield its URL."""
    command = [sys.executable, __file__, str(folder), "--latency", str(latency)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.communicate()


def options(url: str) -> dict[str, Any]:
    """Return the storage options that shardio and s3fs read from a server with, given its address."""
    return {"key": "x", "secret": "y", "endpoint_url": url, "client_kwargs": {"region_name": "us-east-1"}}


def open_dataset(url: str, **more: Any) -> Any:
    """Open a folder, or the dataset `ds` of a server, by its address."""
    import shardio

    if not url.startswith("http"):
        return shardio.open(url, **more)
    return shardio.open("s3://bench/ds", version=1, storage_options=options(url), engine="obstore", **more)


def counted(url: str) -> tuple[int, int]:
    """Return how many requests a server had, and how many bytes it sent."""
    with urllib.request.urlopen(f"{url}/-/count") as reply:
        requests, sent = map(int, reply.read().split())
    return requests, sent


async def serve(folder: Path, latency: float) -> None:
    """Serve until standard input ends."""
    shared = Server(folder, latency)
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: Connection(shared), "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    """Parse the arguments and serve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds that each reply waits")
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(arguments.folder, arguments.latency))


if __name__ == "__main__":
    main()
