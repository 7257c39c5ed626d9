"""Codecs without an envelope: "array", one array of fixed shape, and "bytes", the payload as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from shardio.codecs._codec import Payloads, RecordCodec, as_list, fitting_parts, in_one_buffer
from shardio.codecs._columns import each, stack_numbers
from shardio.errors import SchemaError
from shardio.metadata import Schema

_PAYLOAD = "payload"


class ArrayCodec(RecordCodec):
    """Records that are the elements of one array, little-endian in C order; a batch is one gather.

    Values are `{name: array}`; a bare array may be written as well.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema: Schema = schema
        ((self._name, self._feature),) = schema.items()

    def encode(self, value: Any) -> bytes:
        """Encode `{name: array}`, or the array."""
        if isinstance(value, Mapping):
            value = fitting_parts(value, self.schema, "the record")[self._name]
        stored = self._feature.fit(value, self._name)
        return b"".join(stored) if isinstance(stored, list) else stored.tobytes()

    def decode_many(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> list[Any]:
        """Decode to `{name: array}` each."""
        if not self._chosen(features):
            return [{} for _ in as_list(payloads)]
        rows = self._stack(payloads)
        return [{self._name: row.copy() if self._feature.shape else row} for row in rows]

    def decode_batch(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> dict[str, Any]:
        """Decode to `{name: array [n, ...]}`.

        Records that are one after another in a writable uint8 array of the caller's are not copied again: the
        column is a view of it.
        """
        return {self._name: self._stack(payloads)} if self._chosen(features) else {}

    def _stack(self, payloads: Payloads) -> npt.NDArray[Any]:
        return stack_numbers(self._name, self._feature, *in_one_buffer(payloads), in_place=True)


class BytesCodec(RecordCodec):
    """Records that are the value itself.

    Without features values are bytes, and a batch is `{"payload": [bytes, ...]}`; with one feature of bytes,
    text, json or an image, values are `{name: value}`, and what is written may be the bare value.
    """

    def __init__(self, schema: Schema | None) -> None:
        self.schema = schema
        # None where records are opaque.
        self._name: str | None = next(iter(schema), None) if schema is not None else None
        self._feature = schema[self._name] if schema is not None and self._name is not None else None

    def encode(self, value: Any) -> bytes:
        """Encode bytes, or what the one feature holds."""
        if self._feature is None or self._name is None:
            if not isinstance(value, bytes | bytearray | memoryview):
                advice = "give the writer a schema to write anything but bytes"
                raise SchemaError(
                    "without a schema a record is bytes", found=type(value).__name__, advice=advice
                )
            return bytes(value)
        # A JSON value may be a dict itself; it is taken for the record only if it is exactly that.
        if isinstance(value, Mapping) and (set(value) == {self._name} or self._feature.kind != "json"):
            value = fitting_parts(value, {self._name: self._feature}, "the record")[self._name]
        return b"".join(self._feature.fit(value, self._name))

    def decode_many(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> list[Any]:
        """Decode to bytes, or to `{name: value}` each."""
        chosen, items = self._chosen(features), as_list(payloads)
        if self._name is None or self._feature is None:
            return items
        if not chosen:
            return [{} for _ in items]
        decode = self._feature.rules.decode
        values = items if decode is None else each(self._name, decode, items, range(len(items)))
        return [{self._name: value} for value in values]

    def decode_batch(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> dict[str, Any]:
        """Decode to one column, named as the feature, or "payload"."""
        if self._name is None:
            return {_PAYLOAD: self.decode_many(payloads, features=features)}
        return super().decode_batch(payloads, features=features)
