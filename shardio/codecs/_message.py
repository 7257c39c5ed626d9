"""Records of any user's own protobuf messages: the class is the schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from google.protobuf.message import DecodeError, EncodeError, Message as _Base

from shardio.codecs._codec import Payloads, RecordCodec, as_list
from shardio.errors import CorruptRecordError, SchemaError

_M = TypeVar("_M", bound="_Base")


class Message(RecordCodec, Generic[_M]):
    """Read and write records that are messages of one protobuf class.

    Evolution is protobuf's own. Fields may be added and deprecated, and numbers are never used again. Old
    programs keep fields that they do not know. New ones see defaults where old records have nothing.

    Args:
        cls: a class made by protoc.

    Raises:
        TypeError: `cls` is not such a class.

    Examples:
        >>> from shardio.v1.example_pb2 import Int64List
        >>> numbers = Message(Int64List)
        >>> payload = numbers.encode(Int64List(value=[1, 2]))
        >>> numbers.to_json(numbers.decode(payload))
        '{"value": ["1", "2"]}'
    """

    def __init__(self, cls: type[_M]) -> None:
        if not (
            isinstance(cls, type) and issubclass(cls, _Base) and getattr(cls, "DESCRIPTOR", None) is not None
        ):
            raise TypeError(f"Message is made of a protobuf message class, not {cls!r}")
        self.cls = cls

    @property
    def full_name(self) -> str:
        """The message's name with its package, as in the .proto file."""
        return str(self.cls.DESCRIPTOR.full_name)

    def encode(self, value: Any) -> bytes:
        """Encode a message, or a dict by protobuf's JSON mapping; equal messages give equal bytes.

        Raises:
            SchemaError: another class, a required field (proto2) that is not set, a dict that does not fit.
        """
        # The usual way is short: an import inside the function would cost more than the message.
        if type(value) is self.cls:
            try:
                payload: bytes = value.SerializeToString(deterministic=True)
            except Exception:  # noqa: BLE001 - the long way says what it is
                return self._encode(value)
            return payload
        return self._encode(value)

    def _encode(self, value: Any) -> bytes:
        from google.protobuf import json_format

        try:
            message = json_format.ParseDict(value, self.cls()) if isinstance(value, dict) else value
            if not isinstance(message, self.cls):
                what = "the record is another message"
                raise SchemaError(what, expected=self.full_name, found=type(value).__name__)
            return message.SerializeToString(deterministic=True)
        except (json_format.ParseError, EncodeError) as error:
            raise SchemaError(f"the record does not fit the message {self.full_name}: {error}") from error

    def decode_many(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> list[_M]:
        """Decode to messages; `features` cannot be chosen.

        Raises:
            CorruptRecordError: a payload is not such a message; `row` is its number within this call.
        """
        self._selected((), features)
        messages: list[_M] = []
        try:
            messages.extend(map(self.cls.FromString, as_list(payloads)))
        except DecodeError as error:
            what = f"the record is not a valid {self.full_name} ({error})"
            advice = "check that the records are of this kind, and verify the shard"
            raise CorruptRecordError(what, row=len(messages), advice=advice) from None
        return messages

    def decode_batch(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> dict[str, Any]:
        """Decode to the one column `{"message": [...]}`."""
        return {"message": self.decode_many(payloads, features=features)}

    def to_json(self, message: _M) -> str:
        """Return a message as JSON in one line, by protobuf's own mapping."""
        from google.protobuf import json_format

        return json_format.MessageToJson(message, indent=None)

    def from_json(self, text: str | bytes) -> _M:
        """Return the message that JSON says, by protobuf's own mapping.

        Raises:
            SchemaError: it is not JSON, or not of this message.
        """
        from google.protobuf import json_format

        try:
            return json_format.Parse(text, self.cls())
        except json_format.ParseError as error:
            raise SchemaError(f"the JSON does not fit the message {self.full_name}: {error}") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.cls is other.cls

    def __hash__(self) -> int:
        return hash(self.cls)

    def __repr__(self) -> str:
        return f"Message({self.cls.__module__}.{self.cls.__qualname__})"
