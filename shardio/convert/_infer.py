"""Infer the schema of values from some of them.

Inference loses nothing: integers become int64, floating-point numbers float64, text stays text.  Where values
of one feature contradict each other it is refused, with both sides and the way to say what is meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shardio.errors import SchemaError
from shardio.formats import INT64_LIMIT, ForeignSource, Sample, TimeUnit, Unreadable, keep_as
from shardio.metadata import Feature, Schema, check_name, image_type

SKIP = 'on_error="skip" leaves such records out'
# Types that take more values than others do, the most telling first.
_WIDER = ("int64", "float64", "json", "bytes")
# The lattice: the types that hold all values of a type, from the narrowest.  Two types are joined by the
# first that both have; types that stand nowhere here are joined with themselves alone.  "count" is that of
# Python's integers that are not negative.
_ABOVE: Mapping[str, tuple[str, ...]] = {
    "count": ("count", "int64", "uint64", "float64"),
    "int64": ("int64", "float64"),
    "int32": ("int32", "int64"),
    "int16": ("int16", "int32", "int64"),
    "int8": ("int8", "int16", "int32", "int64"),
    "uint32": ("uint32", "uint64", "int64"),
    "uint16": ("uint16", "uint32", "int32", "uint64", "int64"),
    "uint8": ("uint8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    "float32": ("float32", "float64"),
    "float16": ("float16", "float32", "float64"),
    "image": ("image", "bytes"),
    **{name: (name, "image", "bytes") for name in ("jpeg", "png", "webp", "tiff")},
}

# What becomes of a feature whose values contradict each other: an error, the type that most values have (the
# others are to be left out), or JSON with a note.
Clash = Literal["raise", "most", "json"]


def join_types(types: Iterable[str]) -> str | None:
    """Return the narrowest type that holds the values of all of some types; None where none does."""
    merged, *others = types
    for other in others:
        above = _ABOVE.get(other, (other,))
        common = next((name for name in _ABOVE.get(merged, (merged,)) if name in above), None)
        if common is None:
            return None
        merged = common
    return merged


@dataclass
class _Seen:
    """What the values of one feature have shown; `first` is where the first of them was.

    A form is a type and a number of dimensions; `examples` holds of each where it was first, and the value.
    """

    first: str
    present: int = 0
    empty: bool = False
    listed: bool = True
    values: list[Any] = field(default_factory=list)
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    forms: Counter[tuple[str, int]] = field(default_factory=Counter)
    examples: dict[tuple[str, int], tuple[str, Any]] = field(default_factory=dict)

    def add(self, value: Any, where: str) -> None:
        if value is None:
            return
        self.present += 1
        if len(self.values) < 100:
            self.values.append(value)
        self.listed = self.listed and isinstance(value, list | tuple | dict)
        name, shape = _type_of(value)
        if name is None:
            self.empty = True
            return
        self.forms[name, len(shape)] += 1
        self.examples.setdefault((name, len(shape)), (where, value))
        self.shapes.add(shape)


def infer_from_values(
    source: ForeignSource,
    samples: Sequence[Sample],
    given: Mapping[str, Any] | Schema | None,
    notes: list[str] | None = None,
    *,
    encoding: str | None = None,
    clash: Clash = "raise",
) -> Schema | None:
    """Return the schema to convert with.

    Args:
        source: asked for what it declares.
        samples: some of its records.
        given: the caller's word: types of some features (None leaves a feature out), or a whole `Schema`.
        notes: gets what was decided where values contradict each other.
        encoding: of the records.
        clash: what becomes of values that contradict each other.

    Raises:
        SchemaError: values of one feature contradict each other, and the caller did not say which are meant.
        ValueError: `given` names a feature that the source does not have.
    """
    if isinstance(given, Schema) or not isinstance(given, Mapping | None):  # which it refuses in its words
        return Schema.parse(given, encoding=encoding)
    overrides, notes = dict(given or {}), [] if notes is None else notes
    known, keys = source.known(), source.key_types()
    declared = {**keys, **known}
    seen: dict[str, _Seen] = {}
    for sample in samples:
        if not isinstance(sample.value, Mapping):
            return None
        for name, value in sample.value.items():
            seen.setdefault(name, _Seen(sample.where)).add(value, sample.where)
    names = dict.fromkeys([*known, *seen, *keys])
    unknown = [name for name in overrides if name not in names]
    if unknown and names:
        has = ", ".join(names)
        raise ValueError(f"schema names {unknown[0]!r}, which the source does not have; it has {has}")
    features: dict[str, Any] = {}
    for name in dict.fromkeys([*names, *overrides]):
        chosen = overrides[name] if name in overrides else declared.get(name)
        if isinstance(chosen, Unreadable):
            raise SchemaError(chosen.reason, advice=chosen.advice(name))
        if chosen is None and name not in overrides:
            chosen = _conclude(source, name, seen[name], len(samples), clash, notes)
        if chosen is None:
            continue
        if name in seen:
            try:
                check_name(name)
            except ValueError as error:
                if clash != "json":
                    where = seen[name].first
                    raise SchemaError(f"{where}: {error}", advice=Unreadable("").advice(name)) from None
                notes.append(f"left out of the schema: {error}")
                continue
        unit = getattr(declared.get(name), "unit", "")
        if name in overrides and TimeUnit.parse(unit) is not None:
            chosen = chosen if isinstance(chosen, Feature) else Feature(chosen)
            if chosen.kind == "number" and not chosen.unit:
                chosen = chosen.replace(unit=unit)
        features[name] = chosen
    return Schema.parse(features, encoding=encoding)


def _conclude(
    source: ForeignSource, name: str, seen: _Seen, records: int, clash: Clash, notes: list[str]
) -> Feature:
    optional = seen.present < records
    try:
        own = source.infer(name, seen.values)
    except SchemaError as error:
        if clash != "json":
            raise
        notes.append(f"{error.what} ({error.found}): they are bytes")
        own = "bytes"
    if own is not None:
        feature = own if isinstance(own, Feature) else Feature(own)
        return Feature(feature.type, shape=feature.shape, optional=optional) if optional else feature
    if not seen.forms:
        # Only nothing, or only empty lists: whatever JSON can hold loses none of it.
        return Feature("json", optional=optional or not seen.empty)
    merged: str | None = join_types(kind for kind, _ in seen.forms)
    shape = _shape_of(seen.shapes, empty=seen.empty)
    if merged is None or shape is None:
        merged, shape = "json", ()
        if not seen.listed and clash == "most":
            forms: Counter[tuple[str, int]] = Counter()
            for (kind, dimensions), count in seen.forms.items():
                forms[_public(kind), dimensions] += count
            ((merged, dimensions), _), *_ = forms.most_common(1)
            shape = _shape_of({shape for shape in seen.shapes if len(shape) == dimensions}, empty=False)
        elif not seen.listed:
            found = _contradiction(name, seen)
            if clash == "raise":
                raise found
            notes.append(f"{found.what} ({found.found}): they are json")
    return Feature(_public(merged), shape=() if merged == "json" else shape, optional=optional)


def _public(kind: str) -> str:
    return "int64" if kind == "count" else kind


def _shape_of(shapes: set[tuple[int, ...]], *, empty: bool) -> tuple[int | None, ...] | None:
    """Return the sizes, `None` where they differ; None as a whole where even their number differs."""
    if len(set(map(len, shapes))) != 1:
        return None
    sizes = [set(each) for each in zip(*shapes, strict=True)]
    if empty and not sizes:
        return None
    found = [min(each) or None if len(each) == 1 else None for each in sizes]
    return (None, *found[1:]) if empty else tuple(found)


def _type_of(value: Any) -> tuple[str | None, tuple[int, ...]]:
    """Return the type of a value and its shape; no type for an empty list, which could be of any.

    What no feature takes is json, too, whose writer says so: there it is known in which record.
    """
    if isinstance(value, list | tuple):
        return _type_of_list(value)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _type_of_array(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return image_type(bytes(value[:16])) or "bytes", ()
    if isinstance(value, str):
        return "text", ()
    if isinstance(value, bool):
        return "bool", ()
    if isinstance(value, int):
        wide = "uint64" if 0 <= value < 2 * INT64_LIMIT else "json"
        return ("int64" if value < 0 else "count") if -INT64_LIMIT <= value < INT64_LIMIT else wide, ()
    if isinstance(value, float | complex):
        return "float64" if isinstance(value, float) else "complex128", ()
    # A Pillow image is written as a PNG.
    return "image" if hasattr(value, "getbands") else "json", ()


def _type_of_array(value: Any) -> tuple[str | None, tuple[int, ...]]:
    """Return type and shape of an array or scalar of NumPy's, or of a tensor, which is written as one."""
    kind = getattr(value.dtype, "kind", "")
    if kind == "O":
        return _type_of(value.tolist())
    name = {"U": "text", "S": "bytes"}.get(kind) or getattr(value.dtype, "name", "")
    name = name or str(value.dtype).removeprefix("torch.")
    try:
        Feature(name, shape=(None,) * len(value.shape))
    except ValueError:
        return "json", ()
    return name, tuple(value.shape)


