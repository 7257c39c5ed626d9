"""The schema that a source is converted with: what is declared, else what a look at some records shows."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardio.codecs import infer_schema
from shardio.convert._guess import guess_schema
from shardio.convert._images import IMAGE_TYPES
from shardio.convert._source import Piece, Sample, Source, Unreadable
from shardio.convert._tfrecord import ShardioDataset
from shardio.convert._webdataset import WebDataset
from shardio.errors import SchemaError, ShardioError, StorageError
from shardio.metadata import Schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["settle"]

_LOOK_AT = 1000
_LOOK_AT_BYTES = 64 << 20
_PLACES = 8
_SMALL = 16 << 20


@dataclass
class _Look:
    """What a look at some records of a source showed."""

    samples: list[Sample] = field(default_factory=list)
    bytes: int = 0

    def full(self, share: int) -> bool:
        return len(self.samples) >= share or self.bytes > _LOOK_AT_BYTES


def settle(
    source: Source, pieces: Sequence[Piece], schema: Any, encoding: str | None, *, lenient: bool
) -> tuple[Schema | None, list[str]]:
    """Return the schema (the caller's, the source's own, or one inferred), and what to know of it."""
    if source.payloads:
        return _settle_payloads(source, pieces, schema, encoding)
    if isinstance(schema, Schema):
        _check_readable(source, schema)
        return Schema.parse(schema, encoding=encoding), []
    samples = [] if source.declared else _look(source, pieces).samples
    found = guess_schema(source, samples, schema, encoding=encoding, lenient=lenient)
    return found, _doubts(source, found, schema or {})


def _check_readable(source: Source, schema: Schema) -> None:
    """Refuse a schema that asks for columns of which the source knows that they cannot be read so."""
    for name, known in source.known().items() if source.declared else ():
        if isinstance(known, Unreadable) and name in schema and schema[name].type != known.keep:
            advice = f"declare it as {known.keep}" if known.keep else "leave it out of the schema"
            raise SchemaError(known.reason, advice=advice)


def _doubts(source: Source, schema: Schema | None, given: Mapping[str, Any]) -> list[str]:
    """Return what the caller may not expect of an inferred schema."""
    if not isinstance(source, WebDataset):
        return []
    return [
        f"none of the members {name!r} that were looked at is an image: they are kept as bytes, unchecked"
        for name, feature in (schema or {}).items()
        if name not in given and feature.type == "bytes" and name.rpartition(".")[2] in IMAGE_TYPES
    ]


def _settle_payloads(
    source: Source, pieces: Sequence[Piece], schema: Any, encoding: str | None
) -> tuple[Schema | None, list[str]]:
    if schema is not None:
        return Schema.parse(schema, encoding=encoding), []
    if isinstance(source, ShardioDataset):
        return source.schema, []
    payloads = [sample.value for sample in _look(source, pieces).samples]
    try:
        found, report = infer_schema(payloads)
    except (ShardioError, ValueError):
        # They are no Examples: bytes they stay.
        return None, []
    return found, report.notes()


def _look(source: Source, pieces: Sequence[Piece]) -> _Look:
    """Read some records from up to eight places spread over the source."""
    count = min(_PLACES, len(pieces))
    look = _Look()
    chosen = [pieces[len(pieces) * place // count] for place in range(count)]
    if len(pieces) > _PLACES and sum(piece.size for piece in pieces) < _SMALL:
        # Where a piece is a record, eight of them say little.
        chosen = list(pieces[:: max(1, len(pieces) // _LOOK_AT)])
    for number, piece in enumerate(chosen, 1):
        share = -(-_LOOK_AT * number // len(chosen))
        try:
            for found in itertools.islice(source.records(piece), _LOOK_AT):
                if not isinstance(found, Sample):
                    continue
                look.samples.append(found)
                look.bytes += _size(found.value)
                if look.full(share):
                    break
        except StorageError:
            raise
        except ShardioError:
            # Damage is told, or left out, by the worker that comes to it.
            continue
    return look


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return len(value) if isinstance(value, bytes | str) else 64
