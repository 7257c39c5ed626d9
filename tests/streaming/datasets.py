"""Small datasets for the tests of streams and loaders: every record knows its own number."""

from __future__ import annotations

import copy
import hashlib
import itertools
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np

import shardio
from shardio.metadata import ShardTable
from shardio.order import Plan
from shardio.reader import DatasetReader, ShardSource

_numbers = itertools.count()


def write(url, shards, *, schema=None, value=None, **options):
    """Write a dataset whose shards have the given numbers of rows; record i holds i.

    Each shard is an append of its own, so that short and uneven shards are available; a 0 is skipped, since
    writers store no empty shards.
    """
    schema = {"n": "int64"} if schema is None and value is None else schema
    value = value or (lambda n: {"n": n})
    options.setdefault("block_bytes", 256)
    numbers, mode = itertools.count(), "create"
    for rows in shards:
        if not rows:
            continue
        with shardio.DatasetWriter(url, mode=mode, schema=schema, **options) as out:
            for _ in range(rows):
                out.write(value(next(numbers)))
        mode, schema = "append", None
        options.pop("encoding", None)
    return url


def memory_url():
    """Return an address in this process's memory that nothing else uses."""
    return f"memory://tests-streaming-{next(_numbers)}"


def rich_value(n):
    return {
        "n": n,
        "text": f"record {n}",
        "raw": bytes([n % 256]) * (n % 5),
        "box": np.full((2, 2), n, np.float32),
        "tokens": np.arange(n % 4, dtype=np.int32),
        "grid": np.full((n % 3, 2, n % 2 + 1), n, np.int16),
    }


RICH = {
    "n": "int64",
    "text": "text",
    "raw": "bytes",
    "box": "float32[2,2]",
    "tokens": "int32[?]",
    "grid": "int16[?,2,?]",
}


def plan(ranks=2, workers=2, chunk_rows=7, interleave=1):
    return Plan(ranks=ranks, workers=workers, chunk_rows=chunk_rows, interleave=interleave, window=chunk_rows)


def numbers(stream):
    return [batch["n"].tolist() for batch in stream]


def flat(batches):
    return [n for batch in batches for n in batch]


def edited(ds, *, shards=None, deleted=None, empty=()):
    """Return a reader over some shards of a dataset, with rows deleted and empty shards put in between.

    Args:
        ds: a whole reader.
        shards: numbers of its shards, in any order.
        deleted: by place in `shards`, ascending physical rows that are no more.
        empty: places in front of which an empty shard comes.
    """
    old = ds.source
    entries = list(old.table if shards is None else old.table.take(shards))
    for place, rows in (deleted or {}).items():
        sidecar = np.array(rows, "<u4").tobytes()
        key = f"data/{hashlib.sha256(sidecar).hexdigest()[:16]}.deleted"
        root(ds).put_if_absent(key, sidecar)
        entry = entries[place]
        entries[place] = replace(
            entry,
            deleted_rows=len(rows),
            deletion_key=key,
            deletion_sha256=hashlib.sha256(sidecar).digest(),
        )
    for place in sorted(empty, reverse=True):
        gone = replace(entries[0], key=f"data/empty-{place}.tfrecord", uuid=bytes([place]) * 16)
        gone = replace(gone, rows=0, deleted_rows=0, blocks=0, stored_bytes=0, decoded_bytes=0)
        entries.insert(place, replace(gone, deletion_key="", deletion_sha256=bytes(32)))
    source = copy.copy(old)
    ShardSource.__init__(
        source, old.url, ShardTable.from_entries(entries), {0: root(ds)}, old.options, old.schema
    )
    return DatasetReader(source)


def path_of(ds, position):
    """Return the local file of the shard that holds a record."""
    return Path(ds.locate(position).url.removeprefix("file://"))


def flip(url, place):
    """Flip one bit of a file, where it is: it may be mapped."""
    with fsspec.open(str(url), "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def hurt(ds, position):
    """Flip one bit of the block that holds a record; return the positions of its records."""
    number, row = ds.source.shard_of(position)
    head = ds.source.pool.get(number).head
    block = int(head.blocks_of(np.array([row]))[0])
    flip(ds.locate(position).url, head.block_bounds(block)[1] - 1)
    first, last = head.block_rows(block)
    return set(range(position - row + first, position - row + last))


def root(ds):
    """Return the store of a dataset's own root."""
    return ds.source.pool.stores[0]
