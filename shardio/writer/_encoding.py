"""From a caller's value to the payload of a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardio.codecs import RecordCodec
    from shardio.metadata import Schema

__all__ = ["encoder"]


def encoder(schema: Schema | RecordCodec | None) -> Callable[[Any], bytes]:
    """Return the function that encodes values by a schema or codec; without one it passes bytes on."""
    if schema is None:
        return _plain_bytes
    from shardio.codecs import record_codec

    encode: Callable[[Any], bytes] = record_codec(schema).encode
    return encode


def _plain_bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    message = f"without a schema records are bytes, not {type(value).__name__}; give the writer a schema="
    raise TypeError(message)
