"""The schema of adopted Examples, inferred from records of many shards, read through their new indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardio.codecs import InferenceReport, infer_schema
from shardio.errors import CorruptRecordError, SchemaError, ShardioError, StorageError
from shardio.format import Compression, Framing
from shardio.metadata import Feature, Schema, ShardTable
from shardio.reader import ReadOptions, Records, Source, value_codec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from shardio.storage import Store

__all__ = ["JSON_LINES", "Inferred", "check_lines", "check_reads", "infer"]

JSON_LINES = Schema({"json": Feature("json")}, encoding="bytes")

_MOST_SHARDS = 32
_MOST_ROWS = 32  # of a shard
_MOST_BYTES = 32 << 20


class Inferred(NamedTuple):
    """A schema and what it rests on; None where the records are no Examples."""

    schema: Schema | None
    report: InferenceReport | None


def infer(table: ShardTable, stores: Mapping[int, Store]) -> Inferred:
    """Infer the schema of TFRECORD shards from a few records of each of many.

    Raises:
        FormatError, StorageError: the records cannot be read.
    """
    payloads = _sample(table, stores)
    try:
        schema, report = infer_schema(payloads)
    except (CorruptRecordError, ValueError):
        return Inferred(None, None)
    # Bytes that are no Example may still parse as one without features.
    empty = not len(schema) and not schema.sequence_features
    return Inferred(None, report) if empty else Inferred(schema, report)


def check_reads(schema: Schema, table: ShardTable, stores: Mapping[int, Store]) -> None:
    """Decode a few records of many shards through a schema.

    Raises:
        SchemaError: one does not fit; names the feature.
    """
    for framing in np.unique(table.framing).tolist():
        part = table.take(np.flatnonzero(table.framing == framing))
        payloads = _sample(part, stores)
        if not payloads:
            continue
        try:
            value_codec([framing], schema).decode_many(payloads)
        except ShardioError as error:
            # The number of a record in this sample says nothing.
            raise SchemaError(
                f"the schema does not read the records: {error.what}",
                expected=error.expected,
                found=error.found,
                advice="give another schema, or adopt them as a dataset of their own, with --into",
            ) from error
        except ValueError as error:
            # Lines want one feature, and no other encoding than "bytes".
            raise SchemaError(
                f"the schema does not read the records: {error}",
                advice="give another schema, or adopt them as a dataset of their own, with --into",
            ) from error


def check_lines(schema: Schema | None, table: ShardTable, stores: Mapping[int, Store]) -> None:
    """Decode every line of shards that were indexed for another schema: which were looked at for that one.

    Raises:
        SchemaError: one does not fit, with its place.
    """
    part = table.take(np.flatnonzero(table.framing == int(Framing.LINES)))
    if not len(part):
        return
    try:
        source = Source("", part, stores, ReadOptions(), schema)
        for _ in Records(source):
            pass
    except StorageError:
        raise
    except ShardioError as error:
        raise SchemaError(
            f"the schema does not read the lines: {error.what}",
            **{**error.fields(), "advice": "give another schema, or mend the line and adopt the file again"},
        ) from error


def _sample(table: ShardTable, stores: Mapping[int, Store]) -> list[bytes]:
    """Return payloads spread over many shards."""
    chosen = np.flatnonzero(table.rows > 0)
    if not len(chosen):
        return []
    spread = chosen[np.linspace(0, len(chosen) - 1, min(len(chosen), _MOST_SHARDS)).astype(np.int64)]
    part = table.take(spread)
    source = Source("", part, stores, ReadOptions(decode=False), None)
    payloads: list[bytes] = Records(source).read(_positions(part))
    return payloads


def _positions(table: ShardTable) -> NDArray[np.int64]:
    """Return positions spread over every shard; of a compressed one the first, for it may be a stream."""
    mean = float(table.decoded_bytes.sum()) / float(table.rows.sum())
    most = max(1, min(_MOST_ROWS, int(_MOST_BYTES / max(1.0, mean) / len(table))))
    starts = np.cumsum(table.rows) - table.rows
    out = []
    for number in range(len(table)):
        rows = int(table.rows[number])
        count = min(rows, most)
        plain = int(table.compression[number]) == int(Compression.NONE)
        own = np.linspace(0, rows - 1, count).astype(np.int64) if plain else np.arange(count)
        out.append(own + int(starts[number]))
    return np.concatenate(out)
