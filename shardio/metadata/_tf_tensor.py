"""Arrays as TensorFlow serializes them: `tf.io.serialize_tensor` and `tf.io.parse_tensor` without TensorFlow.

Fields and types: tensorflow/core/framework/tensor.proto and types.proto; see also tf_tensor.proto here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardio.errors import CorruptRecordError, SchemaError
from shardio.metadata._numbers import (
    BFLOAT16,
    NUMBERS,
    Kind,
    ValueMismatchError,
    describe,
    holds_mask,
    to_number_array,
)

if TYPE_CHECKING:
    from shardio.v1 import tf_tensor_pb2

_STRING = 7
_TYPES = {kind.tensorflow[0]: kind for kind in NUMBERS.values()}
_MOST_DIMENSIONS = 32
_MOST_BYTES = (1 << 32) - 1
# One value may stand for all that follow, so a few bytes may claim any size.
_MOST_FILLED = 64 << 20


def serialize_tensor(array: object) -> bytes:
    """Return an array as `tf.io.serialize_tensor` does, byte for byte.

    Args:
        array: anything that NumPy takes for an array of numbers or bools; `str` or `bytes`, alone or as an
            array, are strings. An array of `ml_dtypes.bfloat16` is one of bfloat16.

    Returns:
        The bytes of a `TensorProto`, as `tf.io.parse_tensor` reads them.

    Raises:
        SchemaError: TensorFlow has no type for it.

    Examples:
        >>> import numpy as np
        >>> parse_tensor(serialize_tensor(np.arange(6).reshape(2, 3)))
        array([[0, 1, 2],
               [3, 4, 5]])
    """
    if holds_mask(array):
        raise SchemaError("a tensor has no mask; fill the array first", found="a masked array")
    try:
        values = np.asarray(array)
        if values.dtype.kind == "f" and not hasattr(array, "dtype"):
            to_number_array(array, "numbers of one type", digits=53)  # NumPy rounds integers beside floats
    except UnicodeDecodeError:  # text beside bytes
        values = np.asarray(array, object)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise SchemaError(f"NumPy takes {describe(array)} for no array ({error})") from error
    except ValueMismatchError as error:
        raise SchemaError("numbers would be rounded", found=error.found, advice=error.advice) from error
    if values.dtype.kind in "US" and not isinstance(array, np.ndarray):
        values = np.asarray(array, object)  # NumPy's own strings would lose zeros at their ends
    if values.dtype.kind in "USO":
        strings = [_string_bytes(item) for item in values.reshape(-1).tolist()]
        return _serialized(_STRING, values.shape, string_val=strings)
    return serialize_numbers(values, values.dtype.name)


def serialize_numbers(values: npt.NDArray[Any], name: str) -> bytes:
    """Return an array of numbers of a type; of bfloat16 the bits are enough.

    Raises:
        SchemaError: TensorFlow has no type for it.
    """
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    if name not in NUMBERS:
        raise SchemaError(
            f"TensorFlow has no type for an array of {values.dtype}",
            advice="cast it first, for example array.astype('float32')",
        )
    return _serialized(NUMBERS[name].tensorflow[0], values.shape, tensor_content=little.tobytes())


def _serialized(number: int, shape: tuple[int, ...], **content: Any) -> bytes:
    from shardio.v1 import tf_tensor_pb2

    message = tf_tensor_pb2.TensorFlowTensor(dtype=number, **content)
    for size in shape:
        message.tensor_shape.dim.add(size=size)
    # An empty shape is there all the same: without it the rank would be unknown.
    message.tensor_shape.SetInParent()
    return message.SerializeToString(deterministic=True)


def parse_tensor(data: bytes | memoryview) -> Any:
    """Return the array of a serialized tensor, as `tf.io.parse_tensor` does.

    Args:
        data: the bytes of TensorFlow's `TensorProto`.

    Returns:
        An array of the tensor's dtype and shape; of bfloat16 the bits as uint16, or an array of
        `ml_dtypes.bfloat16` where that package is installed; of strings an array of bytes objects.

    Raises:
        CorruptRecordError: the bytes are not a TensorProto, or its elements do not fit its shape.
        SchemaError: the type has no dtype of NumPy: quantized numbers, resources, numbers of 4 and 8 bits.
    """
    kind, array = parse_typed(data)
    return as_bfloat16(array) if kind == BFLOAT16 else array


def parse_typed(data: bytes | bytearray | memoryview) -> tuple[str, npt.NDArray[Any]]:
    """Return the name of the elements' type, "bytes" for strings, and the array; of bfloat16 the bits."""
    from google.protobuf.message import DecodeError

    from shardio.v1 import tf_tensor_pb2

    message = tf_tensor_pb2.TensorFlowTensor()
    try:
        message.ParseFromString(bytes(data))
    except DecodeError as error:
        raise CorruptRecordError("the bytes are not a TensorProto of TensorFlow") from error
    shape = tuple(dim.size for dim in message.tensor_shape.dim)
    if message.tensor_shape.unknown_rank or len(shape) > _MOST_DIMENSIONS or any(size < 0 for size in shape):
        raise CorruptRecordError("a tensor has no shape that an array can have", found=shape)
    if message.dtype == _STRING:
        return "bytes", _strings(message, shape)
    if message.dtype not in _TYPES:
        if message.dtype == 0:
            raise CorruptRecordError("the bytes are not a TensorProto of TensorFlow: they name no type")
        raise SchemaError(f"a tensor of TensorFlow's type number {message.dtype} has no array of NumPy")
    kind = _TYPES[message.dtype]
    if math.prod(max(size, 1) for size in shape) * np.dtype(kind.dtype).itemsize > _MOST_BYTES:
        raise CorruptRecordError("a tensor is larger than a record can be", found=shape)
    return kind.type, _elements(message, kind, math.prod(shape)).reshape(shape)


