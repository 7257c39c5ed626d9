"""Uploads that something else acknowledges: a gateway, a login page, a proxy that is configured wrongly.

What is acknowledged is there, whole, whichever request of an upload was answered in the service's place.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import boto3
import pytest
from azure.storage.blob._shared.models import StorageConfiguration

import shardio
from shardio.errors import CommitOutcomeUnknownError, ShardioError, StorageError
from shardio.storage import connect
from tests.servers import azure, gcs, s3
from tests.servers.proxy import Exchange, Proxy, proxy

SMALL = b"a small object " * 7
PAGE = b"<html>Please sign in</html>"
BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"


class Place(NamedTuple):
    """A server, and how it is reached by another address."""

    endpoint: str
    url: str
    options: Callable[[str], dict[str, Any]]
    status: bytes
    part_bytes: int = 256 << 10


@pytest.fixture(
    scope="module",
    params=["s3", *(pytest.param(cloud, marks=pytest.mark.slow) for cloud in ("gcs", "azure"))],
)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    root = uuid.uuid4().hex
    if request.param == "s3":
        with s3.moto() as endpoint:
            # Parts of the smallest size that S3 takes.
            url = f"s3://{s3.make_bucket(endpoint)}/{root}"
            yield Place(endpoint, url, s3.options_for, b"200 OK", 5 << 20)
        return
    endpoint = request.getfixturevalue("gcs_endpoint" if request.param == "gcs" else "azurite_endpoint")
    if request.param == "gcs":
        yield Place(endpoint, f"gs://{gcs.BUCKET}/{root}", gcs.options_for, b"200 OK")
    else:
        container = azure.make_container(endpoint)
        # Its client takes no other answer to an upload than this.
        yield Place(endpoint, f"az://{container}/{root}", azure.options_for, b"201 Created")


@pytest.fixture
def relay(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    monkeypatch.setattr("shardio.storage._client.PART_BYTES", place.part_bytes)
    # Azure's client has sizes of its own: 64 MiB in one request, parts of 4 MiB.
    usual = StorageConfiguration.__init__
    sizes = {"max_single_put_size": place.part_bytes, "max_block_size": place.part_bytes}
    monkeypatch.setattr(StorageConfiguration, "__init__", lambda it, **given: usual(it, **sizes, **given))
    with proxy(re.match(r"http://[^/]+", place.endpoint)[0]) as relay:
        yield relay


def through(place: Place, relay: Proxy) -> dict[str, Any]:
    origin = re.match(r"http://[^/]+", place.endpoint)[0]
    return place.options(place.endpoint.replace(origin, relay.url))


def page(place: Place, headers: bytes) -> bytes:
    length = b"Content-Length: %d\r\n" % len(PAGE)
    return (
        b"HTTP/1.1 " + place.status + b"\r\nContent-Type: text/html\r\n" + headers + length + b"\r\n" + PAGE
    )


HEADERS = {"no ETag": b"", "ETag": b'ETag: "page"\r\n'}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("headers", HEADERS)
@pytest.mark.parametrize("how", ["one request", "parts"])
@pytest.mark.parametrize("which", [0, 1, 2, "all", "all, and looks"])
def test_what_was_acknowledged_is_there(place, relay, tmp_path, headers, how, which) -> None:
    """Of the requests of an upload, one by one and all of them, what is answered with a page counts for
    nothing; so it is where the looks at the object are answered so, too.
    """
    store = connect(f"{place.url}/{uuid.uuid4().hex}", storage_options=through(place, relay))
    direct = connect(store.url, storage_options=place.options(place.endpoint))
    assert store.put_if_absent("data/before", b"the probe is done")
    content = bytes(range(256)) * (place.part_bytes * 5 // 512) if how == "parts" else SMALL
    file = tmp_path / "content"
    file.write_bytes(content)
    sent = 0

    def portal(exchange: Exchange, answered: bool) -> bytes | None:
        nonlocal sent
        write = exchange.method in {"PUT", "POST"}
        if answered or not (write or which == "all, and looks"):
            return None
        sent += write
        return page(place, HEADERS[headers]) if which in {"all", "all, and looks", sent - 1} else None

    relay.plan = portal
    try:
        assert store.put_if_absent("data/key", file)
    except StorageError:
        assert relay.lost
    else:
        assert direct.get("data/key", max_bytes=len(content)) == content
        assert which not in {"all", "all, and looks"}
    relay.plan = lambda _exchange, _answered: None
    there = direct.head("data/key") is not None
    assert store.put_if_absent("data/key", file) is not there
    assert direct.get("data/key", max_bytes=len(content)) == content


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
@pytest.mark.parametrize("lost", ["request", "head of the reply", "body"])
def test_what_is_cut_off_on_its_way_is_read_again(place, relay, lost, engine) -> None:
    """Of each service, by each client that it has: every other reply breaks off somewhere."""
    if engine == "obstore" and place.url.startswith("gs:"):
        pytest.skip("obstore cannot use another endpoint for GCS")
    root = f"{place.url}/{uuid.uuid4().hex}"
    content = bytes(range(256)) * 1000
    assert connect(root, storage_options=place.options(place.endpoint)).put_if_absent("a", content)
    store = connect(root, storage_options=through(place, relay), engine=engine)
    file = store.open("a", size=len(content))
    file.read(0, 1)
    cut = {"request": -1, "head of the reply": 30, "body": 100_000}[lost]
    relay.plan = lambda exchange, answered: (
        cut if exchange.number % 2 and exchange.method == "GET" and answered == (cut > 0) else None
    )
    for start in range(0, 50, 10):
        assert bytes(file.read(start, 250_000)) == content[start:250_000]
        assert store.get("a", max_bytes=len(content)) == content
    assert relay.lost


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("place", ["s3"], indirect=True)
@pytest.mark.parametrize("lost", ["request", "reply", "busy"])
def test_a_part_that_is_lost_is_sent_again_alone(place, relay, tmp_path, lost) -> None:
    """Of a shard of a hundred parts some are lost; to begin anew each time would never end."""
    store = connect(f"{place.url}/{uuid.uuid4().hex}", storage_options=through(place, relay))
    assert store.put_if_absent("before", b"the probe is done")
    file = tmp_path / "content"
    file.write_bytes(bytes(range(256)) * (place.part_bytes * 5 // 512))
    failed: set[str] = set()
    begun = 0

    def plan(exchange: Exchange, answered: bool) -> int | bytes | None:
        nonlocal begun
        begun += exchange.path.endswith("?uploads") and not answered
        part = re.search(r"partNumber=\d+", exchange.path)
        if part is None or part[0] in failed or answered != (lost == "reply"):
            return None
        failed.add(part[0])
        return {"request": -1, "reply": 10, "busy": BUSY}[lost]

    relay.plan = plan
    assert store.put_if_absent("data/key", file)
    assert (len(failed), begun) == (3, 1)
    assert store.get("data/key", max_bytes=1 << 30) == file.read_bytes()


@pytest.mark.parametrize("place", ["s3"], indirect=True)
@pytest.mark.slow
def test_an_upload_in_parts_that_others_end_begins_anew(place, relay, tmp_path) -> None:
    """A bucket's rule for old uploads, or a collection elsewhere, takes away the parts that are there."""
    store = connect(f"{place.url}/{uuid.uuid4().hex}", storage_options=through(place, relay))
    direct = connect(store.url, storage_options=place.options(place.endpoint))
    file = tmp_path / "content"
    file.write_bytes(bytes(range(256)) * (place.part_bytes * 5 // 512))
    ended: list[Any] = []
    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    client = boto3.client("s3", endpoint_url=place.endpoint, region_name="us-east-1", **keys)
    bucket = place.url.split("/")[2]

    def ending(exchange: Exchange, answered: bool) -> None:
        if "partNumber=2" in exchange.path and not answered and not ended:
            for upload in client.list_multipart_uploads(Bucket=bucket)["Uploads"]:
                client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
                ended.append(upload)

    relay.plan = ending
    assert store.put_if_absent("data/key", file)
    assert ended
    assert direct.get("data/key", max_bytes=1 << 30) == file.read_bytes()
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)
    client.close()


def append(url: str, how: dict[str, Any], **options: Any) -> None:
    with shardio.DatasetWriter(url, {"n": "int64"}, mode="append", **how, **options) as out:
        out.write({"n": 1})


# What changes of a dataset store, by its key, and the change.
CHANGES: dict[str, tuple[str, Callable[[str, dict[str, Any]], Any]]] = {
    "shard": (r"\.tfrecord$", append),
    "index": (r"\.shardidx$", append),
    "list": ("/lists/", append),
    "manifest": (r"\.manifest$", append),
    "receipt": (r"\.receipt$", lambda url, how: append(url, how, session="run7")),
    "table": (
        r"\.parquet$",
        lambda url, how: shardio.build_table(shardio.Address(url, **how), ["n"], workers=1),
    ),
    "keys": (
        "_shardio/keys/",
        lambda url, how: shardio.build_keys(shardio.Address(url, **how), "n", workers=1),
    ),
    "deleted rows": (r"\.rows$", lambda url, how: shardio.delete(shardio.Address(url, **how), [0])),
    "tag": (r"\.manifest$", lambda url, how: shardio.tag(shardio.Address(url, **how), "new")),
}


@pytest.mark.slow
@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", CHANGES)
def test_each_kind_of_object(place, relay, kind) -> None:
    """P2: what names an object is not stored where the object was not; later the same change goes through."""
    url, how = f"{place.url}/{uuid.uuid4().hex}", {"storage_options": place.options(place.endpoint)}
    for _ in range(2):
        append(url, how)
    pattern, change = CHANGES[kind]

    def portal(exchange: Exchange, answered: bool) -> bytes | None:
        write = exchange.method in {"PUT", "POST"} and not answered
        target = exchange.path.partition("&uploadType")[0].split("?")
        names = [target[0], *re.findall(r"name=([^&]+)", exchange.path)]
        return page(place, b"") if write and any(re.search(pattern, name) for name in names) else None

    with pytest.raises((StorageError, CommitOutcomeUnknownError)) as caught:
        relay.plan = portal
        change(url, {"storage_options": through(place, relay)})
    assert relay.lost
    assert isinstance(caught.value, ShardioError)
    assert len(shardio.open(url, **how)) == 2
    assert shardio.verify(shardio.Address(url, **how)).ok
    change(url, how)
    assert shardio.verify(shardio.Address(url, **how)).ok
    assert shardio.log(shardio.Address(url, **how))[0].number == 3
