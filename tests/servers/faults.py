"""An object server that misbehaves to order: S3 and plain HTTP on one port, with a plan of faults.

It speaks HTTP/1.1 by hand, so that it can cut a body anywhere, state wrong lengths, or never answer.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import datetime
import functools
import hashlib
import html
import ipaddress
import pathlib
import random
import re
import socket
import ssl
import struct
import urllib.parse
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

from tests.servers.loops import listening, looping

READ_FAULTS = [
    "503",
    "500",
    "429",
    "slowdown",
    "reset",
    "short body, right length",
    "short body, short length",
    "short body, short length and range",
    "ignored range",
    "wrong range",
    "no range",
    "stale",
    "stale, other size",
    "trickle",
    "never",
    "redirect nowhere",
    "redirect",
    "expired",
    "portal",
]


@dataclasses.dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    number: int
    query: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def range(self) -> tuple[int, int] | None:
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        return None if match is None else (int(match[1]), int(match[2]) + 1)


Plan = Callable[[Request], str | None]


class FaultServer:
    """Objects by path, and what to do wrong.

    Attributes:
        objects: content by path ("/bucket/key").
        stale: older content by path, for the faults of that name.
        plan: chooses the fault of each request; None for none.
        buckets: those that exist, or None for any.
        looks_first: what a creation waits for between looking whether an object exists and writing it; a
            proper store does both in one step.
        condition_status: the answer to `If-None-Match`, where the server does not know it.
        token: session token that is valid, or None where none is asked for.
        seen: requests counted by method.
        log: all requests, with the fault chosen.
        silent: called where an answer, or the rest of it, does not come.
        sent: bytes of endless bodies.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.stale: dict[str, bytes] = {}
        self.marks: dict[str, dict[str, str]] = {}
        self.keeps_metadata = True
        self.buckets: set[str] | None = None
        self.looks_first: Callable[[Request], Awaitable[None]] | None = None
        self.condition_status = 412
        self.plan: Plan = lambda _: None
        self.token: str | None = None
        self.silent: Callable[[], None] = lambda: None
        self.seen: Counter[str] = Counter()
        self.log: list[tuple[Request, str | None]] = []
        self.url = ""
        self.sent = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                request = await self._read(reader, writer)
                fault = self.plan(request)
                self.seen[request.method] += 1
                self.log.append((request, fault))
                if not await self._answer(request, fault, writer):
                    break
        with contextlib.suppress(ConnectionError):
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request:
        first = await reader.readexactly(1)
        if first == b"\x16":
            # The beginning of TLS, which servers of HTTP answer as anything else that is not a request.
            await _send(writer, 400, b"")
            raise ConnectionResetError
        head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {
            name.lower(): value.strip() for name, _, value in (h.partition(":") for h in head[1:] if h)
        }
        body = b""
        if headers.get("expect") == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if headers.get("transfer-encoding") == "chunked":
            while size := int((await reader.readline()).split(b";")[0], 16):
                body += (await reader.readexactly(size + 2))[:-2]
            while (await reader.readline()).strip():
                pass
        elif "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        if "aws-chunked" in headers.get("content-encoding", ""):
            body = _unchunk(body)
        if target.startswith("http://"):  # asked as a proxy
            target = "/" + target.split("/", 3)[3]
        path, _, query = target.partition("?")
        asked = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        return Request(method, urllib.parse.unquote(path), headers, body, len(self.log), asked)

    def load(self, folder: pathlib.Path, root: str) -> None:
        """Take the files of a folder as objects under a root."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.objects[f"{root}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()

    async def _answer(self, request: Request, fault: str | None, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False to close the connection."""
        simple = {
            "503": (503, "ServiceUnavailable"),
            "500": (500, "InternalError"),
            "429": (429, "TooManyRequests"),
            "slowdown": (503, "SlowDown"),
            "redirect nowhere": (301, "PermanentRedirect"),
            "expired": (400, "ExpiredToken"),
            "403": (403, "AccessDenied"),
            "skewed": (403, "RequestTimeTooSkewed"),
            "409": (409, "ConditionalRequestConflict"),
            "412": (412, "PreconditionFailed"),
        }
        if self.token is not None and self.token != request.headers.get("x-amz-security-token"):
            fault = "expired"
        if fault == "never":
            self.silent()
            await asyncio.sleep(60)
            return False
        if fault in {"reset before", "garbled"}:
            if fault == "reset before":
                return _reset(writer)
            writer.write(b"\x00\xff\x13 not HTTP\r\n\r\n")
            await writer.drain()
            return False
        if fault in simple:
            status, code = simple[fault]
            extra = {"Retry-After": "7"} if fault == "429" else {}
            return await _send(writer, status, _error(code), extra, head=request.method == "HEAD")
        if fault == "redirect":
            return await _send(writer, 307, b"", {"Location": self.url + urllib.parse.quote(request.path)})
        if fault == "portal":
            return await _send(writer, 200, b"<html>Please log in</html>", {"Content-Type": "text/html"})
        bucket = request.path.split("/")[1]
        if self.buckets is not None and bucket not in self.buckets:
            return await _send(writer, 404, _error("NoSuchBucket"), head=request.method == "HEAD")
        if request.method == "GET" and "list-type" in request.query:
            return await _send(writer, 200, self._listing(bucket, request.query.get("prefix", "")))
        if request.method == "PUT":
            return await self._put(request, fault, writer)
        answer = self._delete if request.method == "DELETE" else self._get
        return await answer(request, fault, writer)

    def _listing(self, bucket: str, prefix: str) -> bytes:
        found = sorted(path for path in self.objects if path.startswith(f"/{bucket}/{prefix}"))
        entries = "".join(
            f"<Contents><Key>{html.escape(path[len(bucket) + 2 :])}</Key>"
            f"<Size>{len(self.objects[path])}</Size><ETag>{html.escape(_etag(self.objects[path]))}</ETag></Contents>"
            for path in found
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()

    async def _put(self, request: Request, fault: str | None, writer: asyncio.StreamWriter) -> bool:
        if "if-none-match" in request.headers:
            if self.condition_status != 412:
                return await _send(writer, self.condition_status, _error("NotImplemented"))
            if request.path in self.objects:
                return await _send(writer, 412, _error("PreconditionFailed"))
            if self.looks_first is not None:
                await self.looks_first(request)
        self.objects[request.path] = request.body
        self.marks[request.path] = {
            name: value
            for name, value in request.headers.items()
            if name.startswith("x-amz-meta-") and self.keeps_metadata
        }
        if fault == "reset after":
            return _reset(writer)
        if fault == "503 after":
            return await _send(writer, 503, _error("ServiceUnavailable"))
        return await _send(writer, 200, b"", {"ETag": _etag(request.body)})

    async def _delete(self, request: Request, _: str | None, writer: asyncio.StreamWriter) -> bool:
        self.objects.pop(request.path, None)
        return await _send(writer, 204, b"")

    async def _get(self, request: Request, fault: str | None, writer: asyncio.StreamWriter) -> bool:
        content = self.objects.get(request.path)
        if content is None:
            return await _send(writer, 404, _error("NoSuchKey"), head=request.method == "HEAD")
        if fault in {"stale", "stale, other size"}:
            content = self.stale[request.path]
            content = content if fault == "stale" else content + b"more"
        total, tag = len(content), {"ETag": _etag(content), "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT"}
        if request.method == "HEAD":
            tag |= self.marks.get(request.path, {})
            return await _send(writer, 200, content, tag, head=True)
        asked = request.range
        if asked is None or fault == "ignored range":
            return await _send(writer, 200, content, tag)
        start, stop = asked[0], min(asked[1], total)
        if start >= total or fault == "416":
            return await _send(writer, 416, _error("InvalidRange"), {"Content-Range": f"bytes */{total}"})
        if fault == "wrong range":
            shift = 1 if stop < total else -1
            start, stop = max(0, start + shift), max(1, stop + shift)
        body = content[start:stop]
        body = _hurt(body, fault, tag)
        claimed = f"bytes {start}-{stop - 1}/{total}"
        if fault == "short body, short length":
            body = body[: len(body) // 2]
        elif fault == "short body, short length and range":
            body = body[: len(body) // 2]
            claimed = f"bytes {start}-{start + max(1, len(body)) - 1}/{total}"
        headers = tag if fault == "no range" else {**tag, "Content-Range": claimed}
        if fault == "endless":
            return await self._send_endlessly(headers, body, writer)
        head = _head(206, len(body), headers)
        if fault in {"short body, right length", "reset", "trickle"}:
            writer.write(head + body[: len(body) // 2])
            await writer.drain()
            if fault == "trickle":
                self.silent()
                for k in range(len(body) // 2, len(body)):
                    writer.write(body[k : k + 1])
                    await writer.drain()
                    await asyncio.sleep(0.05)
            elif fault == "reset":
                return _reset(writer)
            return False
        writer.write(head + body)
        await writer.drain()
        return True

    async def _send_endlessly(
        self, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> bool:
        """Send a body whose length is not told, and a gigabyte behind it."""
        lines = ["HTTP/1.1 206 X", "Transfer-Encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        for part in (body, *[bytes(1 << 20)] * 1000):
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await writer.drain()
            self.sent += len(part)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def random_faults(self, fault: str, share: float, *, seed: int = 0) -> None:
        """Let this share of requests for data have the fault; requests about the store go well."""
        chance = random.Random(seed)
        self.plan = lambda r: fault if r.method == "GET" and r.range and chance.random() < share else None

    def next_faults(self, *faults: str | None, method: str = "GET") -> None:
        """Let the next requests of a method have these faults, then none."""
        waiting = list(faults)
        self.plan = lambda r: waiting.pop(0) if r.method == method and waiting else None


def _unchunk(body: bytes) -> bytes:
    """Undo the framing in which botocore sends a body with a trailing checksum."""
    plain = b""
    while body:
        line, _, body = body.partition(b"\r\n")
        size = int(line.split(b";")[0], 16)
        if size == 0:
            break
        plain, body = plain + body[:size], body[size + 2 :]
    return plain


def _hurt(body: bytes, fault: str | None, headers: dict[str, str]) -> bytes:
    """Damage a body. All claims are true, and the bytes are not; what only checksums notice."""
    if fault == "damaged, with a checksum":
        headers["x-amz-checksum-crc32"] = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
    if fault in {"damaged", "damaged, with a checksum"}:
        return bytes([body[0] ^ 1]) + body[1:]
    return body[:-1] + bytes([body[-1] ^ 1]) if fault == "damaged at its end" else body


@functools.lru_cache(64)
def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


def _error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>to order</Message></Error>".encode()


def _head(status: int, length: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def _send(
    writer: asyncio.StreamWriter,
    status: int,
    body: bytes,
    headers: dict[str, str] | None = None,
    *,
    head: bool = False,
) -> bool:
    start = _head(status, len(body), {"Content-Type": "application/xml", **(headers or {})})
    writer.write(start + (b"" if head else body))
    await writer.drain()
    return True


def _reset(writer: asyncio.StreamWriter) -> bool:
    link = writer.get_extra_info("socket")
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False


@contextlib.contextmanager
def fault_server(certificate: pathlib.Path | None = None) -> Iterator[FaultServer]:
    """Run a fault server on a loop of its own, by HTTPS where a certificate is given, with its key."""
    server, tls = FaultServer(), None
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
    with looping(lambda: listening(server.handle, tls)) as server.url:
        yield server


def self_signed(path: pathlib.Path) -> pathlib.Path:
    """Write a self-signed certificate of 127.0.0.1, with its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "shardio")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(1)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - day).not_valid_after(now + day)
    made = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    form = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(form, *plain) + made.public_bytes(form))
    return path
