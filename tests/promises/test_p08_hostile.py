"""P8: hostile data runs no code, leaves no root, exceeds no cap; only ShardioError comes out."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import zstandard

from shardio.format import Compression, Framing
from shardio.kernels import crc32c
from shardio.metadata import naming, parse_head
from shardio.v1 import manifest_pb2
from tests.format.plain import frame, masked
from tests.format.test_blocks import crafted_zstd
from tests.metadata.crafted import (
    columns_of,
    header_of,
    index_of,
    list_of,
    manifest_message,
    sealed,
)
from tests.promises.places import GOLDEN, copied

HUGE = (1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1)
TRAVERSALS = [
    *("../outside.tfrecord", "/etc/passwd", "data/../../outside.tfrecord", "..", "~/x", "file:///etc/passwd"),
    *(
        "data\\..\\x",
        "s3://bucket/x",
        "simplecache::file:///etc/passwd",
        "*",
        "data/\0x",
        "%2e%2e/outside.tfrecord",
    ),
]


def dataset(root: Path, *, shard: bytes, index: bytes, rows: int, etag: str = "", **columns: Any) -> None:
    """Write a dataset of one shard, every seal right, whatever its index says."""
    key = columns.pop("key", ["data/x.tfrecord"])[0]
    (root / "data").mkdir(parents=True, exist_ok=True)
    (root / "data" / "x.tfrecord").write_bytes(shard)
    (root / "data" / "x.tfrecord.shardidx").write_bytes(index)
    try:
        head = parse_head(index)
        facts = {
            "stored_bytes": [head.stored_bytes],
            "decoded_bytes": [head.decoded_bytes],
            "blocks": [head.blocks],
            "crc32c": [head.crc32c],
            "index_head_bytes": [head.frame_stop_offset],
            "index_head_sha256": hashlib.sha256(index[: head.frame_stop_offset]).digest(),
            "uuid": head.uuid,
            "compression": [int(head.compression)],
            "framing": [int(head.framing)],
        }
    except ValueError:
        facts = {"uuid": bytes(range(16)), "index_head_bytes": [len(index)]}
    facts |= {"key": [key], "rows": [rows], "etag": [etag], **columns}
    commit(root, list_of(1, **facts), facts)


def commit(root: Path, data: bytes, columns: Mapping[str, Any] = MappingProxyType({}), **fields: Any) -> None:
    """Write a version of one list, whose totals are those of the columns of its one shard."""
    place = root / "_shardio" / "lists" / "a.list"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    sha256 = hashlib.sha256(data).digest()
    ref = manifest_pb2.ListRef(key="_shardio/lists/a.list", bytes=len(data), sha256=sha256, shards=1)
    facts = {"rows": [10], "stored_bytes": [160], "decoded_bytes": [160], "deleted_rows": [0], **columns}
    total = manifest_pb2.SplitTotals(
        name="train",
        rows=max(0, facts["rows"][0] - facts["deleted_rows"][0]),
        shards=1,
        stored_bytes=facts["stored_bytes"][0],
        decoded_bytes=facts["decoded_bytes"][0],
    )
    manifest = root / naming.manifest_key(1)
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_bytes(sealed(manifest_message(**{"lists": [ref], "splits": [total], **fields})))


def shard_of(blocks: list[bytes], frames: list[list[int]], kind: int) -> tuple[bytes, bytes]:
    """Return a shard of stored blocks and an index that gives them these frames, all checksums right."""
    columns = columns_of(frames, stored=[len(block) for block in blocks])
    columns["block_crc32c"] = np.array([crc32c(block) for block in blocks], "<u4")
    shard = b"".join(blocks)
    return shard, index_of(header_of(columns, compression=kind, crc32c=crc32c(shard)), columns)


def bombs(corpus: Path) -> None:
    # 128 MiB and more out of a few kilobytes, declared or not.
    declared = zstandard.ZstdCompressor().compress(bytes(1 << 20))
    for name, block, size in (
        ("zstd-lies-small", crafted_zstd(16, 17, 2000), 16),
        ("zstd-lies-large", crafted_zstd((1 << 32) - 1, 17, 1), (1 << 29)),
        ("zstd-window", crafted_zstd(128 << 10, 31, 1), 128 << 10),
        ("zstd-two-frames", declared + declared, 1 << 20),
        ("zstd-no-size", crafted_zstd(0, 17, 100), 1 << 20),
    ):
        shard, index = shard_of([block], [[size]], Compression.ZSTD)
        dataset(corpus / name, shard=shard, index=index, rows=1)
    # Within every limit, but more than this process may have: one record of 256 MiB, or many
    # blocks of 8 MiB.
    many = zstandard.ZstdCompressor().compress(bytes(8 << 20))
    shard, index = shard_of([many] * 32, [[(8 << 20) - 16, 16]] * 32, Compression.ZSTD)
    dataset(corpus / "zstd-honest-blocks", shard=shard, index=index, rows=64)
    one = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    shard, index = shard_of([one], [[1 << 28]], Compression.ZSTD)
    dataset(corpus / "zstd-honest-record", shard=shard, index=index, rows=1)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    member = packer.compress(bytes(200 << 20)) + packer.flush()
    for name, size in (("gzip-bomb", 1000), ("gzip-honest-record", 200 << 20)):
        shard, index = shard_of([member], [[size]], Compression.GZIP)
        dataset(corpus / name, shard=shard, index=index, rows=1)


def lengths(corpus: Path) -> None:
    data = frame(b"wren")
    for value in HUGE:
        for field in ("rows", "blocks", "stored_bytes", "decoded_bytes"):
            columns = columns_of([[20]])
            columns["block_crc32c"] = np.array([crc32c(data)], "<u4")
            names = {"rows": ["frame_stop"], "blocks": list(columns)[:5]}.get(field, [])

            def claim(entries: list[list[Any]], names: list[str] = names, value: int = value) -> None:
                for entry in entries:
                    if entry[0] in names:
                        entry[3] = value

            facts = {} if names else {field: value}
            index = index_of(header_of(columns, **facts), columns, edit=claim)
            dataset(corpus / f"index-{field}-{value}", shard=data, index=index, rows=1)
        for field in ("rows", "stored_bytes", "decoded_bytes", "blocks", "index_head_bytes"):
            shard, index = shard_of([data], [[20]], Compression.NONE)
            fields = {field: [value]}
            dataset(corpus / f"list-{field}-{value}", shard=shard, index=index, rows=1)
            commit(corpus / f"list-{field}-{value}", list_of(1, **fields), fields)
        head = (value).to_bytes(8, "little")
        lying = head + masked(head).to_bytes(4, "little") + b"wren"
        (corpus / f"frame-{value}").mkdir()
        (corpus / f"frame-{value}" / "alone.tfrecord").write_bytes(frame(b"wren") + lying)
        body = b"SHRDMAN1" + head + b"x" * 100
        root = corpus / f"seal-{value}"
        (root / naming.manifest_key(1)).parent.mkdir(parents=True)
        (root / naming.manifest_key(1)).write_bytes(body)


def names(corpus: Path) -> None:
    shard, index = shard_of([frame(b"wren")], [[20]], Compression.NONE)
    (corpus / "outside.tfrecord").write_bytes(shard)
    (corpus / "outside.tfrecord.shardidx").write_bytes(index)
    for number, key in enumerate(TRAVERSALS):
        for kind in ("own", "adopted", "index", "deletions", "list"):
            root = corpus / f"name-{kind}-{number}"
            if kind == "own":
                dataset(root, shard=shard, index=index, rows=1, key=[key])
            elif kind == "adopted":
                dataset(root, shard=shard, index=index, rows=1, key=[key], etag="etag")
            elif kind == "index":
                dataset(root, shard=shard, index=index, rows=1, index_key=[key])
            elif kind == "deletions":
                gone = {"deleted_rows": [1], "deletion_key": [key], "deletion_sha256": bytes(32)}
                dataset(root, shard=shard, index=index, rows=1, **gone)
            else:
                ref = manifest_pb2.ListRef(key=key, sha256=bytes(32), shards=1)
                commit(root, list_of(1), lists=[ref])
    root = corpus / "foreign-root"
    dataset(root, shard=shard, index=index, rows=1)
    commit(
        root,
        list_of(1, root=[1]),
        roots=[manifest_pb2.DataRoot(number=1, url=str(corpus))],
        critical_features=["foreign_roots"],
    )


def others(corpus: Path) -> None:
    deep = b"[" * 400_000
    commit(corpus / "deep-json", list_of(1), metadata_json=deep)
    spec = manifest_pb2.FeatureSpec(name="a", type="int64", shape=[1 << 40, 1 << 40])
    commit(
        corpus / "schema-shape",
        list_of(1),
        schemas=[manifest_pb2.Schema(encoding="example", features=[spec])],
    )
    text = manifest_pb2.FeatureSpec(name="a", type="__import__('os').system('true')")
    commit(
        corpus / "schema-type",
        list_of(1),
        schemas=[manifest_pb2.Schema(encoding="example", features=[text])],
    )
    pickle = b"cos\nsystem\n(S'true'\ntR."
    for name in ("manifest", "list", "hint"):
        root = corpus / f"pickle-{name}"
        commit(root, pickle if name == "list" else list_of(1))
        if name == "manifest":
            (root / naming.manifest_key(1)).write_bytes(pickle)
        if name == "hint":
            (root / "_shardio" / "latest").write_bytes(pickle)
    session = corpus / "receipts" / "_shardio" / "sessions" / "run"
    session.mkdir(parents=True)
    (session / "00000-aaaaaaaa.receipt").write_bytes(sealed(b"\xff" * 50))
    raw = columns_of([[0] * 50_000])
    raw["block_crc32c"] = np.array([0], "<u4")
    many = index_of(header_of(raw, framing=Framing.RAW, record_crc=0), raw)
    dataset(corpus / "many-empty-records", shard=b"", index=many, rows=50_000)


@pytest.mark.slow
def test_hostile_data_does_no_harm(tmp_path):
    """P8: hostile data runs no code, leaves no root, exceeds no cap; only ShardioError comes out.

    A reader MUST refuse a key that breaks these rules before it touches any storage.
    """
    good = Path(copied(GOLDEN / "zstd", "local", tmp_path))
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for make in (bombs, lengths, names, others):
        make(corpus)
    roots = sorted(path for path in corpus.iterdir() if path.is_dir())
    assert len(roots) > 100
    said = watched([good, *roots])
    assert len(said) == len(roots) + 1
    assert "Error" not in said[good.name].split(" | ")[1]
    for root in roots:
        first = said[root.name].split(" | ")[1]
        if root.name not in ("many-empty-records", "zstd-honest-blocks") and not root.name.startswith(
            "pickle-hint"
        ):
            assert "Error: " in first, said[root.name]
    assert "50000 records, 9 read, [0, 0, 0]" in said["many-empty-records"]
    # A bomb is told by what it declares, not by the memory that it takes.
    for name in ("gzip-bomb", "zstd-lies-small", "zstd-lies-large", "zstd-two-frames", "zstd-window"):
        assert said[name].count("CorruptBlockError") == 3, said[name]
    assert said["zstd-honest-blocks"].split(" | ")[1:3] == ["64 records, 9 read, [8388576, 8388576, 0]", "64"]
    for name in ("zstd", "gzip"):
        assert said[f"{name}-honest-record"].count("StorageError: there is no memory for a block") == 3
    for name in ("own", "adopted", "index", "deletions", "list"):
        refusals = [said[f"name-{name}-{k}"].split(" | ")[1] for k in range(len(TRAVERSALS))]
        assert sum("UnsafeNameError" in text for text in refusals) >= 5, refusals
    assert "that place is not allowed" in said["foreign-root"]


def watched(roots: list[Path]) -> dict[str, str]:
    script = Path(__file__).parent / "hostile.py"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(script), *map(str, roots)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])},
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    return {line.split(" | ")[0]: line for line in done.stdout.splitlines()}
