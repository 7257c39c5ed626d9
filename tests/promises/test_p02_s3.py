"""P2 on S3: an acknowledged commit is never lost and never applied twice."""

from __future__ import annotations

import random
import re

import pytest

import shardio
from shardio.errors import CommitOutcomeUnknownError, StorageError
from tests.promises.appends import append_at_once, check_none_lost_or_doubled
from tests.promises.places import fresh
from tests.servers import waits
from tests.servers.proxy import Exchange, proxy


class Losing:
    """Loses a share of the replies: none of it comes through, or some bytes; or the request is lost."""

    def __init__(self, seed: int, share: float = 0.3) -> None:
        self._random = random.Random(seed)
        self._share = share

    def __call__(self, exchange: Exchange, answered: bool) -> int | None:
        if not answered:
            return -1 if self._random.random() < self._share / 3 else None
        return self._random.choice([0, 1, 20, 150]) if self._random.random() < self._share else None


@pytest.mark.slow
def test_no_commit_is_lost_or_doubled_when_replies_are(s3, tmp_path, monkeypatch, long):
    """P2: a proxy that drops 30 % of the replies; 8 writers x many appends; exact multiset of records."""
    waits.shorten(monkeypatch)
    url = fresh("s3", tmp_path)
    shardio.DatasetWriter(url).close()
    with proxy(s3) as relay:
        relay.plan = Losing(seed=7)
        with monkeypatch.context() as through:
            through.setenv("AWS_ENDPOINT_URL", relay.url)
            appended = append_at_once(url, rounds=20 if long else 2)
        assert relay.lost > 50
    check_none_lost_or_doubled(url, *appended)


PAGE = b"<html>Please sign in</html>"
PORTAL = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n%sContent-Length: %d\r\n\r\n%s"
# What an append under a session stores, and by what its key is known.
KINDS = {
    "shard": r"\.tfrecord$",
    "index": r"\.shardidx$",
    "list": "/lists/",
    "manifest": "/0+2[.]manifest$",
    "receipt": r"\.receipt$",
}


@pytest.mark.slow
@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("methods", "etag"),
    [({"PUT"}, b""), ({"PUT"}, b'ETag: "page"\r\n'), ({"PUT", "HEAD", "GET"}, b'ETag: "page"\r\n')],
    ids=["puts", "puts with ETag", "everything"],
)
def test_what_something_else_acknowledged_is_not_there(s3, tmp_path, monkeypatch, kind, etag, methods):
    """P2: a gateway answers in the place of the service, with a page; what names the object is not stored."""
    waits.shorten(monkeypatch)
    url = fresh("s3", tmp_path)
    with shardio.DatasetWriter(url) as out:
        out.write(b"first")
    with proxy(s3) as relay:

        def portal(exchange: Exchange, answered: bool) -> bytes | None:
            path = exchange.path.partition("?")[0]
            mine = exchange.method in methods and re.search(KINDS[kind], path) and not answered
            return PORTAL % (etag, len(PAGE), PAGE) if mine else None

        with monkeypatch.context() as through:
            through.setenv("AWS_ENDPOINT_URL", relay.url)
            writer = shardio.DatasetWriter(url, mode="append", session="run7")
            relay.plan = portal
            with pytest.raises((StorageError, CommitOutcomeUnknownError)), writer as out:
                out.write(b"second")
        assert relay.lost
    assert list(shardio.open(url)) == [b"first"]
    assert shardio.verify(url).ok
    # The same write, once the way is free.
    with shardio.DatasetWriter(url, mode="append", session="run7") as out:
        out.write(b"second")
    assert list(shardio.open(url)) == [b"first", b"second"]
