"""What cannot be reached, or not be asked, says so in its own words: soon, once, and with advice.

Time passes in a clock of the test; what is counted is requests, waits and connections.
"""

from __future__ import annotations

import importlib.util
import pathlib
import socket
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import fsspec
import pytest

import shardio
from shardio.cli import main
from shardio.errors import NotFoundError, ShardioError, StorageError
from shardio.storage import (
    CannotListError,
    DeniedError,
    MissingBucketError,
    UnknownOutcomeError,
    connect,
    connect_folder,
)
from tests.servers.azure import options_for as azure_options
from tests.servers.faults import FaultServer, Request, fault_server, self_signed
from tests.servers.gcs import options_for as gcs_options
from tests.servers.processes import held_port
from tests.servers.s3 import options_for
from tests.suites.errors import refused

CLIENTS = ["s3 fsspec", "s3 obstore", "http fsspec", "http obstore"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("bucket") / "ds"
    for mode in ("create", "append"):
        with shardio.DatasetWriter(root, mode=mode) as out:
            out.write(b"wren")
    return root


@pytest.fixture
def server(running_server: FaultServer, dataset: pathlib.Path) -> FaultServer:
    running_server.objects.clear()
    running_server.load(dataset, "/bucket/ds")
    running_server.plan = lambda _: None
    running_server.buckets = None
    running_server.log.clear()
    return running_server


@pytest.fixture(scope="module")
def secure(dataset: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a server by HTTPS, and its self-signed certificate."""
    certificate = self_signed(tmp_path_factory.mktemp("tls") / "certificate.pem")
    with fault_server(certificate) as server:
        server.load(dataset, "/bucket/ds")
        yield server.url, str(certificate)


def place(client: str, url: str) -> dict[str, Any]:
    """Return what `shardio.open` takes for a dataset behind this address."""
    protocol, engine = client.split()
    if protocol == "http":
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=1, sock_read=1)
        options: dict[str, Any] = {"client_kwargs": {"timeout": timeout}}
        return {"url": f"{url}/bucket/ds", "storage_options": options, "engine": engine}
    config = {"read_timeout": 1, "connect_timeout": 1}
    options = options_for(url, config_kwargs=config)
    return {"url": "s3://bucket/ds", "storage_options": options, "engine": engine}


def denied_url(client: str, server: FaultServer) -> str:
    """Return what an error names where nothing may be read or listed: a web server denies the one object."""
    return f"{server.url}/bucket/ds/_shardio/latest" if client.startswith("http") else "s3://bucket/ds"


def verify(url: str, *, version: int | None = None, **place: Any) -> object:
    return shardio.verify(shardio.Address(url, **place), version=version)


LOOKS: list[Callable[..., object]] = [shardio.open, verify]


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__)
@pytest.mark.parametrize("client", CLIENTS)
class TestUnreachable:
    @pytest.mark.sampled(2)
    def test_a_port_where_nothing_listens(self, client: str, look: Any) -> None:
        failed = pytest.raises(StorageError, match=r"connection failed .*[Cc]onnect.*check the network")
        with held_port() as port, failed:
            look(**place(client, f"http://127.0.0.1:{port}"))

    @pytest.mark.sampled(3)
    def test_a_host_of_no_such_name(self, client: str, look: Any) -> None:
        with pytest.raises(StorageError, match=r"connection failed .*no\.such\.host\.invalid"):
            look(**place(client, "http://no.such.host.invalid"))

    @pytest.mark.sampled(4)
    @pytest.mark.slow
    def test_a_server_that_says_nothing(self, client: str, look: Any, server: FaultServer) -> None:
        server.plan = lambda _: "never"
        with pytest.raises(StorageError, match="check the network"):
            look(**place(client, server.url))
        assert len(server.log) <= 10

    @pytest.mark.sampled(2)
    def test_a_server_without_tls(self, client: str, look: Any, server: FaultServer) -> None:
        with pytest.raises(StorageError, match=r"no secure connection .*https or http"):
            look(**place(client, server.url.replace("http:", "https:")))

    @pytest.mark.sampled(2)
    def test_a_certificate_that_does_not_hold(self, client: str, look: Any, secure: tuple[str, str]) -> None:
        with pytest.raises(StorageError, match=r"no secure connection .*check the certificate"):
            look(**place(client, secure[0]))

    @pytest.mark.sampled(2)
    def test_a_refusal(self, client: str, look: Any, server: FaultServer) -> None:
        """The first reply settles it: no wait, and nothing is asked twice."""
        server.plan = lambda _: "skewed"
        with pytest.raises(StorageError, match=r"clock.*RequestTimeTooSkewed.*NTP"):
            look(**place(client, server.url))
        server.plan = lambda _: "expired"
        with pytest.raises(StorageError, match=r"credentials have expired.*renew"):
            look(**place(client, server.url))
        server.plan = lambda _: "403"
        with pytest.raises(DeniedError) as denied:
            look(**place(client, server.url))
        assert denied.value.url == denied_url(client, server)
        assert len(server.log) <= 8

    @pytest.mark.slow
    def test_an_outage_of_a_server_that_answers_is_waited_for_once(
        self, client: str, look: Any, server: FaultServer
    ) -> None:
        server.plan = lambda _: "503"
        with pytest.raises(StorageError, match=r"overloaded.*try again later"):
            look(**place(client, server.url))

    @pytest.mark.sampled(2)
    def test_nothing_there(self, client: str, look: Any, server: FaultServer) -> None:
        """404 is told at once, on HTTP with what was looked for."""
        server.objects.clear()
        given = place(client, server.url)
        error: type[ShardioError] = CannotListError if client.startswith("http") else NotFoundError
        with pytest.raises(error, match=r"_shardio/latest .*name the version|no shardio dataset|neither"):
            look(**given)
            assert len(server.log) <= 4

    @pytest.mark.sampled(6)
    def test_what_may_not_be_listed_is_forbidden_when_absent(
        self, client: str, look: Any, server: FaultServer
    ) -> None:
        """S3 without s3:ListBucket, and what is before it: the hint or a version suffices."""
        server.plan = lambda r: "403" if r.path not in server.objects or "list-type" in r.query else None
        given = place(client, server.url)
        for hint in (b"2", b"1", None):
            if hint is None:
                del server.objects["/bucket/ds/_shardio/latest"]
            else:
                server.objects["/bucket/ds/_shardio/latest"] = hint
                look(**given)
                assert shardio.open(**given).version == 2
            for version in (1, 2):
                look(**given, version=version)
                ds = shardio.open(**given, version=version)
                assert (ds.version, len(ds)) == (version, version)
                again = shardio.open(**given, version=version, digest=ds.digest)
                assert list(again) == [b"wren"] * version
        with pytest.raises(DeniedError) as denied:
            look(**given)
        assert denied.value.url == denied_url(client, server)


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
@pytest.mark.parametrize("way", ["verify", "AWS_CA_BUNDLE"])
def test_a_certificate_that_is_vouched_for_holds(
    secure: tuple[str, str], monkeypatch: pytest.MonkeyPatch, engine: str, way: str
) -> None:
    """What botocore is told of an authority counts for both engines."""
    url, certificate = secure
    given = place(f"s3 {engine}", url)
    if way == "verify":
        given["storage_options"]["client_kwargs"]["verify"] = certificate
    else:
        monkeypatch.setenv(way, certificate)
    assert list(shardio.open(**given)) == [b"wren"] * 2


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A resolver that knows bucket.test, but fails as long as there are failures left."""
    resolve, left = socket.getaddrinfo, [True] * 3

    def fails_at_first(host: Any, *args: Any, **options: Any) -> Any:
        if host == "bucket.test" and left:
            left.pop()
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve("127.0.0.1" if host == "bucket.test" else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", fails_at_first)
    return left


@pytest.mark.parametrize("client", ["s3 fsspec", "http fsspec"])
def test_a_resolver_that_fails_for_a_while_is_asked_again(
    client: str, server: FaultServer, failures: list[bool]
) -> None:
    """P16: of obstore, which asks the system by itself, the same is known by hand."""
    given = place(client, server.url.replace("127.0.0.1", "bucket.test"))
    # As botocore is by default.
    given["storage_options"].pop("config_kwargs", None)
    ds = shardio.open(**given)
    assert (list(ds), failures) == ([b"wren", b"wren"], [])


@pytest.mark.parametrize("client", ["s3 fsspec", "http fsspec"])
def test_an_endpoint_that_never_answered_is_tried_a_few_times(
    client: str, server: FaultServer, failures: list[bool]
) -> None:
    failures.extend([True] * 9)
    given = place(client, server.url.replace("127.0.0.1", "bucket.test"))
    with pytest.raises(StorageError):
        shardio.open(**given)
    assert len(failures) == 8


@pytest.mark.slow
@pytest.mark.parametrize("service", ["gcs", "azurite"])
def test_a_resolver_of_another_cloud_is_asked_again(
    service: str, request: pytest.FixtureRequest, failures: list[bool]
) -> None:
    endpoint = request.getfixturevalue(f"{service}_endpoint").replace("127.0.0.1", "bucket.test")
    scheme, options = ("gs", gcs_options) if service == "gcs" else ("az", azure_options)
    with pytest.raises(MissingBucketError):
        shardio.open(f"{scheme}://no-such-bucket/ds", storage_options=options(endpoint))
    assert failures == []


def test_a_manifest_that_is_listed_and_forbidden_is_no_end(server: FaultServer) -> None:
    """P1: with permission to list, absent is not forbidden: an older version is not taken for the latest."""
    server.objects["/bucket/ds/_shardio/latest"] = b"1"
    server.plan = lambda r: "403" if r.path.endswith("2.manifest") else None
    for client in ("s3 fsspec", "s3 obstore"):
        with pytest.raises(DeniedError):
            shardio.open(**place(client, server.url))


@pytest.mark.parametrize(
    "url", ["birds", "file:///birds", "memory://birds", "hf://datasets/o/n", "simplecache::s3://b/birds"]
)
def test_obstore_is_refused_where_it_cannot_read(url: str) -> None:
    with refused(ValueError, "engine='obstore'"):
        connect(url, engine="obstore")
    connect(url, engine="fsspec")


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_a_missing_bucket_is_named(server: FaultServer, engine: str) -> None:
    server.buckets = {"another"}
    options = options_for(server.url)
    calls: list[Callable[[], object]] = [
        lambda: shardio.open("s3://bucket/ds", storage_options=options, engine=engine),
        lambda: shardio.verify(shardio.Address("s3://bucket/ds", storage_options=options, engine=engine)),
        lambda: shardio.DatasetWriter("s3://bucket/ds", storage_options=options),
        lambda: connect("s3://bucket/ds", storage_options=options).put_if_absent("m", b""),
        lambda: connect("s3://bucket/ds", storage_options=options, engine=engine).open("m").read(0, 1),
    ]
    for call in calls:
        with refused(MissingBucketError, "'bucket'"):
            call()


def test_a_missing_bucket_of_gcs_is_named(gcs_endpoint: str) -> None:
    for look in LOOKS:
        with refused(MissingBucketError, "'no-such-bucket'"):
            look("gs://no-such-bucket/ds", storage_options=gcs_options(gcs_endpoint))


@pytest.mark.slow
def test_a_missing_container_of_azure_is_named(azurite_endpoint: str) -> None:
    for look in LOOKS:
        with refused(MissingBucketError, "'no-such-container'"):
            look("az://no-such-container/ds", storage_options=azure_options(azurite_endpoint))


def test_a_profile_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    for look in LOOKS:
        with pytest.raises(StorageError, match=r"config profile \(nope\).*profile"):
            look("s3://bucket/ds", storage_options={"profile": "nope"})
    monkeypatch.setenv("AWS_PROFILE", "neither")
    with pytest.raises(StorageError, match=r"config profile \(neither\)"):
        shardio.open("s3://bucket/ds")
    with pytest.raises(StorageError, match=r"could not be made.*nonsense"):
        shardio.open("s3://bucket/ds", storage_options={"nonsense": 1})


def test_a_missing_package_or_protocol_is_named_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = importlib.util.find_spec
    for url, package in [("s3://b/x", "s3fs"), ("gs://b/x", "gcsfs"), ("az://b/x", "adlfs")]:
        with monkeypatch.context() as patch:
            patch.setattr(importlib.util, "find_spec", lambda n, p=package: None if n == p else found(n))
            with pytest.raises(ModuleNotFoundError, match=rf"needs {package}: pip install"):
                shardio.open(url)
    monkeypatch.setitem(sys.modules, "paramiko", None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.sftp", raising=False)
    for look in (*LOOKS, shardio.DatasetWriter):
        with refused(ModuleNotFoundError, "paramiko"):
            look("sftp://host/x")
        for url in ("nosuch://b/x", "simplecache::nosuch://b/x"):
            with refused(ValueError, "nosuch://"):
                look(url)


LOST_SLASHES = [
    pathlib.Path("s3://bucket/x"),
    "s3:/bucket/x",
    "file:/tmp/x",
    "memory:/x",
    "simplecache::s3:/bucket/x",
    "zip:/a.zip::s3:/bucket/x",
]


@pytest.mark.parametrize("url", LOST_SLASHES, ids=repr)
def test_a_url_that_lost_a_slash_is_refused_everywhere(
    url: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pathlib.Path("s3://bucket/x")` is the local path "s3:/bucket/x", which is never what is meant."""
    monkeypatch.chdir(tmp_path)
    with shardio.DatasetWriter("source", schema={"text": "text"}) as out:
        out.write({"text": "wren"})
    calls: list[Callable[[], object]] = [
        lambda: shardio.open(url),
        lambda: shardio.DatasetWriter(url),
        lambda: shardio.convert_dataset(url, "target"),
        lambda: shardio.convert_dataset("source", url),
        lambda: shardio.verify(url),
        lambda: shardio.commit(url, session="s", tasks=1),
        lambda: shardio.gc(url),
        lambda: shardio.log(url),
        lambda: shardio.export_dataset(url, "target", kind="jsonl"),
        lambda: shardio.export_dataset("source", url, kind="jsonl"),
        lambda: shardio.write_dataset(url, [1], lambda item: [b"wren"]),
        lambda: connect(url),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"one slash after \w+:"):
            call()
    assert main(["index", str(url)]) != 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
    for fine in ("./s3:/bucket/x", str(tmp_path / "s3:" / "x")):
        with shardio.DatasetWriter(fine) as out:
            out.write(b"wren")


class Failing(fsspec.AbstractFileSystem):
    """Fails as it is told to, and counts how often."""

    protocol = "failing"
    failure: Exception
    calls = 0

    def cat_file(self, *_: object, **__: object) -> bytes:
        Failing.calls += 1
        raise self.failure

    def info(self, path: str, **_: object) -> dict[str, object]:
        raise self.failure


fsspec.register_implementation("failing", Failing, clobber=True)


def hub_error(status: int) -> Exception:
    kind = type("HfHubHTTPError", (OSError,), {"response": SimpleNamespace(status_code=status, headers={})})
    return kind(f"{status} Client Error")


def broken_connection(module: str) -> Exception:
    base = type("TransportError", (Exception,), {"__module__": module})
    return type("ReadTimeout", (base,), {"__module__": f"{module}._exceptions"})("gone")


@pytest.mark.parametrize(
    ("failure", "kind", "again"),
    [
        (hub_error(429), StorageError, True),
        (hub_error(503), StorageError, True),
        (hub_error(404), NotFoundError, False),
        (hub_error(401), StorageError, False),
        (broken_connection("httpx"), StorageError, True),
        (broken_connection("httpx2"), StorageError, True),
    ],
    ids=["429", "503", "404", "401", "httpx", "httpx2"],
)
@pytest.mark.slow
def test_errors_of_other_libraries_mean_what_they_say(
    failure: Exception, kind: type[ShardioError], again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, "failure", failure, raising=False)
    monkeypatch.setattr(Failing, "calls", 0)
    with pytest.raises(kind) as caught:
        connect("failing://x").get("a", max_bytes=9)
    assert caught.value.url == "failing://x/a"
    assert (Failing.calls > 1) == again


def test_hf_waits_for_a_busy_hub(server: FaultServer) -> None:
    """The real client of hf://, against a server that is overloaded for a while."""
    pytest.importorskip("huggingface_hub")
    seen: list[Request] = []

    def plan(request: Request) -> str | None:
        seen.append(request)
        return "503" if len(seen) <= 3 else None

    server.plan = plan
    store = connect("hf://datasets/owner/name", storage_options={"endpoint": server.url, "token": False})
    with pytest.raises(ShardioError) as caught:
        store.get("a", max_bytes=10)
    # In the end the fake hub knows no such dataset; what matters is that the first refusals were waited for.
    assert not isinstance(caught.value, UnknownOutcomeError)
    assert len(seen) > 3


def test_colons_in_a_bucket_are_no_chain(server: FaultServer) -> None:
    """Filesystems are joined by "::" in fsspec; in a key it means nothing."""
    options = options_for(server.url)
    for url in ("s3://bucket/a::b::c", "s3://bucket/a::s3", "s3://bucket/simplecache::b::file"):
        with shardio.DatasetWriter(url, storage_options=options) as out:
            out.write(b"wren")
        assert list(shardio.open(url, storage_options=options, engine="fsspec")) == [b"wren"]
        assert any(path.startswith(f"/bucket/{url[12:]}/data/") for path in server.objects)
    store = connect("s3://bucket/data", storage_options=options)
    store.put_if_absent("x::y::z.tfrecord", b"1")
    folder, key = connect_folder("s3://bucket/data/x::y::z.tfrecord", storage_options=options)
    assert folder.get(key, max_bytes=1) == b"1"
    for chain in ("simplecache::s3://bucket/x", "zip://a.zip::simplecache::s3://bucket/x.zip"):
        assert connect(chain).url.startswith(chain[:8])
