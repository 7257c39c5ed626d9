"""caffe2 TensorProtos to arrays and back, every data type of the message, and the codec of such records.

Field numbers and meaning: caffe2/proto/caffe2.proto; see protos/shardio/v1/tensor.proto.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardio.codecs._codec import Payloads, RecordCodec, as_list, fitting_parts
from shardio.codecs._columns import each
from shardio.errors import CorruptRecordError, FormatError, SchemaError
from shardio.metadata import Feature, Schema, ValueMismatchError, shape_fits, to_number_array

_FLOAT, _INT32, _BYTE, _STRING, _BOOL, _INT64, _FLOAT16, _DOUBLE = 1, 2, 3, 4, 5, 10, 12, 13
# Number of the data type -> dtype, and the typed field that holds the elements.
_TYPES: dict[int, tuple[np.dtype[Any], str]] = {
    _FLOAT: (np.dtype("<f4"), "float_data"),
    _INT32: (np.dtype("<i4"), "int32_data"),
    _BYTE: (np.dtype("u1"), "byte_data"),
    _BOOL: (np.dtype("?"), "int32_data"),
    6: (np.dtype("u1"), "int32_data"),
    7: (np.dtype("i1"), "int32_data"),
    8: (np.dtype("<u2"), "int32_data"),
    9: (np.dtype("<i2"), "int32_data"),
    _INT64: (np.dtype("<i8"), "int64_data"),
    _FLOAT16: (np.dtype("<f2"), "int32_data"),
    _DOUBLE: (np.dtype("<f8"), "double_data"),
}
_NUMBERS = {dtype: number for number, (dtype, _) in _TYPES.items() if number != _BYTE}
_EXPECTED = ", ".join(dtype.name for dtype in _NUMBERS)
_TYPED = ("float_data", "int32_data", "string_data", "double_data", "int64_data")
_BFLOAT16_IN_RAW = 1
_MOST_DIMENSIONS = 32


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """One TensorProto as it is stored.

    Attributes:
        name: or "".
        dims: sizes as stored; the values may be more or fewer (TorchRecord stores width and height only).
        values: one-dimensional array of the elements, or the list of strings.
    """

    name: str
    dims: tuple[int, ...]
    values: npt.NDArray[Any] | list[bytes]

    def shaped(self) -> npt.NDArray[Any] | list[bytes]:
        """Return the values in their shape.

        Strings are a list.  Bytes whose number is not the product of `dims` come flat, because some programs
        store images so.

        Raises:
            CorruptRecordError: another number of elements than `dims` says.
        """
        values = self.values
        size = math.prod(self.dims)
        if isinstance(values, list):
            if len(values) != size and self.dims:
                raise CorruptRecordError(
                    "a tensor has the wrong number of strings", expected=size, found=len(values)
                )
            return values
        if values.size == size:
            return values.reshape(self.dims)
        if values.dtype == np.uint8:
            return values
        raise CorruptRecordError(
            "a tensor has the wrong number of elements", expected=size, found=values.size
        )


def encode_tensors(tensors: Sequence[object] | Mapping[str, object]) -> bytes:
    """Encode a TensorProtos message.

    Args:
        tensors: one value per tensor, or values by name. A value is a NumPy array or scalar of bool, int8,
            uint8, int16, uint16, int32, int64, float16, float32 or float64. It may be an int (stored as
            int64), a float (float32) or nested lists of them. str, bytes and lists of these become strings.

    Raises:
        SchemaError: a value that TensorProto has no type for; names the tensor.
    """
    from shardio.v1 import tensor_pb2

    named = isinstance(tensors, Mapping)
    if not named and (isinstance(tensors, str | bytes | np.ndarray) or not isinstance(tensors, Sequence)):
        what = "tensors are a list of values, or a mapping of names to values"
        raise SchemaError(what, found=type(tensors).__name__)
    message = tensor_pb2.TensorProtos()
    for label, value in tensors.items() if isinstance(tensors, Mapping) else enumerate(tensors):
        fill_tensor(message.protos.add(), label, value)
        if named:
            message.protos[-1].name = str(label)
    data: bytes = message.SerializeToString()
    return data


def decode_tensors(payload: bytes | memoryview) -> Any:
    """Decode a TensorProtos message into its values, shaped.

    Returns:
        A list of arrays (and of lists of bytes, for strings), in order; or, when every tensor has a name of
        its own, a dict by name.  What `encode_tensors` was given comes back.

    Raises:
        CorruptRecordError: the payload is no TensorProtos, or a tensor contradicts itself.
        FormatError: a data type or format that is not of this message.
    """
    tensors = read_tensors(payload)
    names = [tensor.name for tensor in tensors]
    values = [tensor.shaped() for tensor in tensors]
    if names and all(names) and len(set(names)) == len(names):
        return dict(zip(names, values, strict=True))
    return values


def read_tensors(payload: bytes | memoryview) -> list[Tensor]:
    """Read the tensors of a TensorProtos message as they are stored, with names and stored sizes."""
    from google.protobuf.message import DecodeError

    from shardio.v1 import tensor_pb2

    try:
        message = tensor_pb2.TensorProtos.FromString(bytes(payload))
    except DecodeError as error:
        what = f"the record is not a valid TensorProtos ({error})"
        raise CorruptRecordError(what, advice="check that the records are of this kind") from None
    return [_read(number, proto) for number, proto in enumerate(message.protos)]


def fill_tensor(proto: Any, label: object, value: object) -> None:
    """Write a value into an empty TensorProto; SchemaError names `label`."""
    items = [value] if isinstance(value, str | bytes) else value
    if isinstance(items, list | tuple) and items and all(isinstance(item, str | bytes) for item in items):
        proto.data_type = _STRING
        proto.dims.append(len(items))
        proto.string_data.extend(_string(label, item) for item in items)
        return
    array = _numbers(label, value)
    little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
    number = _NUMBERS.get(little.dtype)
    if number is None:
        raise _no_type(label, f"{type(value).__name__} of {array.dtype}")
    proto.data_type = number
    proto.dims.extend(array.shape)
    field = _TYPES[number][1]
    flat = little.ravel()
    if number in (_FLOAT, _DOUBLE):
        # The packed field itself, so that a NaN keeps its bits, which it would not as a Python float.
        proto.MergeFromString(_packed(field, flat.tobytes()))
    else:
        integers = flat.view("<u2") if number == _FLOAT16 else flat.view("u1") if number == _BOOL else flat
        getattr(proto, field).extend(integers.tolist())


def _string(label: object, item: str | bytes) -> bytes:
    try:
        return item.encode() if isinstance(item, str) else item
    except UnicodeEncodeError as error:
        what = f"tensor {label!r} is text that UTF-8 cannot hold"
        raise SchemaError(what, found=f"a lone surrogate at {error.start}") from None


def _numbers(label: object, value: object) -> npt.NDArray[Any]:
    """Return the array of a tensor: an array as it is, Python's floats as float32 where they fit."""
    try:
        array = to_number_array(value, _EXPECTED)
    except ValueMismatchError as error:
        raise _no_type(label, error.found, error.advice) from None
    if array.dtype == np.float64 and not isinstance(value, np.ndarray | np.generic):
        fitted = Feature("float32[?]").fit(array.ravel(), str(label))
        return np.reshape(np.asarray(fitted), array.shape)
    return array


