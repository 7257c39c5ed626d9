"""Secrets of URLs are refused where URLs enter, and shown nowhere."""

from __future__ import annotations

import contextlib
import io
import logging
import pathlib
import pickle
import traceback
import warnings
from collections.abc import Callable, Iterator

import pytest

import shardio
import shardio_indexer
from shardio.cli import main
from shardio.redact import redact
from tests.servers.faults import FaultServer, fault_server
from tests.suites.errors import refused

SECRET = "Hunter2SECRET"
SIGNATURE = f"X-Amz-Credential=me&X-Amz-Signature={SECRET}a%2Fb,c;d(e)"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@host/x", "https://host/x"),
        ("see HTTPS://token@host/x, then", "see HTTPS://host/x, then"),
        ("ftp://me:p@w:d@host/x", "ftp://me:***@host/x"),
        ("simplecache::https://me:pw@host/x?sig=1", "simplecache::https://host/x?***"),
        ("(https://host/x?sig=a,b;c): found", "(https://host/x?***): found"),
        ("GET /x?b=1&X-Amz-Signature=abc&c=2 failed", "GET /x?b=1&X-Amz-Signature=***&c=2 failed"),
        ("az://container@account/x?sig=abc", "az://container@account/x?sig=***"),
        ("url=URL('https://host/x?sig=a%2Fb')", "url=URL('https://host/x?***')"),
        ("https://host/x#access_token=1", "https://host/x?***"),
        (
            "http://host/b/x%3FX-Amz-Date%3D1%26X-Amz-Signature%3Dabc%252Fd/_k",
            "http://host/b/x%3FX-Amz-Date%3D1%26X-Amz-Signature%3D***",
        ),
        ("b/x%3fsig%3dabc%26c%3d2: gone", "b/x%3fsig%3d***%26c%3d2: gone"),
        ("x%253FToken%253Dabc%2526c", "x%253FToken%253D***%2526c"),
        ("a%3Fb%3Dc", "a%3Fb%3Dc"),
        ("s3://bucket/part-?.tfrecord", "s3://bucket/part-?.tfrecord"),
        ("sftp://me@host/x", "sftp://me@host/x"),
        ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
        ("label = 'a'", "label = 'a'"),
    ],
)
def test_secrets_are_replaced(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) == shown


WAYS_IN: dict[str, Callable[[str, pathlib.Path], object]] = {
    "open": lambda url, _: shardio.open(url),
    "open_shard": lambda url, _: shardio.open_shard(f"{url}/x.tfrecord"),
    "write": lambda url, _: shardio.DatasetWriter(url),
    "write_dataset": lambda url, _: shardio.write_dataset(url, [1], lambda _: [b""]),
    "log": lambda url, _: shardio.log(url),
    "verify": lambda url, _: shardio.verify(url),
    "adopt": lambda url, folder: shardio_indexer.adopt(f"{url}/x.tfrecord", into=folder / "d"),
    "adopt into": lambda url, folder: shardio_indexer.adopt(folder, into=url),
    "convert": lambda url, folder: shardio.convert_dataset(f"{url}/x.csv", folder / "d"),
    "convert to": lambda url, folder: shardio.convert_dataset(_table(folder), url),
    "allow_roots": lambda url, folder: shardio.open(_adopted(folder), allow_roots={url: {}}),
}


def _adopted(folder: pathlib.Path) -> pathlib.Path:
    with shardio.DatasetWriter(folder / "d") as out:
        out.write(b"wren")
    return folder / "d"


def _table(folder: pathlib.Path) -> pathlib.Path:
    (folder / "x.csv").write_text("a,b\n1,2\n")
    return folder / "x.csv"


