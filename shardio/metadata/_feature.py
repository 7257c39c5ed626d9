"""One feature of a schema: its type, shape and default, and the way of a value into bytes and back.

Pure values; nothing here knows an encoding.  An encoding stores what `Feature.fit` returns and hands what it
stored to `Feature.restore`.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from shardio.arguments import checked_options, closest
from shardio.errors import SchemaError
from shardio.format import check_json_depth, check_json_keys, parse_json
from shardio.metadata._images import encode_image, image_type, is_image
from shardio.metadata._tf_tensor import fit_tensor, restore_tensor
from shardio.metadata._types import (
    BFLOAT16,
    FeatureKind,
    Shape,
    ValueMismatchError,
    describe,
    dtype_of,
    fit_numbers,
    kind_of,
    parse_short,
    print_short,
    short_form,
    tensor_parts,
)

# What an encoding stores: an array of numbers, or the bytes of each item (one item where the shape is ()).
Stored = npt.NDArray[Any] | list[bytes]

_MAX_DIMENSIONS = 32
_MAX_FEATURE_BYTES = (1 << 32) - 17  # a record's frame fits a u32 column; see the format's limits
_MAX_DEFAULT_BYTES = 1 << 20
_MAX_CLASSES = 1 << 16
_MAX_CLASS_BYTES = 1024
_MAX_CLASSES_BYTES = 4 << 20  # of all names together: they are kept in every manifest
_MAX_DESCRIPTION_BYTES = 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# What is said of a feature and changes none of its bytes: by name, what stands for nothing.
ANNOTATIONS: dict[str, Any] = {"classes": None, "description": "", "unit": "", "stored_name": None}


class Feature:
    """Describe one feature: its type, shape, default, whether it may be missing, and what its numbers mean.

    Args:
        type: a short string, with its shape in brackets or without: `"int64"`, `"float32[16]"`, `"jpeg"`; or
            a type of Python or NumPy: `int`, `str`, `numpy.float32`.
        shape: the sizes, None for any size, instead of brackets in `type`.
        default: the value of records that lack the feature; makes it optional.  None means no default.
        optional: may be missing.  Without a default a missing value reads as None.
        classes: of integers, the names of the classes that they number: value i is `classes[i]`.  A value is
            written as a number or as a name, and one that names no class is refused.  A default may also be
            negative, which stands for no class.
        description: what the feature is, for people.
        unit: what its values count, as Arrow writes a type: `"timestamp[us]"`, or for text
            `"decimal128(7, 2)"`. An append may not change it.
        stored_name: the name under which records hold it, where that is another one: what readers call the
            feature may change, what was written does not.

    Raises:
        ValueError: no such type, a shape that the type cannot have, a default that does not fit, or classes
            that cannot be numbered.

    Examples:
        >>> Feature("uint8[?,?,3]").shape
        (None, None, 3)
        >>> Feature("float32", shape=(16,), default=[0.0] * 16).short
        'float32[16]'
        >>> Feature("int64", classes=["cat", "dog"]).classes
        ('cat', 'dog')
    """

    __slots__ = ("_default", "_numbers", "kind", "optional", "shape", "type", *ANNOTATIONS)

    type: str
    shape: Shape
    optional: bool
    kind: FeatureKind
    classes: tuple[str, ...] | None
    description: str
    unit: str
    stored_name: str | None
    _default: Stored | None
    _numbers: Mapping[str, int]

    @checked_options
    def __init__(
        self,
        type: Any,  # noqa: A002 - the field's name in the interface
        *,
        shape: Sequence[int | None] | None = None,
        default: object = None,
        optional: bool = False,
        classes: Sequence[str] | None = None,
        description: str = "",
        unit: str = "",
        stored_name: str | None = None,
    ) -> None:
        name, bracketed = parse_short(type)
        if shape is not None and bracketed:
            raise ValueError(f"{type!r} has a shape already; give it once, in brackets or as shape=")
        set_slot = object.__setattr__
        set_slot(self, "type", name)
        set_slot(self, "kind", kind_of(name, advise=True))
        set_slot(self, "shape", bracketed if shape is None else _checked_sizes(shape))
        _check_shape(name, self.kind, self.shape)
        if self.kind == "tensor":
            element, sizes = tensor_parts(name)
            _check_shape(element or name, "number" if element else self.kind, sizes or ())
        set_slot(self, "optional", bool(optional) or default is not None)
        set_slot(self, "classes", None if classes is None else _checked_classes(name, classes))
        numbers = {label: number for number, label in enumerate(self.classes or ())}
        set_slot(self, "_numbers", MappingProxyType(numbers))
        set_slot(self, "description", _checked_text("description", description))
        set_slot(self, "unit", _checked_text("unit", unit))
        set_slot(self, "stored_name", None if stored_name is None else _checked_text("name", stored_name))
        set_slot(self, "_default", None)
        if default is not None:
            try:
                stored = self._fit(default, default=True)
            except ValueMismatchError as error:
                message = f"default does not fit: expected {error.expected}, found {error.found}"
                raise ValueError(message) from error
            set_slot(self, "_default", _frozen(stored))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Feature cannot be changed; make a new one with another {name}")

    @property
    def short(self) -> str:
        """The short string, without default: `"float32[16]"`."""
        return print_short(self.type, self.shape)

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The NumPy dtype of the values, None where they are not numbers; bfloat16 comes as uint16."""
        return dtype_of(self.type) if self.kind == "number" else None

    @property
    def annotations(self) -> dict[str, Any]:
        """What is said of the feature beside its values, by the names of `ANNOTATIONS`."""
        return {name: getattr(self, name) for name in ANNOTATIONS}

    @property
    def unknown_dimensions(self) -> int:
        """How many sizes of the shape differ from record to record."""
        return self.shape.count(None)

    @property
    def has_default(self) -> bool:
        """Whether a missing value has a value to take its place."""
        return self._default is not None

    @property
    def default(self) -> Any:
        """The default as a value (a fresh one at each call), or None."""
        return None if self._default is None else self.restore(self._default)

    @property
    def stored_default(self) -> Stored | None:
        """The default as `fit` returned it; arrays are read-only."""
        return self._default

    def fit(self, value: object, name: str) -> Stored:
        """Return `value` in the form that encodings store.

        Numbers become a C-contiguous little-endian array of exactly this dtype and a fitting shape;
        everything else becomes the list of its items' bytes.

        Raises:
            SchemaError: the value does not fit; names the feature, what was expected and what was found.
        """
        try:
            return self._fit(value)
        except ValueMismatchError as error:
            what = f"value of feature {name!r} does not fit the schema"
            raise SchemaError(
                what, expected=error.expected, found=error.found, advice=error.advice
            ) from error.__cause__

    def restore(self, stored: Stored) -> Any:
        """Return the value that was fitted.

        An array with dtype and shape as written, or a NumPy scalar where the shape is (). Text becomes str,
        bytes and images become bytes, json becomes parsed JSON, and tensors become an array. With a dimension
        it is a list of these.

        Raises:
            ValueError: text, JSON or a tensor is damaged.
        """
        if isinstance(stored, np.ndarray):
            return stored[()] if stored.ndim == 0 else stored.copy() if not stored.flags.writeable else stored
        items = [self.restore_item(item) for item in stored]
        return items if self.shape else items[0]

    def restore_item(self, item: bytes) -> Any:
        """Return the value of one stored item of anything but numbers; raises what `restore` does."""
        if self.kind == "json":
            return parse_json(item)
        if self.kind == "tensor":
            return restore_tensor(item, self.type)
        return item.decode() if self.kind == "text" else item

    def check_stored(self, value: object, name: str) -> None:
        """Raise SchemaError where a value that was read is the number of no class; the default may be."""
        numbers = np.asarray(value)
        default = self._default
        if isinstance(default, np.ndarray) and np.array_equal(numbers, default):
            return
        try:
            self.check_labels(numbers)
        except ValueMismatchError as error:
            what = f"value of feature {name!r} does not fit the schema"
            raise SchemaError(what, expected=error.expected, found=error.found) from None

    def check_labels(self, numbers: npt.NDArray[Any], *, negative: bool = False) -> None:
        """Raise ValueMismatchError where a number is none of a class; `negative` ones may be of none."""
        classes = self.classes
        if classes is None or not numbers.size:
            return
        low, high = int(numbers.min()), int(numbers.max())
        if high >= len(classes) or (low < 0 and not negative):
            raise ValueMismatchError(
                f"the number of a class, 0 to {len(classes) - 1}, or its name",
                f"the value {high if high >= len(classes) else low}",
                "add the class at the end of classes=[...], or leave a missing label out of the record",
            )

    def _fit(self, value: object, *, default: bool = False) -> Stored:
        """Return what `fit` does; a default may stand for no class, and for no image."""
        if self.kind == "number":
            if self.classes is None:
                return fit_numbers(value, self.type, self.shape)
            numbers = fit_numbers(self._numbered(value), self.type, self.shape)
            self.check_labels(numbers, negative=default)
            return numbers
        stored = [self._item_bytes(value)] if not self.shape else self._items(value)
        if self.kind == "image" and not default:
            self.check_images(stored)
        return stored

    def _items(self, value: object) -> list[bytes]:
        is_one = isinstance(value, str | bytes | bytearray | memoryview)
        if is_one or not isinstance(value, Sequence | np.ndarray) or getattr(value, "ndim", 1) != 1:
            raise ValueMismatchError(f"{self.short}, a list", describe(value))
        items: list[Any] = list(value)
        if self.shape[0] not in (None, len(items)):
            raise ValueMismatchError(self.short, f"{len(items)} items")
        return [self._item_bytes(item) for item in items]

    def check_images(self, stored: list[bytes]) -> None:
        """Raise ValueMismatchError where an item does not begin as an image of this type; the default may."""
        wrong = next((item for item in stored if not is_image(item, self.type)), None)
        if wrong is None or stored == self._default:
            return
        other = image_type(wrong)
        if other is None and self.type != "image" and is_image(wrong, "image"):
            other = "image"
        format_ = "any format that Pillow reads" if self.type == "image" else "this format"
        raise ValueMismatchError(
            f"{self.type}, a file in {format_}",
            f"{len(wrong)} bytes" + (f" that begin with {wrong[:8].hex(' ')}" if wrong else ""),
            'declare the feature as "bytes" to store anything, or leave a missing image out'
            if other is None
            else 'declare the feature as "image", which takes files of every format',
        )

    def _numbered(self, value: Any) -> Any:
        """Return a value with the names of classes in it as their numbers."""
        if isinstance(value, np.ndarray) and value.dtype.kind in "UTO":
            value = value.tolist()
        if isinstance(value, list | tuple):
            return [self._numbered(item) for item in value]
        if not isinstance(value, str):
            return value
        number = self._numbers.get(value)
        if number is None:
            near = closest(value, self._numbers)
            meant = f"did you mean {near!r}? Else " if near else ""
            raise ValueMismatchError(
                f"one of {len(self._numbers)} classes ({short_form(', '.join(self._numbers))})",
                f"the name {short_form(value)!r}",
                f"{meant}add the class at the end of classes=[...]",
            )
        return number

    def _item_bytes(self, value: object) -> bytes:
        if self.kind == "json":
            return _json_bytes(value)
        if self.kind == "tensor":
            return fit_tensor(value, self.type)
        if self.kind == "text":
            if not isinstance(value, str):
                raise ValueMismatchError(
                    "text, a str", describe(value), "decode bytes first, or declare the feature as bytes"
                )
            try:
                return value.encode()
            except UnicodeEncodeError as error:
                raise ValueMismatchError(
                    "text that UTF-8 can hold", f"a lone surrogate at {error.start}"
                ) from error
        if isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        if self.kind != "image":
            raise ValueMismatchError(f"{self.type}, bytes", describe(value))
        if isinstance(value, os.PathLike):
            return self._of_file(pathlib.Path(value))
        if hasattr(value, "__array__") or hasattr(value, "getbands"):  # an image of Pillow
            try:
                # "image" is any format: pixels take one that loses nothing.
                return encode_image(value, "png" if self.type == "image" else self.type)
            except SchemaError as error:
                expected = f"{self.type}, a file's bytes, an image of Pillow, or {error.expected or 'RGB'}"
                raise ValueMismatchError(expected, str(error.found), error.advice) from error
        # A str is none of ours to open: it may come from data.
        advice = "a file is given by pathlib.Path(name)" if isinstance(value, str) else None
        raise ValueMismatchError(f"{self.type}, a file's bytes, its path, or pixels", describe(value), advice)

    def _of_file(self, path: pathlib.Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            expected = f"{self.type}, a file that can be read"
            raise ValueMismatchError(expected, f"{path}: {error.strerror}") from error

    def replace(self, **changes: Any) -> Feature:
        """Return a feature that differs in the arguments given, as `Feature` takes them."""
        values = {name: getattr(self, name) for name in ("type", "shape", "default", "optional")}
        return Feature(**{**values, **self.annotations, **changes})

    def _key(self) -> tuple[object, ...]:
        default: Any = self._default
        if isinstance(default, np.ndarray):
            default = (default.shape, default.tobytes())
        elif default is not None:
            default = tuple(default)
        return (self.type, self.shape, self.optional, default, *self.annotations.values())

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Feature) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        shown: dict[str, Any] = {"optional": True} if self.optional else {}
        if self.has_default:
            # NumPy writes its scalars as np.int64(-1), which is not what was typed.
            default = self.default
            shown = {"default": default.item() if isinstance(default, np.generic) else default}
        for name, value in self.annotations.items():
            if value != ANNOTATIONS[name]:
                shown[name] = list(value) if isinstance(value, tuple) else value
        options = "".join(f", {name}={short_form(repr(value))}" for name, value in shown.items())
        return f"Feature({self.short!r}{options})"

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (self.type, self.shape, self._default, self.optional, self.annotations)


