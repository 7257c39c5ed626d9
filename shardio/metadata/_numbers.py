"""The kinds of numbers, one table, and the fitting of values to them.

A number value fits when nothing is lost that the caller did not ask to lose: integers and booleans must keep
their value, floats may be rounded to the feature's precision but may not overflow to infinity.  Byte order,
strides and memory order of the input never matter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt

Shape = tuple[int | None, ...]

BFLOAT16 = "bfloat16"
_LONGEST_SHOWN = 60
_LONGEST_PRINTED = 2000
# bfloat16 is the upper half of a float32: where its quiet bit and its infinity are.
_QUIET = 0x40
_INFINITY = 0x7F80
_FLOAT32_DIGITS, _FLOAT64_DIGITS = 24, 53

FeatureKind = Literal["number", "bytes", "text", "image", "json", "tensor"]


class Kind(NamedTuple):
    """The rules of a type. A feature of numbers is one array, each item of another one is bytes.

    Attributes:
        type: its name, as schemas and manifests spell it.
        family: of types with the same rules.
        encode: returns the stored bytes of an item; raises ValueMismatchError.
        decode: returns the value of stored bytes, or raises ValueError; None: they are the value.
        check: raises ValueMismatchError where bytes are not of the type; None: any are.
        dtype: of numbers, little-endian.
        digits: of floats, how many binary digits of any integer they hold exactly.
        code: of one number in `struct`; "" where it has none.
        example: the list of an Example that holds it. Numbers are there as they are, or all of an array as
            one bytes value.
        tensorflow: of numbers, the number of the type in a TensorProto of TensorFlow, and the field of such
            a message that may hold the elements.
        in_tensors: a TensorProto of caffe2 can hold it.
        in_json: JSON has such values.
        arrays: a column of values that are alike is one array.
        most_dimensions: of its shape, and what to do about more.
        read_as: other types that read its stored bytes as they are.
    """

    type: str
    family: FeatureKind
    encode: Callable[[Any], bytes] | None = None
    decode: Callable[[bytes], Any] | None = None
    check: Callable[[bytes], None] | None = None
    dtype: np.dtype[Any] | None = None
    digits: int = 0
    code: str = ""
    example: Literal["int64", "float", "bytes"] = "bytes"
    tensorflow: tuple[int, str] = (0, "")
    in_tensors: bool = True
    in_json: bool = False
    arrays: bool = False
    most_dimensions: tuple[int, str] = (1, "at most one dimension, a list, is possible")
    read_as: tuple[str, ...] = ()


def _number(name: str, dtype: str, tensorflow: tuple[int, str], code: str = "", **rules: Any) -> Kind:
    most = (32, "at most 32 dimensions are possible")
    return Kind(
        name, "number", dtype=np.dtype(dtype), code=code, tensorflow=tensorflow, arrays=True,
        most_dimensions=most, **rules,
    )  # fmt: skip


NUMBERS = {
    kind.type: kind
    for kind in (
        _number("bool", "?", (10, "bool_val")),
        _number("int8", "i1", (6, "int_val"), "b"),
        _number("int16", "<i2", (5, "int_val"), "h"),
        _number("int32", "<i4", (3, "int_val"), "i"),
        _number("int64", "<i8", (9, "int64_val"), "q", example="int64"),
        _number("uint8", "u1", (4, "int_val"), "B"),
        _number("uint16", "<u2", (17, "int_val"), "H"),
        _number("uint32", "<u4", (22, "uint32_val"), "I", in_tensors=False),
        _number("uint64", "<u8", (23, "uint64_val"), "Q", in_tensors=False),
        _number("float16", "<f2", (19, "half_val"), "e", digits=11),
        _number("float32", "<f4", (1, "float_val"), "f", digits=24, example="float"),
        _number("float64", "<f8", (2, "double_val"), "d", digits=53),
        _number("complex64", "<c8", (8, "scomplex_val"), digits=24, in_tensors=False),
        _number("complex128", "<c16", (18, "dcomplex_val"), digits=53, in_tensors=False),
        # NumPy has no bfloat16: its 16 bits are kept as uint16, and adapters view them as their own type.
        _number(BFLOAT16, "<u2", (14, "half_val"), digits=8),
    )
}


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


def print_short(type_name: str, shape: tuple[int | None, ...]) -> str:
    """Return the short string; the inverse of `parse_short`."""
    if not shape:
        return type_name
    return f"{type_name}[{','.join('?' if size is None else str(size) for size in shape)}]"


def fit_numbers(value: object, kind: Kind, shape: Shape | None) -> npt.NDArray[Any]:
    """Return `value` as a C-contiguous little-endian array of a kind, whose shape fits `shape`.

    A `shape` of None fits every array.

    Raises:
        ValueMismatchError: the value has another kind or shape, or would lose its value.
    """
    expected = print_short(kind.type, shape or ())
    array = to_number_array(value, expected, kind)
    fitted = (_fit_bfloat16 if kind.type == BFLOAT16 else _fit_dtype)(array, kind, expected)
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


def to_number_array(
    value: object, expected: str, kind: Kind | None = None, *, digits: int = _FLOAT32_DIGITS
) -> npt.NDArray[Any]:
    """Return numbers given in any form as an array of the dtype that NumPy takes for them.

    Args:
        value: a number, an array, or lists of them.
        expected: what errors say that was expected.
        kind: what they are to become; integers beside floats must be exact in it.  None: they decide it
            themselves, and integers must not become floats.
        digits: without a kind, the binary digits of the floats that they become.

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
    if array.dtype.kind not in "fc":
        return array
    return _check_integers(value, array, expected, kind, digits if kind is None else kind.digits)


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
    value: object, array: npt.NDArray[Any], expected: str, kind: Kind | None, digits: int
) -> npt.NDArray[Any]:
    """Return floats that NumPy made of lists, in which no integer was rounded and no item is masked, now NaN.

    Of integers on both sides of 2**63 NumPy makes floats, too.
    """
    with np.errstate(all="ignore"):
        doubtful = np.isnan(array) | (np.abs(array) >= 1 << (digits or _FLOAT64_DIGITS))
    if not _is_nested(value) or not doubtful.any():
        return array
    items = list(_items(value))
    if any(isinstance(item, np.ma.MaskedArray) for item in items):
        raise ValueMismatchError(expected, "a masked item", "fill it first; a record has no mask")
    whole = [int(item) for item in items if isinstance(item, int | np.integer)]
    if len(whole) == len(items):
        if kind is None:
            found = "integers below 0 and from 2**63 on, for which there is no type"
            raise ValueMismatchError(expected, found)
        if kind.type == "uint64" and min(whole) >= 0 and max(whole) < 1 << 64:
            return np.array(whole, np.uint64).reshape(array.shape)
    for item in whole if digits else ():
        if _significant_digits(abs(item)) > digits:
            name = kind.type if kind is not None else "float32"
            raise ValueMismatchError(expected, f"the value {item}, which {name} cannot hold exactly")
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


