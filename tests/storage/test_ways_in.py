"""Ways to a bucket beside credentials: anonymous, at the reader's cost, by signed addresses, by a proxy.

And a single writer, who needs no condition. The server answers badly to all of them now and then.
"""

from __future__ import annotations

import itertools
import pathlib
import random
from collections.abc import Iterator
from typing import Any

import pytest

import shardio
from shardio.errors import CommitOutcomeUnknownError
from shardio.storage import connect
from tests.servers.faults import FaultServer, Request, fault_server
from tests.servers.s3 import options_for

RECORDS = [b"wren", b"robin"]
NOWHERE = "http://no.such.host.invalid"  # a proxy alone leads there


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultServer]:
    folder = tmp_path_factory.mktemp("bucket")
    with shardio.DatasetWriter(folder / "ds") as out:
        out.write_many(RECORDS)
    with fault_server() as server:
        server.load(folder, "/bucket")
        yield server


def s3(url: str, **more: Any) -> dict[str, Any]:
    return {"url": "s3://bucket/ds", "storage_options": {**options_for(url), **more}}


def _shard(server: FaultServer) -> str:
    return next(path for path in server.objects if path.endswith(".tfrecord"))


# How a dataset or a shard is opened, and what every request has to have.
WAYS = {
    "anonymous": (
        lambda server: s3(server.url, anon=True, key=None, secret=None),
        lambda request: "authorization" not in request.headers,
    ),
    "requester pays": (
        lambda server: s3(server.url, requester_pays=True),
        lambda request: request.headers["x-amz-request-payer"] == "requester",
    ),
    "a signed folder": (
        lambda server: {"url": f"{server.url}/bucket/ds?sv=1&sig=a%2Fb"},
        lambda request: request.query == {"sv": "1", "sig": "a/b"},
    ),
    "a signed shard": (
        lambda server: {"url": f"{server.url}{_shard(server)}?sv=1&sig=a%2Fb"},
        lambda request: request.query == {"sv": "1", "sig": "a/b"},
    ),
    "a proxy to S3": (
        lambda _: s3(NOWHERE),
        lambda request: request.headers["host"] == NOWHERE[7:] and "authorization" in request.headers,
    ),
    "a proxy to a web server": (
        lambda _: {"url": f"{NOWHERE}/bucket/ds"},
        lambda request: request.headers["host"] == NOWHERE[7:],
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*is read with fsspec instead of obstore")
@pytest.mark.parametrize("engine", ["fsspec", None])
@pytest.mark.parametrize("way", WAYS)
def test_all_requests_go_this_way(
    way: str, engine: str | None, server: FaultServer, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    for name in ("NO_PROXY", "no_proxy", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    if "proxy" in way:
        monkeypatch.setenv("HTTP_PROXY", server.url)
        monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    server.log.clear()
    faults = itertools.cycle(
        ["503", None, None, "reset before", None, None, "short body, right length", None]
    )
    server.plan = lambda _: next(faults)
    how, holds = WAYS[way]
    given = how(server)
    read = shardio.open_shard if "shard" in way else shardio.open
    assert list(read(**given, engine=engine)) == RECORDS
    requests: list[Request] = [request for request, _ in server.log]
    assert len(requests) > 3
    assert not [(each.method, each.path, each.headers) for each in requests if not holds(each)]


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_buckets_of_one_name_at_two_endpoints_are_kept_apart(engine: str) -> None:
    with fault_server() as one, fault_server() as two:
        stores = [
            connect("s3://bucket/root", storage_options=options_for(each.url), engine=engine)
            for each in (one, two)
        ]
        for number, store in enumerate(stores):
            assert store.put_if_absent("a", b"%d" % number * 9)
        for _ in range(2):
            for number, store in enumerate(stores):
                assert bytes(store.open("a", size=9).read(0, 9)) == b"%d" % number * 9
                assert store.get("a", max_bytes=9) == b"%d" % number * 9


@pytest.mark.slow
def test_a_single_writer_loses_and_doubles_nothing_when_replies_are_lost() -> None:
    """P2: on a store that knows no condition, of each ten requests and replies three are lost."""
    with fault_server() as server:
        server.condition_status = 501
        dice = random.Random(5)
        faults = ["reset before", "reset after", "503 after"]
        server.plan = lambda request: (
            dice.choice(faults) if request.method == "PUT" and dice.random() < 0.3 else None
        )
        known, in_doubt = [], []
        for n in range(10):
            record = b"%d" % n
            try:
                with shardio.DatasetWriter(**s3(server.url), mode="append", single_writer=True) as out:
                    out.write(record)
                known.append(record)
            except CommitOutcomeUnknownError:
                in_doubt.append(record)
        server.plan = lambda _: None
        ds = shardio.open(**s3(server.url))
        found = list(ds)
        assert [each for each in found if each not in in_doubt] == known
        assert len(set(found)) == len(found) == ds.version
        assert len(known) > 5
        assert shardio.verify(shardio.Address(**s3(server.url))).ok
