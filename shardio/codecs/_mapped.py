"""Records that functions were called with: around the codec of any encoding, which gives their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from shardio.codecs._codec import Payloads, RecordCodec, as_list
from shardio.codecs._columns import stack
from shardio.errors import SchemaError


class MappedCodec(RecordCodec):
    """A codec that calls functions with another one's values; it has no schema, and encodes nothing.

    Args:
        inner: gives the values, None for payload bytes.
        functions: are called one after another, each with what the one before returned.
    """

    def __init__(self, inner: RecordCodec | None, functions: Sequence[Callable[[Any], Any]]) -> None:
        self.inner = inner
        self.functions = tuple(functions)

    def encode(self, value: Any) -> NoReturn:
        del value
        raise SchemaError("what map() made of records cannot be written as it was stored")

    def decode_many(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> list[Any]:
        if self.inner is None:
            values: list[Any] = as_list(payloads)
        else:
            values = self.inner.decode_many(payloads, features=features)
        for function in self.functions:
            values = [function(value) for value in values]
        return values

    def decode_batch(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> dict[str, Any]:
        return stack(self.decode_many(payloads, features=features))