def _fit_dtype(array: npt.NDArray[Any], rules: Kind, expected: str) -> npt.NDArray[Any]:
    target, kind = np.dtype(rules.dtype), array.dtype.kind
    if array.dtype == target:
        return array
    if array.dtype.name == BFLOAT16:
        advice = "declare the feature as bfloat16, or convert the array"
        raise ValueMismatchError(expected, "bfloat16", advice)
    if array.size == 0:
        return np.empty(array.shape, target)  # whatever the dtype of nothing is, without NumPy's warnings
    if kind not in _FITTING.get(target.kind, ""):
        raise ValueMismatchError(expected, _found(array))
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(target)
    if kind in "fc":
        _refuse_overflow(np.isinf(cast), array, expected)
    elif kind != "b" and target.kind in "iu":
        low, high, bounds = int(array.min()), int(array.max()), np.iinfo(target)
        if low < bounds.min or high > bounds.max:
            raise ValueMismatchError(expected, f"the value {low if low < bounds.min else high}")
    elif kind != "b" and not _holds_exactly(cast, array, rules.digits):
        raise ValueMismatchError(expected, f"{array.dtype} values that {rules.type} cannot hold exactly")
    return cast


# By NumPy's kind of a dtype, the kinds of values that it may hold.
_FITTING = {"i": "biu", "u": "biu", "f": "biuf", "c": "biufc"}


def _found(array: npt.NDArray[Any]) -> str:
    return print_short(str(array.dtype), array.shape) if array.ndim else describe(array[()])


def _holds_exactly(cast: npt.NDArray[Any], array: npt.NDArray[Any], digits: int) -> bool:
    """Tell whether floats of so many binary digits are the integers that they were made of."""
    if max(abs(int(array.min())), abs(int(array.max()))) <= 1 << digits:
        return True
    exact = all(_significant_digits(abs(number)) <= digits for number in array.ravel().tolist())
    return exact and bool(np.isfinite(cast.real).all())


def _refuse_overflow(infinite: npt.NDArray[np.bool_], array: npt.NDArray[Any], expected: str) -> None:
    overflow = infinite & np.isfinite(array)
    if bool(overflow.any()):
        found = f"the value {array[overflow].flat[0]}, which would become infinity"
        raise ValueMismatchError(expected, found)


def _fit_bfloat16(array: npt.NDArray[Any], kind: Kind, expected: str) -> npt.NDArray[Any]:
    """Take uint16 (and ml_dtypes.bfloat16) as bits, round floats to nearest even, refuse everything else."""
    del kind  # there is one
    if array.dtype.name == BFLOAT16:
        return array.view(np.uint16) if array.dtype.isnative else array.byteswap().view(np.uint16)
    if array.dtype.newbyteorder("<") == np.dtype("<u2"):
        return array.astype("<u2", copy=False)
    if array.size == 0:
        return np.empty(array.shape, "<u2")
    if array.dtype.kind != "f":
        raise ValueMismatchError(expected, _found(array), "give floats, or the bits as uint16")
    with np.errstate(over="ignore", invalid="ignore"):
        single = np.asarray(array.astype("<f4"), order="C")
    _refuse_overflow(np.isinf(single), array, expected)
    bits = single.view("<u4").astype(np.uint64)
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
    if isinstance(value, str | bytes | list | tuple):
        return f"{name} of length {len(value)}"
    return name
