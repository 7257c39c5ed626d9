"""First bytes take precedence over names, for adoption and conversion alike; two kinds are refused."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
import zstandard

import shardio
from shardio.errors import SchemaError, StorageError
from shardio.sources import Peek, find_files
from tests.indexer.shards import tar, tfrecord

LINES = b'{"n": 1}\n{"n": 2}\n'
BYTES = {
    "tfrecord": tfrecord([b"wren", b"robin"]),
    "tfrecord.gz": gzip.compress(tfrecord([b"wren", b"robin"])),
    "tar": tar([("a.txt", b"wren"), ("b.txt", b"robin")]),
}
NAMES = ("x.tfrecord", "x.tar", "x.jsonl", "x.csv", "x.txt", "x.parquet", "x")


def brought(way: str, source: Path, into: Path) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return records by split, and the notes, of a source that was adopted or converted."""
    if way == "adopt":
        report = shardio.adopt(source, into=into)
        return dict(report.splits), report.notes
    done = shardio.convert_dataset(source, into)
    return dict(done.records), tuple(done.notes)


@pytest.mark.parametrize("way", ["adopt", "convert"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", BYTES)
def test_first_bytes_take_precedence_over_a_name(tmp_path: Path, kind: str, name: str, way: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(BYTES[kind])
    (tmp_path / "in" / "README.md").write_text("birds")
    records, notes = brought(way, tmp_path / "in", tmp_path / "out")
    assert records == {"train": 2}
    agrees = name == "x" or name.removeprefix("x.") == kind.removesuffix(".gz")
    assert any(name in note and "first bytes" in note for note in notes) is not agrees
    roots = {str(tmp_path / "in"): {}}
    assert len(shardio.open(tmp_path / "out", allow_roots=roots)) == 2


COMPRESSED = {
    "x.jsonl": LINES,
    "x.json": LINES,
    "x.csv": b"HK\nwren\nrobin\n",  # its first two bytes are a header of ZLIB, too
    "x.tar": BYTES["tar"],
    "x.tfrecord": BYTES["tfrecord"],
}


@pytest.mark.parametrize("way", ["adopt", "convert"])
@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstandard.compress], ids=["", "gzip", "zstd"])
@pytest.mark.parametrize("name", COMPRESSED)
def test_first_bytes_tell_compression(tmp_path: Path, name: str, compress: Any, way: str) -> None:
    file = tmp_path / "in" / name
    file.parent.mkdir()
    file.write_bytes(compress(COMPRESSED[name]))
    if (name, compress) == ("x.json", bytes):
        return  # one document
    sources = [file] if name == "x.csv" else [file, file.parent]
    for number, source in enumerate(sources):
        records, _ = brought(way, source, tmp_path / f"out{number}")
        assert records == {"train": 2 + (name == "x.csv" and way == "adopt")}


def test_compressed_lines_longer_than_a_run(tmp_path: Path) -> None:
    text = random.Random(0).randbytes(9 << 20).hex()  # 9 MiB, compressed
    lines = [json.dumps({"x": text[start::5]}) for start in range(5)]
    (tmp_path / "x.jsonl").write_bytes(gzip.compress("\n".join(lines).encode(), 1))
    assert brought("convert", tmp_path / "x.jsonl", tmp_path / "out")[0] == {"train": 5}


@pytest.mark.parametrize("way", ["adopt", "convert"])
@pytest.mark.parametrize("other", ["a.tar", "a.jsonl", "misnamed.tfrecord"])
def test_two_kinds_in_a_split_are_refused_and_the_advice_works(tmp_path: Path, other: str, way: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        (folder / f"b{number}.tfrecord").write_bytes(BYTES["tfrecord"])
    (folder / other).write_bytes(LINES if other == "a.jsonl" else BYTES["tar"])
    with pytest.raises((SchemaError, ValueError)):
        brought(way, folder, tmp_path / "both")
    assert not (tmp_path / "both").exists() or not list((tmp_path / "both").rglob("manifests/*"))
    assert brought(way, folder / "b*.tfrecord", tmp_path / "one")[0] == {"train": 6}
    (tmp_path / "list.txt").write_text(f"{folder / other}\n")
    assert brought(way, f"@{tmp_path / 'list.txt'}", tmp_path / "two")[0] == {"train": 2}


def test_a_named_file_that_cannot_be_read_is_left_to_its_reader(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(LINES)
    (listing,) = find_files(str(tmp_path))
    (tmp_path / "b.jsonl").unlink()
    assert Peek().notes(listing) == []


def test_a_compressed_file_that_cannot_be_read_is_not_taken_for_plain(tmp_path, monkeypatch):
    text = random.Random(0).randbytes(9 << 20).hex()
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(json.dumps({"x": text}).encode(), 1))
    head = Peek.head

    def fail(self: Peek, file: Any, *most: int) -> bytes:
        if most:
            return head(self, file, *most)
        raise StorageError("the network is down", url=file.url)

    monkeypatch.setattr(Peek, "head", fail)
    with pytest.raises(StorageError) as caught:
        shardio.convert_dataset(tmp_path / "x.jsonl.gz", tmp_path / "out", on_error="skip")
    assert caught.value.url.endswith("x.jsonl.gz")
