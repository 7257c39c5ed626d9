"""What writer, reader and streams know of a codec: values to payloads, payloads to values and columns.

Records come to a codec in two forms: a sequence of payloads, or ranges of one buffer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from shardio import kernels
from shardio.arguments import names
from shardio.codecs._columns import collate
from shardio.errors import SchemaError, ShardioError
from shardio.metadata import Feature, Schema

# Payloads, or records lying in one buffer: (buffer, starts, stops), half-open ranges in bytes.
Payloads: TypeAlias = "Sequence[bytes] | tuple[Any, Any, Any]"


class RecordCodec(ABC):
    """Turn values into records and back.  Without state that changes: one codec serves all threads.

    Attributes:
        schema: what the records hold, or None where they are opaque bytes or messages of the caller's own.
        features: what is decoded where a call does not say; None means all.
        inner: the codec around which this one is; None where it stands alone.
    """

    schema: Schema | None = None
    features: tuple[str, ...] | None = None
    inner: RecordCodec | None = None

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Return the payload of a record.

        Raises:
            SchemaError: the value does not fit; names the feature.  The caller adds the record's number.
        """

    @abstractmethod
    def decode_many(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> list[Any]:
        """Return the values of n records, each independent of the others and of the payloads.

        Args:
            payloads: a sequence of bytes, or `(buffer, starts, stops)`.
            features: the only ones to decode; None means those of the codec.

        Raises:
            SchemaError: a record does not fit the schema; names the feature.
            CorruptRecordError: bytes are not what they should be.  Of both, `row` is the record's number
                within this call.
            ValueError: no such feature.
        """

    def decode_batch(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> dict[str, Any]:
        """Return n records as columns by feature; arguments and errors are those of `decode_many`.

        Numbers of fixed shape are one array [n, ...], numbers of varying shape a `RaggedColumn`, everything
        else is a list; decoded images of one size are one array.
        """
        schema: Mapping[str, Feature] = self.schema or {}
        rows = self.decode_many(payloads, features=features)
        return {
            name: collate(name, schema[name], [row[name] for row in rows]) for name in self._chosen(features)
        }

    def decode(self, payload: bytes | memoryview, *, features: Sequence[str] | None = None) -> Any:
        """Return the value of one record.

        Args:
            payload: of the record.
            features: the only ones to decode; None means those of the codec.

        Raises:
            SchemaError: it does not fit the schema; names the feature.
            CorruptRecordError: bytes are not what they should be.
            ValueError: no such feature.
        """
        try:
            return self._decode_one(bytes(payload), features)
        except ShardioError as error:
            error.row = None
            raise

    def _decode_one(self, payload: bytes, features: Sequence[str] | None) -> Any:
        return self.decode_many([payload], features=features)[0]

    def _selected(self, known: Iterable[str], features: Sequence[str] | None) -> tuple[str, ...] | None:
        """Return the names to decode, in the order asked for, None for all."""
        asked = self.features if features is None else features
        return None if asked is None else _selected(known, asked)

    def _chosen(self, features: Sequence[str] | None) -> tuple[str, ...]:
        """Return the names of the schema to decode, in the order asked for."""
        schema: Mapping[str, Feature] = self.schema or {}
        chosen = self._selected(schema, features)
        return tuple(schema) if chosen is None else chosen


def _selected(known: Iterable[str], features: Sequence[str]) -> tuple[str, ...]:
    """Return the names to decode, in the order asked for.

    Raises:
        TypeError: `features` is one string.
        ValueError: a name is unknown; says which there are.
    """
    there, asked = frozenset(known), tuple(dict.fromkeys(names("features", features)))
    unknown = [name for name in asked if name not in there]
    if unknown:
        message = f"there is no feature {unknown[0]!r}; the features are {', '.join(sorted(there)) or 'none'}"
        raise ValueError(message)
    return asked


def fitting_parts(value: object, schema: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    """Check that a value is a mapping of features of the schema, with every required one.

    Raises:
        SchemaError: it is not; names the feature.
    """
    if not isinstance(value, Mapping):
        advice = "write dicts by the schema, or open the writer without one to write bytes"
        message = f"{what} is a mapping of feature names to values"
        raise SchemaError(message, found=type(value).__name__, advice=advice)
    for name, feature in schema.items():
        if name not in value and not feature.optional:
            advice = "give it a value, or make it optional in the schema"
            raise SchemaError(f"{what} lacks feature {name!r}", expected=feature.short, advice=advice)
    unknown = [name for name in value if name not in schema]
    if unknown:
        message = f"{what} has a feature {unknown[0]!r} that the schema does not have"
        raise SchemaError(message, expected=f"one of {', '.join(schema)}", advice="add it to the schema")
    return value


def as_records(payloads: Payloads) -> kernels.Records | Sequence[Any]:
    """Return what the kernels take."""
    if _lies_in_buffer(payloads):
        return kernels.Records(*payloads)
    _refuse_one(payloads)
    return payloads


def count_of(payloads: Payloads) -> int:
    """Return how many records there are."""
    return len(payloads[1]) if _lies_in_buffer(payloads) else len(payloads)


def as_list(payloads: Payloads) -> list[bytes]:
    """Return the payloads as bytes objects of their own.

    Raises:
        IndexError: bounds leave the buffer.
    """
    if _lies_in_buffer(payloads):
        return kernels.slice_records(*payloads)
    _refuse_one(payloads)
    return [bytes(payload) for payload in payloads]


def in_one_buffer(payloads: Payloads) -> tuple[Any, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the payloads as a buffer with bounds."""
    if _lies_in_buffer(payloads):
        buffer, starts, stops = payloads
        return buffer, np.asarray(starts, np.int64), np.asarray(stops, np.int64)
    _refuse_one(payloads)
    offsets = np.zeros(len(payloads) + 1, np.int64)
    np.cumsum([len(payload) for payload in payloads], out=offsets[1:])
    return b"".join(payloads), offsets[:-1], offsets[1:]


def _refuse_one(payloads: object) -> None:
    if isinstance(payloads, bytes | bytearray | memoryview | str):
        raise TypeError("expected a sequence of payloads, or (buffer, starts, stops); found one payload")
    if not hasattr(payloads, "__len__"):
        message = f"expected a sequence of payloads, found {type(payloads).__name__}; make a list of it"
        raise TypeError(message)


def _lies_in_buffer(payloads: Payloads) -> bool:
    return (
        isinstance(payloads, tuple) and len(payloads) == 3 and not isinstance(payloads[1], bytes | memoryview)
    )
