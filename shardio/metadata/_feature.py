"""One feature of a schema: its type, shape and default, and the way of a value into bytes and back.

Pure values; nothing here knows an encoding.  An encoding stores what `Feature.fit` returns and hands what it
stored to `Feature.restore`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shardio.arguments import checked_options, closest
from shardio.errors import SchemaError
from shardio.metadata._kinds import KINDS, kind_of, parse_short, tensor_parts
from shardio.metadata._numbers import (
    BFLOAT16,
    FeatureKind,
    Kind,
    Shape,
    ValueMismatchError,
    describe,
    fit_numbers,
    print_short,
    shape_fits,
    short_form,
)

# What an encoding stores: an array of numbers, or the bytes of each item (one item where the shape is ()).
Stored = npt.NDArray[Any] | list[bytes]

_MAX_FEATURE_BYTES = (1 << 32) - 17  # a record's frame fits a u32 column; see the format's limits
_MAX_DEFAULT_BYTES = 1 << 20
_MAX_CLASSES = 1 << 16
_MAX_CLASSES_BYTES = 4 << 20  # of all names together: they are kept in every manifest
_MAX_DESCRIPTION_BYTES = 4096
_MAX_NAME_BYTES = 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# What is said of a feature and changes none of its bytes: by name, what stands for nothing.
ANNOTATIONS: dict[str, Any] = {"classes": None, "description": "", "unit": "", "stored_name": None}


@dataclass(frozen=True, init=False, repr=False, slots=True)
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

    type: str
    shape: Shape
    optional: bool
    classes: tuple[str, ...] | None
    description: str
    unit: str
    stored_name: str | None
    # As manifests hold it: the bytes of each item, or all of an array and its shape.
    default_items: tuple[bytes, ...] | None
    default_shape: Shape
    rules: Kind = field(compare=False)
    _numbers: Mapping[str, int] = field(compare=False)

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
        rules = kind_of(name, advise=True)
        sizes = bracketed if shape is None else _checked_sizes(shape)
        _check_shape(rules, sizes)
        if rules.family == "tensor":
            element, inner = tensor_parts(name)
            _check_shape(KINDS[element or name], inner or ())
        named = None if classes is None else _checked_classes(rules, classes)
        for attribute, value in {
            "type": name,
            "shape": sizes,
            "optional": bool(optional),
            "classes": named,
            "description": checked_text("the description", description, _MAX_DESCRIPTION_BYTES),
            "unit": checked_text("the unit", unit, _MAX_DESCRIPTION_BYTES),
            "stored_name": None
            if stored_name is None
            else checked_text("stored_name", stored_name, _MAX_DESCRIPTION_BYTES),
            "default_items": None,
            "default_shape": (),
            "rules": rules,
            "_numbers": {label: number for number, label in enumerate(named or ())},
        }.items():
            object.__setattr__(self, attribute, value)
        if default is not None:
            try:
                self._set_default(self._fit(default, default=True))
            except ValueMismatchError as error:
                message = f"default does not fit: expected {error.expected}, found {error.found}"
                raise ValueError(message) from error

    def _set_default(self, stored: Stored) -> None:
        items = (stored.tobytes(),) if isinstance(stored, np.ndarray) else tuple(stored)
        if (size := sum(map(len, items))) > _MAX_DEFAULT_BYTES:
            raise ValueError(
                f"a default of {size} bytes; it is kept in every manifest and may have {_MAX_DEFAULT_BYTES}"
            )
        object.__setattr__(self, "optional", True)
        object.__setattr__(self, "default_items", items)
        object.__setattr__(self, "default_shape", stored.shape if isinstance(stored, np.ndarray) else ())

    @property
    def kind(self) -> FeatureKind:
        """The family of its type: "number", "bytes", "text", "image", "json" or "tensor"."""
        return self.rules.family

    @property
    def short(self) -> str:
        """The short string, without default: `"float32[16]"`."""
        return print_short(self.type, self.shape)

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The NumPy dtype of the values, None where they are not numbers; bfloat16 comes as uint16."""
        return self.rules.dtype

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
        return self.default_items is not None

    @property
    def default(self) -> Any:
        """The default as a value (a fresh one at each call), or None."""
        stored = self.stored_default
        return None if stored is None else self.restore(stored)

    @property
    def stored_default(self) -> Stored | None:
        """The default as `fit` returned it; arrays are read-only."""
        items = self.default_items
        if items is None or self.dtype is None:
            return None if items is None else list(items)
        return np.frombuffer(items[0], self.dtype).reshape([size or 0 for size in self.default_shape])

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
        decode = self.rules.decode
        items = stored if decode is None else list(map(decode, stored))
        return items if self.shape else items[0]

    def check_stored(self, value: object, name: str) -> None:
        """Raise SchemaError where a value that was read is the number of no class; the default may be."""
        numbers, default = np.asarray(value), self.stored_default
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

    def check_images(self, stored: list[bytes]) -> None:
        """Raise ValueMismatchError where an item does not begin as an image of this type; the default may."""
        if self.rules.check is not None and tuple(stored) != self.default_items:
            for item in stored:
                self.rules.check(item)

    def _fit(self, value: object, *, default: bool = False) -> Stored:
        """Return what `fit` does; a default may stand for no class, and for no image."""
        encode = self.rules.encode
        if encode is None:
            if self.classes is None:
                return fit_numbers(value, self.rules, self.shape)
            numbers = fit_numbers(self._numbered(value), self.rules, self.shape)
            self.check_labels(numbers, negative=default)
            return numbers
        stored = list(map(encode, self._items(value) if self.shape else [value]))
        if not default:
            self.check_images(stored)
        return stored

    def _items(self, value: object) -> list[Any]:
        is_one = isinstance(value, str | bytes | bytearray | memoryview)
        if is_one or not isinstance(value, Sequence | np.ndarray) or getattr(value, "ndim", 1) != 1:
            raise ValueMismatchError(f"{self.short}, a list", describe(value))
        if not shape_fits(self.shape, (len(value),)):
            raise ValueMismatchError(self.short, f"{len(value)} items")
        return list(value)

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

    def replace(self, **changes: Any) -> Feature:
        """Return a feature that differs in the arguments given, as `Feature` takes them."""
        said = {"optional": self.optional, **self.annotations, **changes}
        if changes.keys().isdisjoint({"type", "shape", "default"}):
            return restored(self.type, self.shape, self.stored_default, said.pop("optional"), said)
        return Feature(**{"type": self.type, "shape": self.shape, "default": self.default, **said})

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
        return restored, (self.type, self.shape, self.stored_default, self.optional, self.annotations)


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
        feature._set_default(stored)  # noqa: SLF001 - it is being made
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


