"""The kinds of values that a feature may have: one table, which schemas, features and codecs look up.

A new type is a row of `KINDS`, one of numbers a row of `NUMBERS`. How types are spelled is here, too.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from shardio.arguments import closest
from shardio.display import image_type
from shardio.errors import CorruptRecordError, SchemaError
from shardio.format import check_json_depth, check_json_keys, parse_json
from shardio.metadata._images import ENCODED, encode_image, is_image
from shardio.metadata._numbers import (
    BFLOAT16,
    NUMBERS,
    Kind,
    Shape,
    ValueMismatchError,
    describe,
    fit_numbers,
    print_short,
    shape_fits,
    short_form,
)
from shardio.metadata._tf_tensor import as_bfloat16, parse_typed, serialize_numbers, serialize_tensor


def _encode_bytes(value: object) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ValueMismatchError("bytes, bytes", describe(value))
    return bytes(value)


def _encode_text(value: object) -> bytes:
    if not isinstance(value, str):
        advice = "decode bytes first, or declare the feature as bytes"
        raise ValueMismatchError("text, a str", describe(value), advice)
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        found = f"a lone surrogate at {error.start}"
        raise ValueMismatchError("text that UTF-8 can hold", found) from error


def _encode_json(value: object) -> bytes:
    try:
        if isinstance(value, dict | list | tuple):
            check_json_keys(value)
        dump = partial(json.dumps, value, allow_nan=False, separators=(",", ":"))
        try:
            stored = dump(ensure_ascii=False).encode()
        except UnicodeEncodeError:  # a lone surrogate has no UTF-8, but JSON has an escape for it
            stored = dump().encode()
        check_json_depth(stored)  # what is written must be read
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueMismatchError("a value that JSON can hold", f"{describe(value)} ({error})") from error
    return stored


def _encode_image(value: Any, *, type_name: str) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, os.PathLike):
        path = pathlib.Path(value)
        try:
            return path.read_bytes()
        except OSError as error:
            expected = f"{type_name}, a file that can be read"
            raise ValueMismatchError(expected, f"{path}: {error.strerror}") from error
    if hasattr(value, "__array__") or hasattr(value, "getbands"):  # an image of Pillow
        try:
            # "image" is any format: pixels take one that loses nothing.
            return encode_image(value, "png" if type_name == "image" else type_name)
        except SchemaError as error:
            expected = f"{type_name}, a file's bytes, an image of Pillow, or {error.expected or 'RGB'}"
            raise ValueMismatchError(expected, str(error.found), error.advice) from error
    # A str is none of ours to open: it may come from data.
    advice = "a file is given by pathlib.Path(name)" if isinstance(value, str) else None
    raise ValueMismatchError(f"{type_name}, a file's bytes, its path, or pixels", describe(value), advice)


def _check_image(data: bytes, *, type_name: str) -> None:
    if is_image(data, type_name):
        return
    other = image_type(data) is not None or (type_name != "image" and is_image(data, "image"))
    raise ValueMismatchError(
        f"{type_name}, a file in {'any format that Pillow reads' if type_name == 'image' else 'this format'}",
        f"{len(data)} bytes" + (f" that begin with {data[:8].hex(' ')}" if data else ""),
        'declare the feature as "image", which takes files of every format'
        if other
        else 'declare the feature as "bytes" to store anything, or leave a missing image out',
    )


def _encode_tensor(value: object, *, type_name: str) -> bytes:
    """Return the bytes of a tensor feature: of an array, or of bytes that are a fitting tensor already."""
    name, shape = tensor_parts(type_name)
    try:
        if isinstance(value, bytes | bytearray | memoryview):
            _decode_tensor(value, type_name=type_name)
            return bytes(value)
        if name is None:
            return serialize_tensor(value)
        return serialize_numbers(fit_numbers(value, KINDS[name], shape), name)
    except (CorruptRecordError, SchemaError) as error:
        found = error.what if error.found is None else str(error.found)
        expected = f"{type_name}, an array or a serialized tensor"
        raise ValueMismatchError(expected, found, error.advice) from error
    except ValueMismatchError as error:
        raise ValueMismatchError(type_name, error.found, error.advice) from error


def _decode_tensor(data: bytes | bytearray | memoryview, *, type_name: str) -> npt.NDArray[Any]:
    """Return the array of a tensor feature; of bfloat16 the bits as uint16 where the type names it.

    Raises:
        CorruptRecordError: the bytes are not a tensor.
        SchemaError: it is of another type or shape than the feature's, or its type has no dtype of NumPy.
    """
    kind, array = parse_typed(data)
    name, shape = tensor_parts(type_name)
    if (name is not None and name != kind) or not shape_fits(shape, array.shape):
        found = "tensor:" + print_short(kind, array.shape)
        raise SchemaError("the tensor does not fit its feature", expected=type_name, found=found)
    if name is None and kind == BFLOAT16 and (array := as_bfloat16(array)).dtype == np.uint16:
        raise SchemaError(
            "a tensor of bfloat16 has no array of NumPy",
            advice='declare the feature as "tensor:bfloat16", or install ml_dtypes',
        )
    return array


def _image(name: str) -> Kind:
    encode, check = partial(_encode_image, type_name=name), partial(_check_image, type_name=name)
    return Kind(name, "image", encode, check=check, read_as=("image", "bytes"))


def _tensor(name: str) -> Kind:
    encode, decode = partial(_encode_tensor, type_name=name), partial(_decode_tensor, type_name=name)
    most = (0, 'write the shape of a tensor behind the type of its elements: "tensor:float32[?,3]"')
    return Kind(name, "tensor", encode, decode, arrays=True, most_dimensions=most, read_as=("bytes",))


_JSON_LISTS = (0, "json holds lists by itself")
KINDS = {
    kind.type: kind
    for kind in (
        *NUMBERS.values(),
        *map(_image, ("image", *ENCODED)),
        Kind("bytes", "bytes", _encode_bytes),
        Kind("text", "text", _encode_text, bytes.decode, in_json=True, read_as=("bytes",)),
        Kind(
            "json", "json", _encode_json, parse_json, in_json=True, most_dimensions=_JSON_LISTS,
            read_as=("text", "bytes"),
        ),
        _tensor("tensor"),
    )
}  # fmt: skip
_TENSOR_OF = "tensor:"  # then the type of its elements, and its shape
_SHORT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[([^\[\]]*)\])?", re.ASCII)
_DIMENSION = re.compile(r" *(\?|[1-9][0-9]{0,9}) *", re.ASCII)
_LONGEST_SHORT = 300
# What Python, NumPy, SQL and other formats call these types; a float is Python's and NumPy's, of 64 bits.
_ALIASES = {
    "float": "float64", "double": "float64", "int": "int64",
    "boolean": "bool", "str": "text", "string": "text"
}  # fmt: skip
_TYPES = (bool, int, float, complex, str, bytes, np.generic)


def kind_of(type_name: str, *, advise: bool = False) -> Kind:
    """Return the row of a type; ValueError lists the types when there is no such type.

    With `advise` it says which type may be meant: for what a caller wrote, not for what a file holds.
    """
    kind = KINDS.get(type_name)
    if kind is not None:
        return kind
    if type_name.startswith(_TENSOR_OF):
        name, shape = parse_short(type_name.removeprefix(_TENSOR_OF))
        numbers = kind_of(name, advise=advise).dtype is not None
        if numbers and type_name == _TENSOR_OF + print_short(name, shape):
            return _tensor(type_name)
        message = f'{type_name!r}: a tensor of a given type holds numbers; "tensor" alone takes strings too'
        raise ValueError(message)
    near = closest(type_name, KINDS) if advise else None
    hint = f"; did you mean {near}?" if near else ""
    raise ValueError(f"unknown type {type_name!r}{hint}; the types are {', '.join(KINDS)}")


def parse_short(text: object) -> tuple[str, Shape]:
    """Split a short string such as `"uint8[?,?,3]"` into type name and shape; `?` becomes None.

    Python's and NumPy's own types stand for their names: `int`, `str`, `numpy.float32`, `numpy.dtype("u1")`.

    Raises:
        ValueError: the string is not of this form.  Whether the type exists is for `kind_of` to say.
    """
    if isinstance(text, np.dtype) or (isinstance(text, type) and issubclass(text, _TYPES)):
        text = "text" if text is str else "bytes" if text is bytes else np.dtype(text).name
    if not isinstance(text, str):
        found = f"the class {text.__name__}" if isinstance(text, type) else describe(text)
        raise TypeError(f'a type is a short string such as "int64" or "float32[?]", not {found}')
    if text.startswith(_TENSOR_OF):
        # The shape is that of the tensor, whose bytes are one value.
        return _TENSOR_OF + print_short(*parse_short(text.removeprefix(_TENSOR_OF))), ()
    match = _SHORT.fullmatch(text) if len(text) <= _LONGEST_SHORT else None
    if match is None:
        raise ValueError(
            f'{short_form(text)!r} is not a type; write one like "int64", "float32[16]" or "uint8[?,?,3]"'
        )
    name, inside = match.groups()
    sizes: list[int | None] = []
    for part in [] if inside is None else inside.split(","):
        dimension = _DIMENSION.fullmatch(part)
        if dimension is None:
            message = f"{text!r}: dimension {part.strip()!r} must be a positive number, or '?' for any size"
            raise ValueError(message)
        sizes.append(None if dimension[1] == "?" else int(dimension[1]))
    return _ALIASES.get(name, name), tuple(sizes)


@lru_cache
def tensor_parts(type_name: str) -> tuple[str | None, Shape | None]:
    """Return the number type and the shape that a type such as `"tensor:float32[?,3]"` asks for.

    None is any: of `"tensor"` both, of `"tensor:float32"` the shape.
    """
    inner = type_name.partition(":")[2]
    if not inner:
        return None, None
    name, shape = parse_short(inner)
    return name, shape or None
