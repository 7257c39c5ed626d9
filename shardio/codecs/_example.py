"""tf.train.Example and SequenceExample as plain values, without a schema: what goes in comes out by kind.

An Example knows three kinds of lists and no shapes: integers become int64, floats float32, str and bytes
bytes; arrays are flattened in C order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from shardio import kernels
from shardio.errors import CorruptRecordError, SchemaError
from shardio.metadata import Feature, ValueMismatchError, to_number_array

Values: TypeAlias = "list[bytes] | npt.NDArray[np.int64] | npt.NDArray[np.float32]"

_INT64 = Feature("int64[?]")
_FLOAT32 = Feature("float32[?]")
# In a set, because comparing dtypes costs more than hashing one.
_OWN_DTYPES = frozenset((np.dtype(np.int64), np.dtype(np.float32)))
_INT64_LIMIT = 1 << 63
_TEXT = (str, bytes, bytearray, memoryview)


def encode_example(features: Mapping[str, object]) -> bytes:
    """Encode a tf.train.Example.

    Args:
        features: by name int, float, bool, str, bytes, or a list or NumPy array of one of them.  Integers and
            bools are stored as int64, floats as float32 (rounded), str as UTF-8.  An empty list has no kind.

    Returns:
        The payload, with features sorted by name.

    Raises:
        SchemaError: a value that an Example cannot hold; names the feature.

    Examples:
        >>> decode_example(encode_example({"label": 3, "image": b"..."}))
        {'image': [b'...'], 'label': array([3])}
    """
    return kernels.encode_example(_features(features))


def decode_example(payload: bytes | memoryview) -> dict[str, Values]:
    """Decode a tf.train.Example into lists of bytes and arrays of int64 or float32, by name, sorted.

    A feature that has no kind is an empty list.

    Raises:
        CorruptRecordError: the payload is no Example.
    """
    from shardio.v1 import example_pb2

    message = parsed_message(example_pb2.Example, payload, "tf.train.Example")
    return _values(message.features.feature)


def encode_sequence_example(value: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Encode a tf.train.SequenceExample.

    Args:
        value: `{"context": {name: value}, "feature_lists": {name: [step, ...]}}`; either may be left out.  A
            value and a step are what `encode_example` takes.

    Raises:
        SchemaError: a value that cannot be held; names the feature, and the step.
    """
    extra = sorted(set(value) - {"context", "feature_lists"})
    if extra:
        what = "a sequence example has two parts"
        raise SchemaError(what, expected="context, feature_lists", found=", ".join(map(str, extra)))
    lists: dict[str, list[Any]] = {}
    for name, steps in value.get("feature_lists", {}).items():
        listed = isinstance(steps, Sequence) and not isinstance(steps, _TEXT)
        if not listed and not (isinstance(steps, np.ndarray) and steps.ndim):
            raise _misfit(name, "a list with one value per step", type(steps).__name__)
        lists[_key(name)] = [_feature(f"{name}, step {number}", step) for number, step in enumerate(steps)]
    return kernels.encode_sequence_example(_features(value.get("context", {})), lists)


def decode_sequence_example(payload: bytes | memoryview) -> dict[str, dict[str, Any]]:
    """Decode a tf.train.SequenceExample into `{"context": {...}, "feature_lists": {name: [step, ...]}}`.

    Values and steps are what `decode_example` gives.

    Raises:
        CorruptRecordError: the payload is no SequenceExample.
    """
    from shardio.v1 import example_pb2

    message = parsed_message(example_pb2.SequenceExample, payload, "tf.train.SequenceExample")
    entries = message.feature_lists.feature_list
    lists = {name: [_listed(step) for step in entries[name].feature] for name in sorted(entries)}
    return {"context": _values(message.context.feature), "feature_lists": lists}