def _checked_classes(rules: Kind, classes: object) -> tuple[str, ...]:
    """Return the names of classes, or raise ValueError, TypeError where they cannot be those of a feature."""
    if rules.dtype is None or rules.dtype.kind not in "iu" or rules.type == BFLOAT16:
        raise ValueError(f"classes= names what integers stand for, and {rules.type} is not an integer type")
    if isinstance(classes, str) or not isinstance(classes, Sequence | np.ndarray):
        raise TypeError(f"classes= is a list of names, not {describe(classes)}")
    if not len(classes):
        raise ValueError("classes=[] names no class; leave it out, or name the classes in their order")
    most = min(_MAX_CLASSES, int(np.iinfo(rules.dtype).max) + 1)
    if len(classes) > most:
        raise ValueError(f"{len(classes)} classes; a feature of the type {rules.type} has at most {most}")
    numbers: dict[str, int] = {}
    for number, given in enumerate(classes):
        name = checked_text(f"class {number}", given)
        if numbers.setdefault(name, number) != number:
            raise ValueError(f"classes {numbers[name]} and {number} are both called {short_form(name)!r}")
    if (total := sum(len(name.encode()) for name in numbers)) > _MAX_CLASSES_BYTES:
        raise ValueError(
            f"the names of the classes have {total} bytes; they are kept in every manifest and may have "
            f"{_MAX_CLASSES_BYTES}"
        )
    return tuple(numbers)


def checked_text(what: str, text: object, most: int | None = None) -> str:
    """Return a text of at most so many bytes; without `most`, a name.

    Raises:
        TypeError, ValueError: it is none.
    """
    if not isinstance(text, str):
        raise TypeError(f"{what} is a str, not {describe(text)}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} has a lone surrogate and cannot be stored as UTF-8") from error
    if most is None and (not 0 < size <= _MAX_NAME_BYTES or _CONTROL.search(text)):
        raise ValueError(
            f"{what}, {short_form(text)!r}: a name has 1 to {_MAX_NAME_BYTES} bytes and no control characters"
        )
    if most is not None and size > most:
        raise ValueError(f"{what} has {size} bytes; it may have {most}")
    return str(text)


def _check_shape(kind: Kind, shape: Shape) -> None:
    most, advice = kind.most_dimensions
    if len(shape) > most:
        raise ValueError(f"{kind.type!r} with {len(shape)} dimensions: {advice}")
    item = 1 if kind.dtype is None else kind.dtype.itemsize
    if math.prod(size or 1 for size in shape) * item > _MAX_FEATURE_BYTES:
        short = print_short(kind.type, shape)
        raise ValueError(f"{short!r} is larger than a record can be ({_MAX_FEATURE_BYTES} bytes)")
