"""The types a feature may have, their short strings, and the fitting of values to number types.

A number value fits when nothing is lost that the caller did not ask to lose: integers and booleans must keep
their value, floats may be rounded to the feature's precision but may not overflow to infinity.  Byte order,
strides and memory order of the input never matter.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt

from shardio.arguments import closest

FeatureKind = Literal["number", "bytes", "text", "image", "json", "tensor"]
Shape = tuple[int | None, ...]

BFLOAT16 = "bfloat16"


class TypeRules(NamedTuple):
    """What is known of a type.

    Attributes:
        kind: the family that it belongs to.
        dtype: of numbers, in the byte order of the format: little-endian.
        digits: of floats, the binary digits of integers that they hold whatever these are.
        in_tensors: a TensorProto of caffe2 can hold it.
        read_as: other types that read its stored bytes as they are.
    """

    kind: FeatureKind
    dtype: np.dtype[Any] | None = None
    digits: int = 0
    in_tensors: bool = True
    read_as: tuple[str, ...] = ()


def _number(code: str, digits: int = 0, *, in_tensors: bool = True) -> TypeRules:
    return TypeRules("number", np.dtype(code), digits, in_tensors)


_IMAGE_FILE = TypeRules("image", read_as=("image", "bytes"))
# The one table of types; a new type is a row here.
TYPES: dict[str, TypeRules] = {
    "bool": _number("?"),
    **{f"int{bits}": _number(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": _number(f"<u{bits // 8}", in_tensors=bits < 32) for bits in (8, 16, 32, 64)},
    "float16": _number("<f2", 11),
    "float32": _number("<f4", 24),
    "float64": _number("<f8", 53),
    "complex64": _number("<c8", 24, in_tensors=False),
    "complex128": _number("<c16", 53, in_tensors=False),
    # NumPy knows no bfloat16; its 16 bits travel as uint16 and an adapter views them as what it likes.
    BFLOAT16: _number("<u2", 8),
    **dict.fromkeys(("image", "jpeg", "png", "webp", "tiff"), _IMAGE_FILE),
    "bytes": TypeRules("bytes"),
    "text": TypeRules("text", read_as=("bytes",)),
    "json": TypeRules("json", read_as=("text", "bytes")),
    "tensor": TypeRules("tensor", read_as=("bytes",)),
}
_TENSOR_OF = "tensor:"  # then the type of its elements, and its shape
_SHORT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[([^\[\]]*)\])?", re.ASCII)
_DIMENSION = re.compile(r" *(\?|[1-9][0-9]{0,9}) *", re.ASCII)
_LONGEST_SHORT = 300
_LONGEST_SHOWN = 60
_LONGEST_PRINTED = 2000
# bfloat16 is the upper half of a float32: where its quiet bit and its infinity are.
_QUIET = 0x40
_INFINITY = 0x7F80
# What Python, NumPy, SQL and other formats call these types; a float is Python's and NumPy's, of 64 bits.
_ALIASES = {
    "float": "float64", "double": "float64", "int": "int64",
    "boolean": "bool", "str": "text", "string": "text"
}  # fmt: skip
_TYPES = (bool, int, float, complex, str, bytes, np.generic)


class ValueMismatchError(Exception):
    """A value does not fit a type; `Feature.fit` turns it into a `SchemaError` that names the feature."""

    def __init__(self, expected: str, found: str, advice: str | None = None) -> None:
        super().__init__(expected, found)
        self.expected = expected
        self.found = found
        self.advice = advice


def short_form(text: str) -> str:
    """Return `text`, cut where it would make a message unreadable."""
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def kind_of(type_name: str, *, advise: bool = False) -> FeatureKind:
    """Return what family `type_name` belongs to; ValueError lists the types when there is no such type.

    With `advise` it says which type may be meant: for what a caller wrote, not for what a file holds.
    """
    rules = TYPES.get(type_name)
    if rules is not None:
        return rules.kind
    if type_name.startswith(_TENSOR_OF):
        name, shape = parse_short(type_name.removeprefix(_TENSOR_OF))
        number = kind_of(name, advise=advise) == "number"
        if number and type_name == _TENSOR_OF + print_short(name, shape):
            return "tensor"
        message = f'{type_name!r}: a tensor of a given type holds numbers; "tensor" alone takes strings too'
        raise ValueError(message)
    near = closest(type_name, TYPES) if advise else None
    hint = f"; did you mean {near}?" if near else ""
    raise ValueError(f"unknown type {type_name!r}{hint}; the types are {', '.join(TYPES)}")


def rules_of(type_name: str) -> TypeRules:
    """Return the row of a type that there is; that of "tensor" for one such as `"tensor:float32[3]"`."""
    return TYPES[type_name.partition(":")[0]]


def dtype_of(type_name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a number type's values; bfloat16 comes as the uint16 of its bits."""
    dtype = TYPES[type_name].dtype
    assert dtype is not None  # noqa: S101 - it is a number
    return dtype


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
    name = _ALIASES.get(name, name)
    if inside is None:
        return name, ()
    sizes: list[int | None] = []
    for part in inside.split(","):
        dimension = _DIMENSION.fullmatch(part)
        if dimension is None:
            message = f"{text!r}: dimension {part.strip()!r} must be a positive number, or '?' for any size"
            raise ValueError(message)
        sizes.append(None if dimension[1] == "?" else int(dimension[1]))
    return name, tuple(sizes)


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


