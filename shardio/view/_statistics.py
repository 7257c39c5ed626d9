"""Statistics of each feature in a sample of records: ranges, distributions, missing values; for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from shardio import Feature, Schema
from shardio.display import Bounds, as_numbers, render
from shardio.view._search import literal
from shardio.view._values import flatten

_BINS = 32
_TOP = 20
_MOST_NUMBERS = 1 << 20  # of one feature, in its histogram
_LABEL_CHARACTERS = 80
_NOTHING = Bounds(0, 0, 0, 0)
_EXACT = 2**53  # whole numbers up to here are exact in JavaScript


def histogram(values: Any, *, bins: int = _BINS) -> dict[str, Any] | None:
    """Return counts of values in equal bins; bins of integers hold equally many of them.

    Args:
        values: numbers; non-finite ones are ignored.
        bins: the most bins.

    Returns:
        `edges`, one more than `counts`, as text if beyond the integers of JavaScript; None for no values.
    """
    numbers = np.asarray(values)
    if numbers.dtype.kind == "b":
        numbers = numbers.astype(np.uint8)
    if numbers.dtype.kind == "c":
        numbers = np.abs(numbers)
    if numbers.dtype.kind == "f":
        numbers = numbers[np.isfinite(numbers)].astype(np.float64)
    if not numbers.size:
        return None
    low, high = numbers.min(), numbers.max()
    whole = numbers.dtype.kind in "iu"
    if whole and int(high) - int(low) < bins:
        counts = np.bincount((numbers - low).astype(np.int64), minlength=int(high) - int(low) + 1)
        whole_edges: list[int | str] = [int(low) + k for k in range(len(counts) + 1)]
        # JavaScript would show another number.
        if max(abs(int(low)), abs(int(high)) + 1) > _EXACT:
            whole_edges = [f"{edge:,}" for edge in whole_edges]
        return {"edges": whole_edges, "counts": counts.tolist(), "whole": True}
    if low == high:
        return {"edges": [float(low), float(high)], "counts": [int(numbers.size)], "whole": False}
    if whole and max(abs(int(low)), abs(int(high))) <= _EXACT:
        # A width with a fraction would give some bins one integer more: spikes in even data.
        width = -(-(int(high) - int(low) + 1) // bins)
        counts = np.bincount((numbers.astype(np.int64) - int(low)) // width)
        starts = [int(low) + width * k for k in range(len(counts))]
        return {"edges": [*starts, int(high)], "counts": counts.tolist(), "whole": False}
    # Halved first, so that the width of a range from end to end of the doubles is a number.
    half_low, half_high = float(low) / 2, float(high) / 2
    places = (numbers.astype(np.float64) / 2 - half_low) / (half_high - half_low) * bins
    counts = np.bincount(np.clip(places.astype(np.int64), 0, bins - 1), minlength=bins)
    edges = [2 * (half_low + (half_high - half_low) * (k / bins)) for k in range(bins + 1)]
    # Both ends are exact, so that conditions made of edges lose no record.
    inner = [min(max(float(f"{edge:.6g}"), float(low)), float(high)) for edge in edges[1:-1]]
    return {"edges": [float(low), *inner, float(high)], "counts": counts.tolist(), "whole": False}


def summarize(values: Iterable[Any], schema: Schema | None) -> list[dict[str, Any]]:
    """Return statistics of some records by feature, in the order of the schema or of appearance.

    Args:
        values: of records, as a codec returns them.
        schema: of the records, or None.
    """
    found: dict[str, tuple[list[Any], Feature | None]] = {}
    if schema is not None:
        found = {name: ([], feature) for name, feature in schema.shown.items()}
    records = 0
    for value in values:
        records += 1
        for flat in flatten(value, schema):
            if flat.value is not None:
                found.setdefault(flat.name, ([], flat.feature))[0].append(flat.value)
    return [
        {
            "name": name,
            "type": None if feature is None else feature.short,
            "present": len(given),
            "missing": records - len(given),
            **_summary(given, feature),
        }
        for name, (given, feature) in found.items()
    ]


def _summary(values: Sequence[Any], feature: Feature | None) -> dict[str, Any]:
    if not values:
        return {"facts": []}
    kinds = Counter(_kind(value) for value in values)
    if len(kinds) > 1 and set(kinds) <= {"number", "array"}:
        kinds = Counter({"array": len(values)})
    kind = kinds.most_common(1)[0][0]
    chosen = [value for value in values if _kind(value) == kind or kind == "array"]
    out = _SUMMARIES[kind](chosen, feature)
    if len(kinds) > 1:
        out["facts"].append(["kinds", ", ".join(f"{name} ({n})" for name, n in kinds.most_common())])
    return out


def _kind(value: Any) -> str:
    # Items of arrays of strings are str and bytes, too.
    is_numpy = isinstance(value, np.ndarray | np.generic) and not isinstance(value, str | bytes)
    if is_numpy and value.dtype.kind not in "biufc":
        return "other"
    kind: str = render(value, bounds=_NOTHING)["kind"]
    return "bytes" if kind == "audio" else kind if kind in _SUMMARIES else "other"


def _numbers(values: Sequence[Any], feature: Feature | None) -> dict[str, Any]:
    numbers = as_numbers(np.array(values), feature)
    classes = None if feature is None else feature.classes
    # The mean of class numbers is meaningless.
    facts = _range(numbers) if classes is None else []
    whole = numbers.dtype.kind in "iub"
    distinct, counts = np.unique(numbers, return_counts=True) if whole else (numbers[:0], numbers[:0])
    if whole:
        facts.append(["distinct", f"{len(distinct):,}"])
    out: dict[str, Any] = {"facts": facts}
    if whole and (classes is not None or len(distinct) <= _TOP):
        order = np.argsort(-counts, kind="stable")[:_TOP]
        out["top"] = [[_label(int(distinct[k]), classes), int(counts[k])] for k in order]
        out["literals"] = [literal(int(distinct[k])) for k in order]
        out["distinct"] = len(distinct)
    else:
        out["histogram"] = histogram(numbers)
    return out


def _label(number: int, classes: Sequence[str] | None) -> str:
    if classes is not None and 0 <= number < len(classes):
        return f"{classes[number]} ({number})"
    return str(number)


def _range(numbers: np.ndarray[Any, Any]) -> list[list[str]]:
    if numbers.dtype.kind == "b":
        return [["true", f"{numbers.mean():.1%}"]] if numbers.size else []
    facts = []
    if numbers.dtype.kind == "c":
        numbers = np.abs(numbers)
        facts.append(["of", "absolute values"])
    if numbers.dtype.kind == "f":
        finite = numbers[np.isfinite(numbers)]
        if len(finite) < numbers.size:
            facts.append(["NaN", f"{int(np.isnan(numbers).sum()):,}"])
            facts.append(["infinite", f"{int(np.isinf(numbers).sum()):,}"])
        numbers = finite.astype(np.float64)
    if not numbers.size:
        return facts
    whole = numbers.dtype.kind in "iu"
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = float(numbers.mean()), float(numbers.std())
        if whole:
            # From the least on: above 2^53 neighbours are one double. Unsigned differences do not wrap.
            wide = numbers.astype(np.uint64)
            deviation = float((wide - wide[numbers.argmin()]).std())
    low, high = (f"{each:,}" if whole else f"{each:.6g}" for each in (numbers.min(), numbers.max()))
    return [
        *facts,
        ["min", low],
        ["max", high],
        ["mean", f"{mean:.6g}"],
        ["std", f"{deviation:.4g}"],
    ]


def _arrays(values: Sequence[Any], feature: Feature | None) -> dict[str, Any]:
    arrays = [as_numbers(np.asarray(value), feature) for value in values]
    shapes = Counter(tuple(array.shape) for array in arrays)
    room = max(1, _MOST_NUMBERS // len(arrays))
    items = np.concatenate([_thinned(array.reshape(-1), room) for array in arrays])
    names = [f"[{','.join(map(str, shape))}]" for shape, _ in shapes.most_common(3)]
    more = f" and {len(shapes) - 3} more" if len(shapes) > 3 else ""
    facts = [["shape" if len(shapes) == 1 else "shapes", ", ".join(names) + more]]
    out: dict[str, Any] = {"facts": [*facts, *_range(items)], "histogram": histogram(items), "of": "items"}
    if len(shapes) > 1:
        out["lengths"] = histogram([array.size for array in arrays])
        out["lengths_of"] = "items a record"
    return out


def _thinned(flat: np.ndarray[Any, Any], most: int) -> np.ndarray[Any, Any]:
    return flat if flat.size <= most else flat[:: -(-flat.size // most)]


def _texts(values: Sequence[Any], feature: Feature | None) -> dict[str, Any]:
    del feature
    texts = [value if isinstance(value, str) else bytes(value).decode(errors="replace") for value in values]
    lengths = [len(text) for text in texts]
    counts = Counter(texts)
    facts = [["characters", _spread(lengths)], ["distinct", f"{len(counts):,}"]]
    out: dict[str, Any] = {"facts": facts, "lengths": histogram(lengths), "lengths_of": "characters"}
    if len(counts) <= max(_TOP, len(texts) // 2):
        out["top"] = _top(counts)
        out["literals"] = [literal(text) for text, _ in counts.most_common(_TOP // 2)]
        out["distinct"] = len(counts)
    return out


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _spread(numbers: Sequence[int]) -> str:
    mean = "" if len(set(numbers)) == 1 else f", {sum(numbers) / len(numbers):,.1f} on average"
    return _span(numbers) + mean


def _shown(text: str) -> str:
    return text if len(text) <= _LABEL_CHARACTERS else text[:_LABEL_CHARACTERS] + "..."


def _sizes(values: Sequence[Any], feature: Feature | None) -> dict[str, Any]:
    del feature
    sizes = [len(value) for value in values]
    facts = [["bytes", _spread(sizes)]]
    return {"facts": facts, "lengths": histogram(sizes), "lengths_of": "bytes"}


def _images(values: Sequence[Any], feature: Feature | None) -> dict[str, Any]:
    out = _sizes(values, feature)
    images = [render(value, bounds=_NOTHING) for value in values]
    formats = Counter(image["format"] for image in images)
    out["facts"].append(["formats", ", ".join(f"{name} ({n:,})" for name, n in formats.most_common())])
    known = [image["size"] for image in images if "size" in image]
    for name, sides in (("width", [size[0] for size in known]), ("height", [size[1] for size in known])):
        if sides:
            out["facts"].append([name, f"{_span(sides)} pixels"])
    return out


def _lists(values: Sequence[Any], feature: Feature | None) -> dict[str, Any]:
    out: dict[str, Any] = {"facts": []}
    items = [item for value in values for item in value]
    # Lists of JSON may hold anything beside numbers.
    if items and {_kind(item) for item in items} <= {"number", "array"}:
        numbers = np.concatenate([as_numbers(np.asarray(item), feature).reshape(-1) for item in items])
        out = {"facts": _range(numbers), "histogram": histogram(numbers), "of": "items"}
    lengths = [len(value) for value in values]
    return {
        **out,
        "facts": [["items", _spread(lengths)], *out["facts"]],
        "lengths": histogram(lengths),
        "lengths_of": "items a record",
    }


def _others(values: Sequence[Any], feature: Feature | None) -> dict[str, Any]:
    """Count the names of JSON objects, and the types of anything else."""
    del feature
    names = Counter(str(name) for value in values if isinstance(value, dict) for name in value)
    if names:
        sizes = [len(value) for value in values if isinstance(value, dict)]
        facts = [["names", f"{_span(sizes)} in an object"]]
        return {"facts": facts, "top": _top(names), "distinct": len(names)}
    kinds = Counter(type(value).__name__ for value in values)
    return {"facts": [["kinds", ", ".join(f"{name} ({n:,})" for name, n in kinds.most_common())]]}


def _top(counts: Counter[str]) -> list[list[Any]]:
    return [[_shown(text), number] for text, number in counts.most_common(_TOP // 2)]


_SUMMARIES = {
    "number": _numbers,
    "array": _arrays,
    "text": _texts,
    "bytes": _sizes,
    "image": _images,
    "list": _lists,
    "other": _others,
}