def _no_type(label: object, found: str, advice: str | None = None) -> SchemaError:
    what = f"TensorProto has no type for tensor {label!r}"
    return SchemaError(what, expected=_EXPECTED, found=found, advice=advice)


def _packed(field: str, data: bytes) -> bytes:
    """Encode a packed field: its tag, the length as a varint, the elements."""
    head = bytearray([{"float_data": 3, "double_data": 9}[field] << 3 | 2])
    size = len(data)
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head) + data


def _read(number: int, proto: Any) -> Tensor:
    label = repr(proto.name) if proto.name else str(number)
    dims = tuple(proto.dims)
    if (
        len(dims) > _MOST_DIMENSIONS
        or any(size < 0 for size in dims)
        or math.prod(max(s, 1) for s in dims) > 1 << 40
    ):
        shown = f"{len(dims)} sizes" if len(dims) > _MOST_DIMENSIONS else list(dims)
        raise CorruptRecordError(f"tensor {label} has impossible sizes", found=shown)
    if proto.data_type == _STRING:
        return Tensor(proto.name, dims, list(proto.string_data))
    if proto.data_type not in _TYPES:
        advice = "only the types of caffe2's TensorProto can be read"
        raise FormatError(f"tensor {label} has data type {proto.data_type}", advice=advice)
    return Tensor(proto.name, dims, _elements(label, proto))