def print_short(type_name: str, shape: tuple[int | None, ...]) -> str:
    """Return the short string; the inverse of `parse_short`."""
    if not shape:
        return type_name
    return f"{type_name}[{','.join('?' if size is None else str(size) for size in shape)}]"


def fit_numbers(value: object, type_name: str, shape: Shape | None) -> npt.NDArray[Any]:
    """Return `value` as a C-contiguous little-endian array of the type and a shape that fits `shape`.

    A `shape` of None fits every array.

    Raises:
        ValueMismatchError: the value has another kind or shape, or would lose its value.
    """
    expected = print_short(type_name, shape or ())
    array = to_number_array(value, type_name, expected)
    fitted = (
        _fit_bfloat16(array, expected) if type_name == BFLOAT16 else _fit_dtype(array, type_name, expected)
    )
    empty_list = not isinstance(value, np.ndarray) and fitted.shape == (0,)
    if empty_list and shape and shape[0] is None:
        # An empty list says nothing about the inner dimensions.
        fitted = fitted.reshape((0, *(size or 0 for size in shape[1:])))
    if not shape_fits(shape, fitted.shape):
        raise ValueMismatchError(expected, _found(array))
    # ascontiguousarray would turn 0-d into 1-d.
    return np.asarray(fitted, order="C")


def shape_fits(shape: Shape | None, found: Sequence[int | None]) -> bool:
    """Tell whether sizes are those of a shape, in which None is any size; None is any shape."""
    return (
        shape is None
        or shape == found
        or (
            len(shape) == len(found)
            and all(want in (None, have) for want, have in zip(shape, found, strict=True))
        )
    )


def to_number_array(value: object, type_name: str | None, expected: str) -> npt.NDArray[Any]:
    """Return numbers given in any form as an array of the dtype that NumPy takes for them.

    Args:
        value: a number, an array, or lists of them.
        type_name: the type that they are to become; integers beside floats must be exact in it.  None: they
            decide it themselves, floats float32, and integers must not become floats.
        expected: what errors say that was expected.

    Raises:
        ValueMismatchError: something else than numbers, a mask, or an integer that NumPy's common
            dtype would round.
    """
    if holds_mask(value):
        raise ValueMismatchError(expected, "a masked array", "fill it first; a record has no mask")
    if isinstance(value, str | bytes | bytearray | memoryview) or value is None:
        raise ValueMismatchError(expected, describe(value))
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        found = f"{describe(value)} that NumPy takes for no array ({error})"
        # A tensor of torch's, which alone has such values where NumPy has no dtype for them.
        tensor = str(getattr(value, "dtype", "")).endswith(BFLOAT16)
        advice = "give tensor.float(), which is exact" if tensor else None
        raise ValueMismatchError(expected, found, advice) from error
    if array.dtype.kind not in "biufc" and array.dtype.name != BFLOAT16:
        missing = array.dtype == object and any(item is None for item in array.flat)
        raise ValueMismatchError(expected, describe(value) + (" that holds None" if missing else ""))
    return _check_integers(value, array, expected, type_name) if array.dtype.kind in "fc" else array


