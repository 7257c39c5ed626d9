"""Keys with what URLs, drives, shells and terminals take for something else."""

from __future__ import annotations

import pytest

import shardio
import shardio_indexer
from shardio.cli import main
from shardio.storage import connect
from tests.indexer.shards import tfrecord
from tests.servers import s3

NAMES = [
    "ab::b/xy::z.tfrecord",
    "a::b.tfrecord",
    "a::b/c.tfrecord",
    "a\tb.tfrecord",
    "x/\t.tfrecord",
    "simplecache::s3:/x.tfrecord",
    "a b%20c#d?e.tfrecord",
]


@pytest.mark.parametrize("name", NAMES)
def test_on_a_local_disk(tmp_path, name) -> None:
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(tfrecord([b"a"]))
    assert shardio_indexer.adopt(tmp_path / "data").ok
    assert list(shardio.open(tmp_path / "data")) == [b"a"]
    assert shardio.verify(tmp_path / "data").ok


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", NAMES)
def test_in_a_bucket(moto_endpoint, name) -> None:
    url = f"s3://{s3.make_bucket(moto_endpoint)}/data"
    options = s3.options_for(moto_endpoint)
    connect(url, storage_options=options).put_if_absent(name, tfrecord([b"a", b"bc"]))
    report = shardio_indexer.adopt(url, storage_options=options, workers=1)
    assert report.ok, report
    ds = shardio.open(url, storage_options=options)
    assert list(ds) == [b"a", b"bc"]
    assert ds[1] == b"bc"
    assert shardio.verify(shardio.Address(url, storage_options=options)).ok


def test_a_terminal_is_shown_escapes(tmp_path, capsys) -> None:
    (tmp_path / "a\tb.tfrecord").write_bytes(tfrecord([b"a"]))
    assert shardio_indexer.adopt(tmp_path).ok
    damaged = bytearray((tmp_path / "a\tb.tfrecord").read_bytes())
    damaged[-6] ^= 1
    (tmp_path / "a\tb.tfrecord").write_bytes(damaged)
    assert main(["verify", str(tmp_path)]) != 0
    shown = "".join(capsys.readouterr())
    assert "a\\tb.tfrecord" in shown
    assert "a\tb.tfrecord" not in shown
