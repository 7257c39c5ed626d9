"""Make the golden datasets of format version 1; run by hand, once, and never by tests.

    python tests/golden/v1/make.py

What is beside this file was written by the first shardio and stays as it is: it shows that what was written
once can be read for ever.  Random ids and the clock are replaced, so that the files can be told apart from a
later run; compressed bytes still depend on the libraries' versions.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import secrets
import shutil
import uuid
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np

import shardio
from shardio.catalog import Catalog
from shardio.format import Framing, RecordCrc
from shardio.kernels import crc32c
from shardio.metadata import (
    IndexBuilder,
    ListRef,
    Manifest,
    ShardEntry,
    ShardTable,
    naming,
    pack_list,
    seal_manifest,
)
from shardio.storage import connect

DatasetWriter, ShardWriter = shardio.DatasetWriter, shardio.ShardWriter
HERE = Path(__file__).parent
COMPRESSIONS = {"none": None, "zstd": "zstd", "gzip": "gzip"}
SCHEMA = {"id": "int64", "name": "text", "weight": "float32", "beak": "float16[2]", "marks": "int32[?]"}

_ids = itertools.count(1)


def _hex(size: int = 32) -> str:
    return hashlib.sha256(f"golden {next(_ids)}".encode()).hexdigest()[: 2 * size]


def _uuid() -> SimpleNamespace:
    return SimpleNamespace(bytes=bytes.fromhex(_hex(16)))


def freeze() -> None:
    """Replace chance and the clock."""
    clock = SimpleNamespace(now=lambda _zone: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    mock.patch.multiple(secrets, token_hex=_hex, token_bytes=lambda size: bytes.fromhex(_hex(size))).start()
    mock.patch.object(uuid, "uuid4", _uuid).start()
    for place in ("catalog._commit", "writer._dataset", "writer._shard"):
        mock.patch(f"shardio.{place}.writer_name", return_value="shardio 0.1.0").start()
    mock.patch("shardio.catalog._commit.datetime", clock).start()


def birds(count: int, seed: int) -> list[bytes]:
    """Return records of many sizes, the empty one among them."""
    rng = np.random.Generator(np.random.Philox(seed))
    return [rng.integers(97, 105, int(size), np.uint8).tobytes() for size in rng.integers(0, 60, count)]


def three() -> None:
    with DatasetWriter(HERE / "three", session="birds") as out:
        for record in (b"wren", b"", b"robin"):
            out.write(record)


def plain(name: str, compression: str | None) -> None:
    """Two splits, several blocks and shards, two versions."""
    options = {"block_bytes": 256, "shard_bytes": 700, "metadata": {"made": "by hand", "seen": [1, 2]}}
    with DatasetWriter(HERE / name, None, compression, **options) as out:
        for k, record in enumerate(birds(60, 1)):
            out.write(record, "test" if k % 5 == 0 else "train")
    with DatasetWriter(HERE / name, None, compression, "append", metadata={"more": True}) as out:
        for record in birds(20, 2):
            out.write(record, "train")


def schema(name: str, encoding: str) -> None:
    """A schema that grew: the first records lack what the second version added."""
    kinds = dict(SCHEMA) if encoding != "array" else {"beak": "float16[2]"}
    rng = np.random.Generator(np.random.Philox(3))

    def bird(k: int) -> dict[str, object]:
        full = {
            "id": k,
            "name": f"bird {k} ü",
            "weight": k / 8,
            "beak": np.array([k, -k], np.float16),
            "marks": rng.integers(0, 99, k % 4).astype(np.int32),
        }
        return {feature: full[feature] for feature in kinds}

    with DatasetWriter(HERE / name, kinds, "zstd", block_bytes=256, encoding=encoding) as out:
        for k in range(10):
            out.write(bird(k))
    if encoding == "example":
        grown = {**SCHEMA, "legs": shardio.Feature("int64", default=2)}
        with DatasetWriter(HERE / name, grown, "gzip", "append") as out:
            for k in range(10, 15):
                out.write({**bird(k), "legs": k})


def tasks() -> None:
    """A job array, committed, then overwritten, then the first version expired."""
    for task in range(3):
        with DatasetWriter(HERE / "tasks", session="run-7", task=task, commit=False) as out:
            for record in birds(7, 10 + task):
                out.write(record, f"part-{task % 2}")
    shardio.commit(HERE / "tasks", session="run-7", tasks=3)
    with DatasetWriter(HERE / "tasks", mode="overwrite") as out:
        out.write(b"wren")
    shardio.gc(HERE / "tasks", expire=[1], dry_run=False)


def sessions() -> None:
    """Sessions that a manifest does not hold itself any longer: in two lists, and one beside them."""
    with mock.patch.multiple("shardio.catalog._lists", _SESSIONS=2, _RATIO=1):
        for k in range(7):
            with DatasetWriter(HERE / "sessions", mode="append", session=f"day-{k}") as out:
                out.write(b"bird %d" % k)


def empty() -> None:
    DatasetWriter(HERE / "empty").close()


def crafted(name: str, entries: list[ShardEntry], **fields: object) -> None:
    """Commit shards that no writer makes yet."""
    store = connect(HERE / name)
    table = ShardTable.from_entries(entries)
    data, sha256 = pack_list(table)
    ref = ListRef(naming.list_key(_hex()), len(data), sha256, len(table))
    store.put_if_absent(ref.key, data)
    totals = table.totals()
    facts = {
        "dataset_uuid": bytes.fromhex(_hex(16)),
        "version": 1,
        "parent_version": 0,
        "parent_sha256": b"",
        "write_id": bytes.fromhex(_hex(16)),
        "operation": "create",
        "lists": (ref,),
        "splits": tuple(totals[split] for split in sorted(totals)),
    }
    store.put_if_absent(naming.manifest_key(1), seal_manifest(Manifest(**{**facts, **fields}))[0])


def deleted() -> None:
    """Rows deleted at the beginning, in the middle and at the end of shards."""
    for name, compression in COMPRESSIONS.items():
        with DatasetWriter(
            HERE / f"source-{name}", None, compression, block_bytes=128, shard_bytes=300
        ) as out:
            for record in birds(40, 4):
                out.write(record)
    entries = []
    for compression in COMPRESSIONS:
        source = HERE / f"source-{compression}"
        catalog = Catalog(connect(source))
        for number, entry in enumerate(catalog.table(catalog.load())):
            rows = {0, (number + 1) % entry.rows, entry.rows // 2, entry.rows - 1}
            gone = sorted(rows) if number % 2 == 0 else []
            key = f"data/deleted-{compression}-{number}.rows"
            sidecar = np.array(gone, "<u4").tobytes()
            for name in (entry.key, naming.usual_index_key(entry.key)):
                (HERE / "deleted" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source / name, HERE / "deleted" / name)
            facts = {**vars(entry), "split": compression}
            if gone:
                (HERE / "deleted" / key).write_bytes(sidecar)
                facts |= {
                    "deleted_rows": len(gone),
                    "deletion_key": key,
                    "deletion_sha256": hashlib.sha256(sidecar).digest(),
                }
            entries.append(ShardEntry(**facts))
        shutil.rmtree(source)
    crafted("deleted", entries, deletions=True)


def adopted() -> None:
    """Framings that only others write: lines, raw, unchecked frames; with a gap."""
    root = HERE / "adopted"
    root.mkdir(parents=True)
    files = {
        "lines": (Framing.LINES, RecordCrc.ABSENT, [b"wren\n", b"\n", b"robin\r\n", b"last"]),
        "raw": (Framing.RAW, RecordCrc.ABSENT, [b"", b"wren", b"", b"robin"]),
        "careless": (
            Framing.TFRECORD,
            RecordCrc.UNCHECKED,
            [b"\4" + bytes(11) + b"wren" + bytes(4), bytes(16)],
        ),
    }
    entries = []
    for name, (framing, crc, frames) in files.items():
        data = b"".join(frames) + b"the rest"
        builder = IndexBuilder(
            uuid=bytes.fromhex(_hex(16)), framing=framing, record_crc=crc, writer="by hand"
        )
        for first in range(0, len(frames), 2):
            part = frames[first : first + 2]
            block = b"".join(part)
            builder.add_block(
                stored_bytes=len(block),
                decoded_bytes=len(block),
                crc32c=crc32c(block),
                frame_stop=np.cumsum([len(frame) for frame in part]).astype(np.uint32),
            )
        builder.add_gap(
            stored_bytes=8, decoded_bytes=8, crc32c=crc32c(b"the rest"), reason="left out by hand"
        )
        builder.crc32c = crc32c(data)
        index = builder.finish()
        key = f"{name} of others/{name}.data"
        (root / key).parent.mkdir()
        (root / key).write_bytes(data)
        (root / naming.usual_index_key(key)).write_bytes(index.data)
        entries.append(ShardEntry.of_index(index.head, split=name, key=key, etag="by hand"))
    crafted("adopted", entries)


def shards() -> None:
    (HERE / "shards").mkdir()
    for name, compression in COMPRESSIONS.items():
        with ShardWriter(
            HERE / "shards" / f"{name}.tfrecord", compression=compression, block_bytes=200
        ) as out:
            for record in birds(30, 5):
                out.write(record)


def described(schema: shardio.Schema | None) -> dict[str, object] | None:
    if schema is None:
        return None
    return {name: [feature.type, list(feature.shape), feature.optional] for name, feature in schema.items()}


def decoded(root: Path, version: int) -> list[dict[str, object]]:
    """Return values as JSON can hold them."""
    if shardio.open(root, "all", version=version, decode=False).schema is None:
        return []
    records = shardio.open(root, "all", version=version)
    return [{name: np.asarray(value).tolist() for name, value in record.items()} for record in records]


def expected() -> dict[str, object]:
    """Return what is in the files, by dataset, version and split."""
    found: dict[str, object] = {}
    for root in sorted(path for path in HERE.iterdir() if (path / "_shardio").is_dir()):
        versions = {}
        for version in shardio.log(root)[::-1]:
            try:
                splits = shardio.open(root, "all", version=version.number, decode=False).splits
            except shardio.errors.NotFoundError:
                versions[str(version.number)] = {"digest": version.digest, "expired": True}
                continue
            versions[str(version.number)] = {
                "digest": version.digest,
                "metadata": dict(version.manifest.metadata),
                "schema": described(version.manifest.schema),
                "values": decoded(root, version.number),
                "splits": {
                    split: [
                        base64.b64encode(record).decode()
                        for record in shardio.open(root, split, version=version.number, decode=False)
                    ]
                    for split in splits
                },
            }
        found[root.name] = versions
    found["shards"] = [base64.b64encode(record).decode() for record in birds(30, 5)]
    return found


def main() -> None:
    for path in HERE.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    freeze()
    three()
    for name, compression in COMPRESSIONS.items():
        plain(name, compression)
    schema("schema", "example")
    schema("tensors", "tensors")
    schema("array", "array")
    tasks()
    empty()
    deleted()
    adopted()
    shards()
    sessions()
    (HERE / "expected.json").write_text(json.dumps(expected(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