def _type_of_list(items: Sequence[Any]) -> tuple[str | None, tuple[int, ...]]:
    if not items:
        return None, ()
    kinds, shapes = zip(*map(_type_of, items), strict=True)
    merged = None if None in kinds else join_types(kinds)
    if merged in (None, "json") or len(set(shapes)) > 1:
        return "json", ()
    if shapes[0] and merged in ("text", "bytes", "bool", *_ABOVE["jpeg"], "png", "webp", "tiff"):
        return "json", ()
    return merged, (len(items), *shapes[0])


def _contradiction(name: str, seen: _Seen) -> SchemaError:
    places: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for form, count in seen.forms.items():
        places.setdefault(_public(form[0]), seen.examples[form][0])
        counts[_public(form[0])] += count
    shown = ", ".join(f"{kind} in {counts[kind]} (first in {where})" for kind, where in places.items())
    if len(counts) == 1:
        shown += f" of {len(seen.shapes)} shapes"
    return SchemaError(
        f"the values of {name!r} are of different types",
        found=shown,
        advice=f"{type_for(name, [value for _, value in seen.examples.values()])}, or {SKIP}",
    )


def type_for(name: str, values: Sequence[Any], declared: Feature | None = None) -> str:
    """Return the advice for a feature whose values do not fit its type: a type that takes all of these.

    Args:
        name: of the feature.
        values: that were seen.
        declared: the type that does not fit; other values are of it, and where it holds bytes, no JSON.
    """
    for kind in _WIDER:
        if kind == "json" and declared is not None and declared.kind in {"bytes", "image"}:
            continue
        try:
            for value in values:
                Feature(kind).fit(value, name)
        except SchemaError:
            continue
        return f"say what is meant with {keep_as(name, kind)}"
    return f"leave the feature out with {keep_as(name, None)}"