def _elements(message: tf_tensor_pb2.TensorFlowTensor, kind: Kind, count: int) -> np.ndarray[Any, Any]:
    dtype = np.dtype(kind.dtype)
    if message.tensor_content:
        if len(message.tensor_content) != count * dtype.itemsize:
            raise CorruptRecordError(
                "the content of a tensor does not fit its shape",
                expected=f"{count * dtype.itemsize} bytes",
                found=f"{len(message.tensor_content)} bytes",
            )
        # Any byte but 0 would be another true.
        content = np.frombuffer(message.tensor_content, "u1" if dtype.kind == "b" else dtype)
        return content != 0 if dtype.kind == "b" else content.copy()
    given = np.array(getattr(message, kind.tensorflow[1]))
    if kind.tensorflow[1] == "half_val":  # the bits
        given = given.astype(np.uint16).view(dtype)
    elif dtype.kind == "c":
        if given.size % 2:
            raise CorruptRecordError("a complex number of a tensor lacks its imaginary part")
        given = given[::2] + 1j * given[1::2]
    return _filled(given.astype(dtype), count, np.zeros(1, dtype))


def _strings(message: tf_tensor_pb2.TensorFlowTensor, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if message.tensor_content:
        raise CorruptRecordError("a tensor of strings has them in its content, where TensorFlow writes none")
    items = np.array([*message.string_val, None], object)[:-1]
    return _filled(items, math.prod(shape), np.array([b""], object)).reshape(shape)


def _filled(items: np.ndarray[Any, Any], count: int, empty: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the elements of a tensor, of which the last one stands for those that follow."""
    missing = count - items.size
    if missing < 0 or missing * items.itemsize > _MOST_FILLED:
        raise CorruptRecordError(
            "a tensor has another number of elements than its shape",
            expected=f"{count}, of which the last one stands for at most {_MOST_FILLED} bytes",
            found=items.size,
        )
    return np.concatenate([items, np.repeat(items[-1:] if items.size else empty, missing)])


def as_bfloat16(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return bits as an array of `ml_dtypes.bfloat16` where that package is installed; else as they are."""
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        return bits
    return bits.view(bfloat16)


def _string_bytes(item: object) -> bytes:
    if isinstance(item, str):
        try:
            return item.encode()
        except UnicodeEncodeError as error:
            raise SchemaError("a string holds what UTF-8 cannot", found=repr(item)[:80]) from error
    if isinstance(item, bytes):
        return item
    raise SchemaError(
        f"an element of an array of objects is of the type {type(item).__name__}",
        expected="str or bytes",
    )