def _is_nested(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not hasattr(value, "__array__")


def holds_mask(value: object) -> bool:
    """Tell whether NumPy would drop a mask: of a masked array, or of one in lists.

    A list that begins with a number is not searched: `np.ma.masked` becomes NaN there, and is looked for
    where a NaN was found.
    """
    if (module := sys.modules.get("numpy.ma")) is None:
        return False  # then none can have been made
    if isinstance(value, module.MaskedArray):
        return True
    if not _is_nested(value) or isinstance(value, str | bytes) or not len(value):
        return False
    return not isinstance(value[0], int | float | np.generic) and any(map(holds_mask, value))


def _check_integers(
    value: object, array: npt.NDArray[Any], expected: str, type_name: str | None
) -> npt.NDArray[Any]:
    """Return floats that NumPy made of lists, in which no integer was rounded and no item is masked, now NaN.

    Of integers on both sides of 2**63 NumPy makes floats, too.
    """
    digits = TYPES[type_name or "float32"].digits
    with np.errstate(all="ignore"):
        if not _is_nested(value) or not bool(
            (np.isnan(array) | (np.abs(array) >= 1 << (digits or 53))).any()
        ):
            return array
    items = list(_items(value))
    if any(isinstance(item, np.ma.MaskedArray) for item in items):
        raise ValueMismatchError(expected, "a masked item", "fill it first; a record has no mask")
    if all(isinstance(item, int | np.integer) for item in items):
        if type_name is None:
            found = "integers below 0 and from 2**63 on, for which there is no type"
            raise ValueMismatchError(expected, found)
        if type_name == "uint64" and min(items) >= 0 and max(items) < 1 << 64:
            return np.array(items, np.uint64).reshape(array.shape)
    for item in items if digits else ():
        if isinstance(item, int | np.integer) and _significant_digits(abs(int(item))) > digits:
            raise ValueMismatchError(
                expected, f"the value {int(item)}, which {type_name or 'float32'} cannot hold exactly"
            )
    return array


def _items(value: object) -> Iterator[Any]:
    if _is_nested(value):
        for item in value:
            yield from _items(item)
    elif isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        yield from value.ravel().tolist()
    else:
        yield value


def _significant_digits(number: int) -> int:
    """Return how many binary digits a float needs to hold an integer >= 0 exactly."""
    return number.bit_length() - max(0, (number & -number).bit_length() - 1)


def _fit_dtype(array: npt.NDArray[Any], type_name: str, expected: str) -> npt.NDArray[Any]:
    target, kind = dtype_of(type_name), array.dtype.kind
    if array.dtype == target:
        return array
    if array.dtype.name == BFLOAT16:
        advice = "declare the feature as bfloat16, or convert the array"
        raise ValueMismatchError(expected, "bfloat16", advice)
    if array.size == 0:
        return np.empty(array.shape, target)  # whatever the dtype of nothing is, without NumPy's warnings
    if kind == "b" and target.kind in "iufc":
        return array.astype(target)
    if kind in "iu" and target.kind in "iu":
        low, high = int(array.min()), int(array.max())
        bounds = np.iinfo(target)
        if low < bounds.min or high > bounds.max:
            raise ValueMismatchError(expected, f"the value {low if low < bounds.min else high}")
        return array.astype(target)
    if kind in "iu" and target.kind in "fc":
        with np.errstate(over="ignore"):
            cast = array.astype(target)
        if not _holds_exactly(cast, array, TYPES[type_name].digits):
            raise ValueMismatchError(expected, f"{array.dtype} values that {type_name} cannot hold exactly")
        return cast
    if kind == target.kind == "f" or (kind in "fc" and target.kind == "c"):
        return _round(array, target, expected)
    raise ValueMismatchError(expected, _found(array))


def _found(array: npt.NDArray[Any]) -> str:
    return print_short(str(array.dtype), array.shape) if array.ndim else describe(array[()])


def _holds_exactly(cast: npt.NDArray[Any], array: npt.NDArray[Any], digits: int) -> bool:
    """Tell whether floats of so many binary digits are the integers that they were made of."""
    if max(abs(int(array.min())), abs(int(array.max()))) <= 1 << digits:
        return True
    exact = all(_significant_digits(abs(number)) <= digits for number in array.ravel().tolist())
    return exact and bool(np.isfinite(cast.real).all())


def _round(array: npt.NDArray[Any], target: np.dtype[Any], expected: str) -> npt.NDArray[Any]:
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(target)
    _refuse_overflow(np.isinf(cast), array, expected)
    return cast


def _refuse_overflow(infinite: npt.NDArray[np.bool_], array: npt.NDArray[Any], expected: str) -> None:
    overflow = infinite & np.isfinite(array)
    if bool(overflow.any()):
        found = f"the value {array[overflow].flat[0]}, which would become infinity"
        raise ValueMismatchError(expected, found)


def _fit_bfloat16(array: npt.NDArray[Any], expected: str) -> npt.NDArray[Any]:
    """Take uint16 (and ml_dtypes.bfloat16) as bits, round floats to nearest even, refuse everything else."""
    if array.dtype.name == BFLOAT16:
        return array.view(np.uint16) if array.dtype.isnative else array.byteswap().view(np.uint16)
    if array.dtype.newbyteorder("<") == np.dtype("<u2"):
        return array.astype("<u2", copy=False)
    if array.size == 0:
        return np.empty(array.shape, "<u2")
    if array.dtype.kind != "f":
        raise ValueMismatchError(expected, _found(array), "give floats, or the bits as uint16")
    bits = np.asarray(_round(array, np.dtype("<f4"), expected), order="C").view("<u4").astype(np.uint64)
    # NumPy 1 makes a signed number of a Python number and a single unsigned one, unless that has an axis.
    bits = np.atleast_1d(bits)
    # Round to nearest, ties to even, on the 16 bits that go; a NaN keeps its sign and becomes quiet.
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | _QUIET
    is_nan = (bits & 0x7FFFFFFF) > _INFINITY << 16
    result = np.where(is_nan, quiet, rounded).astype("<u2").reshape(array.shape)
    _refuse_overflow((result & 0x7FFF) == _INFINITY, array, expected)
    return result


def describe(value: object) -> str:
    """Return a few words that say what `value` is, for messages; never the whole of a large value."""
    if isinstance(value, np.ndarray):
        return print_short(str(value.dtype), value.shape)
    if value is None:
        return "None"
    name = type(value).__name__
    if isinstance(value, bool | int | float | complex | np.generic):
        plain = value.item() if isinstance(value, np.generic) else value
        if isinstance(plain, int) and plain.bit_length() > _LONGEST_PRINTED:
            return f"{name} of {plain.bit_length()} binary digits"  # Python refuses to print those of more
        return f"{name} {short_form(repr(plain))}"
    if is_sized(value):
        return f"{name} of length {len(value)}"
    return name


def is_sized(value: object) -> TypeGuard[str | bytes | list[Any] | tuple[Any, ...]]:
    """Tell whether `value` is a str, bytes, list or tuple, whose length helps a message."""
    return isinstance(value, str | bytes | list | tuple)