def restored(
    type_name: str, shape: Shape, stored: Stored | None, optional: object, annotations: Mapping[str, Any]
) -> Feature:
    """Make a feature whose default is in stored form already, as pickles and manifests hold it.

    Raises:
        ValueError: the default is the number of no class.
    """
    feature = Feature(type_name, shape=shape, optional=bool(optional), **annotations)
    if stored is not None:
        if isinstance(stored, np.ndarray):
            try:
                feature.check_labels(stored, negative=True)
            except ValueMismatchError as error:
                raise ValueError(f"its default is {error.found}, not {error.expected}") from error
        object.__setattr__(feature, "_default", _frozen(stored))
        object.__setattr__(feature, "optional", True)
    return feature


def _checked_sizes(shape: Sequence[object]) -> Shape:
    if isinstance(shape, str) or not hasattr(shape, "__iter__"):
        raise TypeError(f"shape= is a list of sizes, not {describe(shape)}")
    sizes: list[int | None] = []
    for size in shape:
        if size is None or size == "?":
            sizes.append(None)
        elif isinstance(size, int | np.integer) and not isinstance(size, bool) and size > 0:
            sizes.append(int(size))
        else:
            raise ValueError(f"shape {tuple(shape)!r}: a size is a positive int, or None for any")
    return tuple(sizes)