def _elements(label: str, proto: Any) -> npt.NDArray[Any]:
    dtype, field = _TYPES[proto.data_type]
    if proto.data_format == _BFLOAT16_IN_RAW and proto.data_type == _FLOAT:
        halves = _from_raw(label, proto.raw_data, np.dtype("<u2"))
        return (halves.astype(np.uint32) << 16).view(np.float32)
    if proto.data_format:
        advice = "a newer program wrote it"
        raise FormatError(f"tensor {label} has data format {proto.data_format}", advice=advice)
    raw = [part for part in (proto.raw_data, proto.byte_data) if part]
    typed = [name for name in _TYPED if len(getattr(proto, name))]
    if len(raw) + len(typed) > 1:
        raise CorruptRecordError(f"tensor {label} has elements in more than one field")
    if raw:
        return _from_raw(label, raw[0], dtype)
    if typed and typed != [field]:
        raise CorruptRecordError(f"tensor {label} has its elements in {typed[0]}", expected=field)
    if proto.data_type == _BYTE:
        return np.empty(0, np.uint8)
    if proto.data_type in (_FLOAT, _DOUBLE):
        return _from_packed(proto, field, dtype)
    values = np.array(getattr(proto, field), np.int64)
    return _narrowed(label, values, dtype)


def _from_raw(label: str, raw: bytes, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if len(raw) % dtype.itemsize:
        what = f"tensor {label} ends within an element"
        raise CorruptRecordError(what, expected=f"a multiple of {dtype.itemsize} bytes", found=len(raw))
    if dtype.kind == "b" and max(raw, default=0) > 1:
        raise CorruptRecordError(
            f"tensor {label} holds a byte that is not a bool", expected="0 or 1", found=max(raw)
        )
    return np.frombuffer(bytearray(raw), dtype)


def _from_packed(proto: Any, field: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Take floats out of the field's own serialisation, which keeps the bits of a NaN."""
    count = len(getattr(proto, field))
    alone = type(proto)()
    getattr(alone, field).MergeFrom(getattr(proto, field))
    data = alone.SerializeToString()
    return np.frombuffer(bytearray(data[len(data) - count * dtype.itemsize :]), dtype)


def _narrowed(label: str, values: npt.NDArray[np.int64], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.kind == "i" and dtype.itemsize == 8:
        return values
    if dtype.kind == "f":
        # float16 is stored as its bits, which some writers sign-extend.
        low, high = -(1 << 15), (1 << 16) - 1
    elif dtype.kind == "b":
        low, high = 0, 1
    else:
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if values.size and (values.min() < low or values.max() > high):
        found = int(values.min() if values.min() < low else values.max())
        raise CorruptRecordError(f"tensor {label} has an element that is not a {dtype.name}", found=found)
    return values.astype(np.uint16).view(np.float16) if dtype.kind == "f" else values.astype(dtype)


class TensorsCodec(RecordCodec):
    """Records of named tensors; values are dicts by the schema.

    Text, json, bytes and images are string tensors, bfloat16 its bits as UINT16.  Tensors without names, as
    other writers make them, are taken in the order of the schema.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema: Schema = schema

    def encode(self, value: Any) -> bytes:
        """Encode a dict; None stands for a missing optional feature."""
        from shardio.v1 import tensor_pb2

        given = fitting_parts(value, self.schema, "the record")
        message = tensor_pb2.TensorProtos()
        for name, feature in self.schema.items():
            item = given.get(name)
            if item is None and feature.optional:
                continue
            stored = feature.fit(item, name)
            proto = message.protos.add()
            if isinstance(stored, list):
                proto.data_type = tensor_pb2.TensorProto.STRING
                proto.dims.append(len(stored))
                proto.string_data.extend(stored)
            else:
                fill_tensor(proto, name, stored)
            proto.name = feature.stored_name or name
        data: bytes = message.SerializeToString()
        return data

    def decode_many(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> list[Any]:
        """Decode to dicts by feature."""
        names = self._chosen(features)
        values: list[Any] = []
        try:
            values.extend(self._value(read_tensors(payload), names) for payload in as_list(payloads))
        except (SchemaError, FormatError) as error:
            # Rows of the errors of single items are all 0: there was one.
            error.row = len(values)
            raise
        return values

    def _value(self, tensors: list[Tensor], names: Sequence[str]) -> dict[str, Any]:
        by_name = self._by_name(tensors)
        return {
            name: self._item(name, self.schema[name], by_name.get(self.schema[name].stored_name or name))
            for name in names
        }

    def _by_name(self, tensors: list[Tensor]) -> dict[str, Tensor]:
        """Return the tensors by name, those without names by their place; none is dropped for another."""
        named = [tensor.name for tensor in tensors if tensor.name]
        if tensors and not named:
            stored = [feature.stored_name or name for name, feature in self.schema.items()]
            if len(tensors) > len(stored):
                raise SchemaError(
                    "the record holds more tensors than the schema has features",
                    expected=f"at most {len(stored)} tensors without names",
                    found=f"{len(tensors)} tensors",
                    advice="list a feature for each tensor in the schema, in their order",
                )
            return dict(zip(stored, tensors, strict=False))
        by_name = {tensor.name: tensor for tensor in tensors}
        if len(named) < len(tensors) or len(by_name) < len(tensors):
            raise SchemaError(
                "the tensors of a record have different names, or none of them has one",
                found=", ".join(repr(tensor.name) for tensor in tensors)[:200],
                advice="write the record again, with a name of its own for each tensor",
            )
        return by_name

    def _item(self, name: str, feature: Feature, tensor: Tensor | None) -> Any:
        if tensor is None:
            if not feature.optional:
                advice = "make the feature optional in the schema if it may be missing"
                raise SchemaError(f"feature {name!r} is required and the record lacks it", advice=advice)
            return feature.default
        if isinstance(tensor.values, list):
            return self._items(name, feature, tensor.values)
        if feature.dtype is None and tensor.values.dtype == np.uint8:
            return self._items(name, feature, [tensor.values.tobytes()])
        values = tensor.shaped()
        fits = isinstance(values, np.ndarray) and values.dtype == feature.dtype
        if not fits or not shape_fits(feature.shape, np.shape(values)):
            found = f"{tensor.values.dtype.name}, sizes {list(tensor.dims)}"
            raise SchemaError(
                f"feature {name!r} does not fit the schema", expected=feature.short, found=found
            )
        return values if feature.shape else np.asarray(values)[()]

    def _items(self, name: str, feature: Feature, items: list[bytes]) -> Any:
        if feature.dtype is not None:
            what = f"feature {name!r} does not fit the schema"
            raise SchemaError(what, expected=feature.short, found="strings")
        if len(items) != 1 if not feature.shape else feature.shape[0] not in (None, len(items)):
            what = f"feature {name!r} has the wrong number of values"
            raise SchemaError(what, expected=feature.short, found=len(items))
        decode = feature.rules.decode
        values = items if decode is None else each(name, decode, items, [0] * len(items))
        return values if feature.shape else values[0]
