"""The specification's own proof: a reader written from docs/format.md alone reads what shardio reads."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

import pytest
import zstandard

import shardio
import shardio_indexer
from shardio import codecs
from tests import independent_reader
from tests.indexer.shards import members, tfrecord
from tests.promises.places import DATASETS, EXPECTED, GOLDEN, copied
from tests.suites.errors import refused

PAYLOADS = [b"wren" * (k % 90) + b"%d" % k for k in range(500)]
VERSIONS = [(name, int(version)) for name in DATASETS for version in EXPECTED[name]]


def agree(root: Path, version: int | None = None, *, samples: bool = False) -> int:
    """Assert that both readers read the same, and return how many records there are."""
    allowed = {str(root.parent / "data"): {}}
    options = {"version": version, "decode": samples, "allow_roots": allowed}
    ours = shardio.open(root, "all", **options)
    theirs, metadata = independent_reader.read(root, version, tuple(allowed))
    assert metadata == dict(ours.metadata)
    assert {name: len(records) for name, records in theirs.items()} == dict(ours.splits)
    for name, records in theirs.items():
        assert list(shardio.open(root, name, **options)) == records
    return len(ours)


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_golden_datasets(name, version):
    if EXPECTED[name][str(version)].get("expired"):
        with refused(independent_reader.Refused, "expired"):
            independent_reader.read(GOLDEN / name, version)
        return
    assert agree(GOLDEN / name, version) == sum(map(len, EXPECTED[name][str(version)]["splits"].values()))


@pytest.mark.parametrize("compression", [None, "zstd", "gzip"])
def test_written_datasets(compression, tmp_path):
    options = {"block_bytes": 300, "shard_bytes": 4000, "metadata": {"made": ["here"]}}
    with shardio.DatasetWriter(tmp_path / "x", None, compression, **options) as out:
        for k, payload in enumerate(PAYLOADS):
            out.write(payload, "test" if k % 7 == 0 else "train-clean")
    with shardio.DatasetWriter(tmp_path / "x", None, compression, "append") as out:
        for payload in PAYLOADS:
            out.write(payload, "more")
    assert agree(tmp_path / "x") == 2 * len(PAYLOADS)
    assert agree(tmp_path / "x", 1) == len(PAYLOADS)


def archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for k, payload in enumerate(PAYLOADS):
            for extension in ("txt", "Seg.BIN"):
                info = tarfile.TarInfo(f"folder/{k:04d}.{extension}")
                info.size = len(payload)
                file.addfile(info, io.BytesIO(payload))
    return buffer.getvalue()


def adoptable() -> dict[str, bytes]:
    records = tfrecord(PAYLOADS)
    lines = b"".join(b'{"a": %d}\r\n' % k for k in range(300)) + b'{"a": 300}'
    cut = [records[start : start + 1000] for start in range(0, len(records), 1000)]
    sized = zstandard.ZstdCompressor(write_content_size=False)
    return {
        "plain.tfrecord": records,
        "crc32.tfrecord": tfrecord(PAYLOADS, zlib.crc32),
        "whole.tfrecord.gz": gzip.compress(records),
        "cut.tfrecord.gz": members(cut, "gzip"),
        "blocks.tfrecord.gz": members([tfrecord(PAYLOADS[:9]), tfrecord(PAYLOADS[9:]), b""], "gzip"),
        "zlib.tfrecord": zlib.compress(records),
        "blocks.tfrecord.zst": b"\x50\x2a\x4d\x18\3\0\0\0abc"
        + members([tfrecord(PAYLOADS[:9]), tfrecord(PAYLOADS[9:])], "zstd"),
        "stream.tfrecord.zst": sized.compress(records),
        "cut.tfrecord.zst": members(cut, "zstd"),
        "lines.jsonl": lines,
        "lines.jsonl.gz": gzip.compress(lines),
        "samples.tar": archive(),
        "samples.tar.gz": gzip.compress(archive()),
        "empty.tfrecord": b"",
    }


@pytest.mark.sampled(4)
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("name", list(adoptable()))
def test_adopted_datasets(name, beside, tmp_path):
    root, data = tmp_path / "root", tmp_path / "data"
    data.mkdir()
    (data / name).write_bytes(adoptable()[name])
    scan = shardio_indexer.ScanOptions(record_crc="crc32") if name.startswith("crc32") else None
    # The independent reader gives members of samples as they are stored.
    schema = False if ".tar" in name else None
    into = root if beside else data
    report = shardio_indexer.adopt(data / name, into=into, split="train", scan=scan, schema=schema)
    assert report.ok, report
    count = agree(root if beside else data, samples=".tar" in name)
    assert count == {"e": 0, "l": 301}.get(name[0], 500)
    if beside:
        with pytest.raises(independent_reader.Refused):
            independent_reader.read(root)


def test_it_refuses_what_was_changed(tmp_path):
    """A reader that never refuses would prove nothing."""
    root = Path(copied(GOLDEN / "zstd", "local", tmp_path))
    objects = [path for path in root.rglob("*") if path.is_file() and path.name != "latest"]
    assert len(objects) > 6
    for path in objects:
        data = path.read_bytes()
        for place in {0, len(data) // 3, len(data) // 2, len(data) - 1}:
            path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
            with pytest.raises(Exception):  # noqa: B017, PT011 - whatever ends it, in either version
                independent_reader.read(root)
                independent_reader.read(root, 1)
        path.write_bytes(data)
    independent_reader.read(root)


def test_it_stands_alone(tmp_path):
    """It reads without shardio, and from the command line."""
    copy = shutil.copy(independent_reader.__file__, tmp_path)
    hidden = (
        "import sys; sys.modules['shardio'] = None; sys.argv = sys.argv[1:]; exec(open(sys.argv[0]).read())"
    )
    command = [sys.executable, "-c", hidden, str(copy), str(GOLDEN / "three")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "{'train': 3} {}\n"


def test_examples_are_examples(tmp_path):
    """What it hands out is what the encoding of the schema says."""
    with shardio.DatasetWriter(tmp_path, {"a": "int64"}, "zstd") as out:
        out.write({"a": 7})
    (payload,) = independent_reader.read(tmp_path)[0]["train"]
    assert codecs.decode_example(payload)["a"].tolist() == [7]
