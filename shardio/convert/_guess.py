"""The schema of values that nobody declared: what a sample of them has in common.

A guess loses nothing: integers become int64, floating-point numbers float64, text stays text.  Where values
of one feature contradict each other the guess is refused, with both sides and the way to say what is meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.convert._source import Unreadable, keep_as
from shardio.errors import SchemaError
from shardio.metadata import Feature, Schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardio.convert._source import Sample, Source

__all__ = ["SKIP", "guess_schema", "image_type", "type_for"]

SKIP = 'on_error="skip" leaves such records out'
# Types that take more values than others do, the most telling first.
_WIDER = ("float64", "json", "bytes")

_IMAGES = frozenset({"jpeg", "png", "webp", "tiff", "image"})
_SMALLEST, _LARGEST, _LARGEST_UNSIGNED = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1


@dataclass
class _Seen:
    """What the values of one feature have shown."""

    types: Counter[str] = field(default_factory=Counter)
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    empty: bool = False
    present: int = 0
    negative: bool = False
    listed: bool = True
    places: dict[str, str] = field(default_factory=dict)
    values: list[Any] = field(default_factory=list)
    examples: dict[tuple[str, int], Any] = field(default_factory=dict)
    forms: Counter[tuple[str, int]] = field(default_factory=Counter)

    def add(self, value: Any, where: str) -> None:
        if value is None:
            return
        self.present += 1
        if len(self.values) < 100:
            self.values.append(value)
        self.listed = self.listed and isinstance(value, list | tuple | dict)
        name, shape = _type_of(value)
        if name == "int64" and np.size(value) and np.min(value) < 0:
            self.negative = True
        if name is None:
            self.empty = True
            return
        self.types[name] += 1
        self.forms[name, len(shape)] += 1
        self.examples.setdefault((name, len(shape)), value)
        self.places.setdefault(name, where)
        self.shapes.add(shape)


def guess_schema(
    source: Source,
    samples: Sequence[Sample],
    given: Mapping[str, Any] | Schema | None,
    *,
    encoding: str | None = None,
    lenient: bool = False,
) -> Schema | None:
    """Return the schema to convert with.

    Args:
        source: asked for what it declares.
        samples: some of its records.
        given: the caller's word: types of some features (None leaves a feature out), or a whole `Schema`.
        encoding: of the records.
        lenient: where values contradict each other take the type that most have, since the others are to be
            left out.

    Raises:
        SchemaError: values of one feature contradict each other, and nobody said which are meant.
        ValueError: `given` names a feature that the source does not have.
    """
    if isinstance(given, Schema):
        return Schema.parse(given, encoding=encoding)
    overrides = dict(given or {})
    declared = dict(source.known())
    seen: dict[str, _Seen] = {}
    for sample in samples:
        if not isinstance(sample.value, Mapping):
            return None
        for name, value in sample.value.items():
            seen.setdefault(name, _Seen()).add(value, sample.where)
    names = dict.fromkeys([*declared, *seen])
    unknown = [name for name in overrides if name not in names]
    if unknown and names:
        known = ", ".join(names) or "nothing"
        message = f"schema names {unknown[0]!r}, which the source does not have; it has {known}"
        raise ValueError(message)
    features: dict[str, Any] = {}
    for name in dict.fromkeys([*names, *overrides]):
        chosen = overrides[name] if name in overrides else declared.get(name)
        if isinstance(chosen, Unreadable):
            raise SchemaError(chosen.reason, advice=chosen.advice(name))
        if chosen is None and name not in overrides:
            chosen = _conclude(source, name, seen[name], len(samples), lenient=lenient)
        if chosen is not None:
            features[name] = chosen
    return Schema.parse(features, encoding=encoding)


def image_type(data: bytes) -> str | None:
    """Return the feature type of an image file by its first bytes, None where they are no image's."""
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data.startswith((b"II*\x00", b"MM\x00*")):
        return "tiff"
    if data.startswith((b"GIF87a", b"GIF89a", b"BM")):
        return "image"
    return "webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def _conclude(source: Source, name: str, seen: _Seen, records: int, *, lenient: bool) -> Feature | str | None:
    own = source.guess(name, seen.values)
    optional = seen.present < records
    if own is not None:
        feature = own if isinstance(own, Feature) else Feature(own)
        return Feature(feature.type, shape=feature.shape, optional=optional) if optional else feature
    if not seen.types:
        # Only nothing, or only empty lists: whatever JSON can hold loses none of it.
        return Feature("json", optional=optional or not seen.empty)
    merged = _merged(seen)
    shape = None if merged is None else _merged_shape(seen) if merged != "json" else ()
    if merged is None or shape is None:
        if seen.listed:
            merged, shape = "json", ()
        elif lenient:
            # What most have; the others are left out, one by one.
            merged, dimensions = seen.forms.most_common(1)[0][0]
            sizes = {shape for shape in seen.shapes if len(shape) == dimensions}
            shape = tuple(
                size[0] if len(size) == 1 and size[0] else None
                for size in map(tuple, map(set, zip(*sizes, strict=True)))
            )
        else:
            raise _contradiction(name, seen)
    return Feature(merged, shape=shape, optional=optional)