def _checked_classes(type_name: str, classes: object) -> tuple[str, ...]:
    """Return the names of classes, or raise ValueError, TypeError where they cannot be those of a feature."""
    dtype = dtype_of(type_name) if kind_of(type_name) == "number" else None
    if dtype is None or dtype.kind not in "iu" or type_name == BFLOAT16:
        raise ValueError(f"classes= names what integers stand for, and {type_name} is not an integer type")
    if isinstance(classes, str) or not isinstance(classes, Sequence | np.ndarray):
        raise TypeError(f"classes= is a list of names, not {describe(classes)}")
    if not len(classes):
        raise ValueError("classes=[] names no class; leave it out, or name the classes in their order")
    most = min(_MAX_CLASSES, int(np.iinfo(dtype).max) + 1)
    if len(classes) > most:
        raise ValueError(f"{len(classes)} classes; a feature of the type {type_name} has at most {most}")
    names = []
    seen: dict[str, int] = {}
    total = 0
    for number, name in enumerate(classes):
        if not isinstance(name, str):
            raise TypeError(f"class {number} is {describe(name)}; the name of a class is a str")
        size = _utf8_bytes(f"class {number}", name)
        if not 0 < size <= _MAX_CLASS_BYTES or _CONTROL.search(name):
            raise ValueError(
                f"class {number}, {short_form(name)!r}: the name of a class has 1 to {_MAX_CLASS_BYTES} "
                "bytes and no control characters"
            )
        first = seen.setdefault(name, number)
        if first != number:
            raise ValueError(f"classes {first} and {number} are both called {short_form(name)!r}")
        names.append(str(name))
        total += size
    if total > _MAX_CLASSES_BYTES:
        raise ValueError(
            f"the names of the classes have {total} bytes; they are kept in every manifest and may have "
            f"{_MAX_CLASSES_BYTES}"
        )
    return tuple(names)


