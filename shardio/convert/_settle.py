"""The schema that a source is converted with: what is declared, else what a look at some records shows."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardio.codecs import infer_schema
from shardio.convert._guess import guess_schema
from shardio.convert._source import Odd, Piece, Sample, Source
from shardio.convert._tfrecord import ShardioDataset
from shardio.errors import ShardioError, StorageError
from shardio.metadata import Schema

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        return Schema.parse(schema, encoding=encoding), []
    samples = [] if source.declared else _look(source, pieces).samples
    return guess_schema(source, samples, schema, encoding=encoding, lenient=lenient), []


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
            for found in itertools.islice(source.read(piece), _LOOK_AT):
                if isinstance(found, Odd):
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