def _merged(seen: _Seen) -> str | None:
    types = set(seen.types)
    if len(types) == 1:
        return next(iter(types))
    if types <= _IMAGES:
        return "image"
    if types <= _IMAGES | {"bytes"}:
        return "bytes"
    if types == {"int64", "uint64"}:
        return None if seen.negative else "uint64"
    if types == {"int64", "float64"}:
        return "float64"
    return "json" if seen.listed else None


def _merged_shape(seen: _Seen) -> tuple[int | None, ...] | None:
    """Return the sizes, `None` where they differ; None as a whole where even their number differs."""
    shapes = set(seen.shapes)
    if len({len(shape) for shape in shapes}) != 1:
        return None
    sizes: list[int | None] = [
        size[0] if len(size) == 1 else None for size in map(tuple, map(set, zip(*shapes, strict=True)))
    ]
    if seen.empty:
        if not sizes:
            return None
        sizes[0] = None
    return tuple(size or None for size in sizes)


def _type_of(value: Any) -> tuple[str | None, tuple[int, ...]]:
    """Return the type of a value and its shape; no type for an empty list, which could be of any."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.name, value.shape
    if isinstance(value, list | tuple):
        return _type_of_list(list(value))
    if isinstance(value, bytes | bytearray):
        return image_type(bytes(value[:16])) or "bytes", ()
    return _type_of_one(value), ()


def _type_of_one(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        if _SMALLEST <= value <= _LARGEST:
            return "int64"
        return "uint64" if 0 <= value <= _LARGEST_UNSIGNED else "json"
    if isinstance(value, float | complex):
        return "float64" if isinstance(value, float) else "complex128"
    return "text" if isinstance(value, str) else "json"


def _type_of_list(items: list[Any]) -> tuple[str | None, tuple[int, ...]]:
    if not items:
        return None, ()
    if all(isinstance(item, bytes) for item in items):
        formats = {image_type(item[:16]) for item in items}
        return (formats.pop() or "bytes") if len(formats) == 1 else "bytes", (len(items),)
    if all(isinstance(item, list) for item in items):
        inner = {_type_of_list(item) for item in items}
        if len(inner) == 1:
            name, shape = inner.pop()
            if name not in (None, "json", "text", "bytes", "bool") and name not in _IMAGES:
                return name, (len(items), *shape)
        return "json", ()
    types = {_type_of_one(item) for item in items}
    if types == {"int64", "float64"}:
        types = {"float64"}
    elif types == {"int64", "uint64"} and min(items) >= 0:
        types = {"uint64"}
    name = types.pop()
    return ("json", ()) if types or name == "json" else (name, (len(items),))


def _contradiction(name: str, seen: _Seen) -> SchemaError:
    shown = ", ".join(
        f"{kind} in {count} (first in {seen.places[kind]})" for kind, count in seen.types.items()
    )
    if len(seen.types) == 1:
        shown += f" of {len(seen.shapes)} shapes"
    return SchemaError(
        f"the values of {name!r} are of different types",
        found=shown,
        advice=f"{type_for(name, list(seen.examples.values()))}, or {SKIP}",
    )


def type_for(name: str, values: Sequence[Any]) -> str:
    """Return the advice for a feature whose values do not fit its type: a type that takes all of these."""
    for kind in _WIDER:
        feature = Feature(kind)
        try:
            for value in values:
                feature.fit(value, name)
        except SchemaError:
            continue
        return f"say what is meant with {keep_as(name, kind)}"
    return f"leave the feature out with {keep_as(name, None)}"