def _checked_text(what: str, text: object) -> str:
    if not isinstance(text, str):
        raise TypeError(f"a {what} is a str, not {describe(text)}")
    size = _utf8_bytes(f"the {what}", text)
    if size > _MAX_DESCRIPTION_BYTES:
        raise ValueError(f"a {what} of {size} bytes; it may have {_MAX_DESCRIPTION_BYTES}")
    return text


def _utf8_bytes(what: str, text: str) -> int:
    """Return how many bytes a text has as UTF-8, or raise ValueError where it has none."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} has a lone surrogate and cannot be stored as UTF-8") from error


def _check_shape(name: str, kind: FeatureKind, shape: Shape) -> None:
    short = print_short(name, shape)
    if len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"{name} with {len(shape)} dimensions; at most {_MAX_DIMENSIONS} are possible")
    if kind != "number" and len(shape) > (0 if kind in ("json", "tensor") else 1):
        advice = (
            "json holds lists by itself" if kind == "json" else "at most one dimension, a list, is possible"
        )
        if kind == "tensor":
            advice = 'write the shape of a tensor behind the type of its elements: "tensor:float32[?,3]"'
        raise ValueError(f"{short!r}: {advice}")
    item = dtype_of(name).itemsize if kind == "number" else 1
    if math.prod(size or 1 for size in shape) * item > _MAX_FEATURE_BYTES:
        raise ValueError(f"{short!r} is larger than a record can be ({_MAX_FEATURE_BYTES} bytes)")


def _frozen(stored: Stored) -> Stored:
    if isinstance(stored, np.ndarray):
        size = stored.nbytes
        stored = stored.copy()
        stored.flags.writeable = False
    else:
        size = sum(map(len, stored))
    if size > _MAX_DEFAULT_BYTES:
        message = f"a default of {size} bytes; it is kept in every manifest and may have {_MAX_DEFAULT_BYTES}"
        raise ValueError(message)
    return stored


def _json_bytes(value: object) -> bytes:
    try:
        if isinstance(value, dict | list | tuple):
            check_json_keys(value)
        stored = _dumped(value)
        check_json_depth(stored)  # what is written must be read
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueMismatchError("a value that JSON can hold", f"{describe(value)} ({error})") from error
    return stored


def _dumped(value: object) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8, but JSON has an escape for it.
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
