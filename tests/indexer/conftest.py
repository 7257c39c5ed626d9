"""Buckets for the tests of adoption: an S3 server, and one that anyone may read and no one may write."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.web import serving


@pytest.fixture
def read_only_endpoint(moto_endpoint: str) -> Iterator[str]:
    """The same buckets, as a public data set shows them: read by anyone, written by no one."""
    import aiohttp
    from aiohttp import web

    async def forward(request: web.Request) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            body = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            return web.Response(status=403, text=body, content_type="application/xml")
        headers = {name: value for name, value in request.headers.items() if name.lower() == "range"}
        # What is public needs no signature; the server behind wants a name all the same.
        headers["Authorization"] = "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request"
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(request.method, moto_endpoint + request.raw_path, headers=headers) as reply,
        ):
            kept = {"etag", "content-range", "content-type", "last-modified", "accept-ranges"}
            answer = {name: value for name, value in reply.headers.items() if name.lower() in kept}
            if request.method == "HEAD":
                answer["Content-Length"] = reply.headers["Content-Length"]
            return web.Response(status=reply.status, body=await reply.read(), headers=answer)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", forward)
    with serving(app) as url:
        yield url