@pytest.mark.parametrize("host", [f"http://me:{SECRET}@127.0.0.1:9", f"https://{SECRET}@127.0.0.1:9"])
@pytest.mark.parametrize("way", WAYS_IN)
def test_a_url_with_a_password_is_refused(way: str, host: str, tmp_path: pathlib.Path) -> None:
    with refused(ValueError, "storage_options") as caught:
        WAYS_IN[way](f"{host}/birds", tmp_path)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert b"SECRET" not in b"".join(each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[FaultServer]:
    with shardio.DatasetWriter(tmp_path / "ds", block_bytes=4096) as out:
        out.write_many(b"%05d" % n * 100 for n in range(100))
    shard = next((tmp_path / "ds/data").glob("*.tfrecord"))
    data = bytearray(shard.read_bytes())
    data[20_000] ^= 1
    shard.write_bytes(data)
    with fault_server() as server:
        server.load(tmp_path / "ds", "/bucket/ds")
        yield server


@contextlib.contextmanager
def all_that_is_said() -> Iterator[list[str]]:
    """Collect warnings and log records."""
    said: list[str] = []
    handler = logging.StreamHandler(stream := io.StringIO())
    logging.getLogger().addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield said
    finally:
        logging.getLogger().removeHandler(handler)
    said += [str(each.message) for each in caught] + [stream.getvalue()]


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_a_signature_in_a_key_is_not_shown_quoted(engine: str) -> None:
    options = {"key": "a", "secret": "b", "client_kwargs": {"endpoint_url": "http://127.0.0.1:9"}}
    with refused(shardio.errors.StorageError, "connection") as caught:
        shardio.open(f"s3://bucket/ds?{SIGNATURE}", engine=engine, storage_options=options)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("engine", ["fsspec", None])
def test_a_signature_is_shown_nowhere(
    server: FaultServer, engine: str | None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"{server.url}/bucket/ds?{SIGNATURE}"
    shown: list[str] = []
    with all_that_is_said() as said:
        ds = shardio.open(url, engine=engine, on_error="quarantine")
        assert 0 < len(list(ds)) < 100
        shown += [repr(ds), repr(ds.stats), str(ds.to_dict()) if hasattr(ds, "to_dict") else ""]
        report = shardio.verify(url)
        assert not report.ok
        shown += [repr(report), pickle.dumps(report).decode("latin-1"), str(report.to_dict())]
        with pytest.raises(shardio.errors.CorruptBlockError) as caught:
            list(shardio.open(url, engine=engine))
        shown += [*traceback.format_exception(caught.value), pickle.dumps(caught.value).decode("latin-1")]
        with refused(ValueError, "split") as wrong:
            shardio.open(url, split="none")
        shown.append(str(wrong.value))
        main(["verify", url])
        main(["head", url, "--split", "none"])
        main(["verify", url, "--json"])
    shown += said
    shown.append((tmp_path / "shardio-quarantine.jsonl").read_text())
    shown += capsys.readouterr()
    assert "127.0.0.1" in "".join(shown)
    assert SECRET not in "".join(shown)


@pytest.mark.parametrize("engine", ["fsspec", None])
def test_a_refusal_does_not_show_the_signature(server: FaultServer, engine: str | None, capsys) -> None:
    url = f"{server.url}/bucket/ds?{SIGNATURE}"
    server.plan = lambda _: "403"
    with all_that_is_said() as said, pytest.raises(shardio.errors.ShardioError) as caught:
        shardio.open(url, engine=engine)
    main(["info", url])
    assert SECRET not in "".join([*traceback.format_exception(caught.value), *said, *capsys.readouterr()])


@pytest.mark.parametrize(
    "url",
    [
        "memory://a/../b",
        "memory://.",
        "s3://bucket/./x",
        "s3://bucket/x/..",
        "http://h/a/%2e%2e/b",
        "simplecache::http://h/../b",
    ],
)
def test_a_root_that_leads_elsewhere_is_refused(url: str) -> None:
    with pytest.raises(shardio.errors.UnsafeNameError):
        shardio.DatasetWriter(url)
    with pytest.raises(shardio.errors.UnsafeNameError):
        shardio.open(url)