def _features(features: Mapping[str, object]) -> dict[str, Any]:
    if not isinstance(features, Mapping):
        raise SchemaError("an Example is made of a mapping of names to values", found=type(features).__name__)
    # What most records are made of goes straight to the kernel, without a call for each.
    return {
        (name if type(name) is str and name.isascii() else _key(name)): (
            value if type(value) is bytes else _feature(name, value)
        )
        for name, value in features.items()
    }


def _key(name: object) -> str:
    what = "a feature's name is a str that UTF-8 can hold"
    if not isinstance(name, str):
        raise SchemaError(what, found=ascii(name))
    try:
        name.encode()
    except UnicodeEncodeError:
        raise SchemaError(what, found=ascii(name)) from None
    return name


def _feature(name: str, value: object) -> Any:
    """Return the value as the kernel takes it: bytes, list of bytes, int64, float32, or None for no kind."""
    if type(value) is np.ndarray and value.dtype in _OWN_DTYPES:
        return value
    if type(value) is int and -_INT64_LIMIT <= value < _INT64_LIMIT:
        return value
    if isinstance(value, _TEXT):
        return _item(name, value)
    if isinstance(value, list | tuple) and not value:
        return None
    if isinstance(value, np.ndarray) and value.dtype.kind in "SUO":
        value = value.ravel().tolist()
    if isinstance(value, list | tuple) and any(isinstance(item, _TEXT) for item in value):
        return [_item(name, item) for item in value]
    array = _numbers(name, value)
    return (_FLOAT32 if array.dtype.kind == "f" else _INT64).fit(array.ravel(), name)


def _item(name: str, item: object) -> bytes:
    if isinstance(item, str):
        try:
            return item.encode()
        except UnicodeEncodeError as error:
            raise _misfit(name, "text that UTF-8 can hold", f"a lone surrogate at {error.start}") from None
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item)
    raise _misfit(name, "str or bytes, like the items beside it", type(item).__name__)


def _numbers(name: str, value: object) -> npt.NDArray[Any]:
    expected = "int, float, bool, str, bytes, or a list or array of one of them"
    try:
        array = to_number_array(value, expected)
    except ValueMismatchError as error:
        raise _misfit(name, expected, error.found, error.advice) from None
    if array.dtype.kind not in "biuf":
        raise _misfit(name, expected, f"{type(value).__name__} of {array.dtype}")
    return array


def _misfit(name: str, expected: str, found: str, advice: str | None = None) -> SchemaError:
    what = f"value of feature {name!r} cannot be stored in an Example"
    return SchemaError(what, expected=expected, found=found, advice=advice)


def parsed_message(cls: Any, payload: bytes | memoryview, what: str) -> Any:
    """Parse a payload; CorruptRecordError says what it is not."""
    from google.protobuf.message import DecodeError

    try:
        return cls.FromString(bytes(payload))
    except DecodeError as error:
        advice = "check that the records are of this kind, and verify the shard"
        raise CorruptRecordError(f"the record is not a valid {what} ({error})", advice=advice) from None


def _values(entries: Any) -> dict[str, Values]:
    return {name: _listed(entries[name]) for name in sorted(entries)}


def _listed(feature: Any) -> Values:
    value = value_of(feature)
    return [] if value is None else value


def value_of(feature: Any) -> Values | None:
    """Return the values of a message `Feature`, None where it has no kind."""
    kind = feature.WhichOneof("kind")
    if kind == "bytes_list":
        return list(feature.bytes_list.value)
    if kind == "int64_list":
        values = feature.int64_list.value
        return np.fromiter(values, np.int64, len(values))
    return None if kind is None else _floats(feature.float_list)


def _floats(holder: Any) -> npt.NDArray[np.float32]:
    """Take the packed values out of the list's own serialisation: the way that keeps every bit of a NaN."""
    size = 4 * len(holder.value)
    if not size:
        return np.empty(0, np.float32)
    # One byte of tag, and the length as a varint of 7 bits a byte.
    start = 1 + (size.bit_length() + 6) // 7
    return np.frombuffer(holder.SerializeToString(), "<f4", size // 4, start).astype(np.float32)
