"""Features of a record with their paths, and charts of arrays; `shardio.display.render` makes the cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardio import Feature, Schema
from shardio.codecs import decode_example, decode_sequence_example
from shardio.display import is_readable, short_number
from shardio.errors import ShardioError

Path = tuple[str | int, ...]

_POINTS = 120  # of a sparkline
_HEAT = (48, 64)
_LEAST_PICTURE = 4  # pixels of a side; a smaller array is rather numbers
# Integers that are rather numbers of tokens than samples of a curve.
_TOKENS = frozenset({"int32", "int64", "uint16", "uint32", "uint64"})


class FlatValue(NamedTuple):
    """A feature's value in a record.

    Attributes:
        name: of the feature; feature lists begin with `[] `, and "" stands for a record that is one value.
        path: from the record's value to this one.
        value: of the feature.
        feature: its entry in the schema, or None.
    """

    name: str
    path: Path
    value: Any
    feature: Feature | None


def guess_value(payload: Any) -> Any:
    """Return the payload of a record without a schema as an Example, text, or bytes, whichever fits first."""
    if not isinstance(payload, bytes):
        return payload
    try:
        sequence = decode_sequence_example(payload)
        # Both messages hold the features of an Example under the same number.
        features = sequence if sequence["feature_lists"] else decode_example(payload)
    except (ShardioError, ValueError):
        features = {}
    if features:
        return features
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return payload
    return text if is_readable(text) else payload


def flatten(value: Any, schema: Schema | None) -> list[FlatValue]:
    """Return the features of a record in order, those of a sequence example in one list."""
    features: Mapping[str, Feature] = {} if schema is None else schema
    if not isinstance(value, Mapping):
        return [_flat("", (), value, None)]
    if set(value) == {"context", "feature_lists"} and all(
        isinstance(part, Mapping) for part in value.values()
    ):
        lists: Mapping[str, Feature] = {} if schema is None else schema.sequence_features
        return [
            _flat(f"{prefix}{name}", (part, str(name)), each, known.get(name))
            for part, prefix, known in (("context", "", features), ("feature_lists", "[] ", lists))
            for name, each in value[part].items()
        ]
    return [_flat(str(name), (str(name),), each, features.get(str(name))) for name, each in value.items()]


def _flat(name: str, path: Path, value: Any, feature: Feature | None) -> FlatValue:
    # In Examples without a schema, a list of one item is shown as the item.
    is_one = isinstance(value, list) and len(value) == 1
    if feature is None and (is_one or (isinstance(value, np.ndarray) and value.shape == (1,))):
        return FlatValue(name, (*path, 0), value[0], None)
    return FlatValue(name, path, value, feature)


def follow(value: Any, path: Sequence[str | int]) -> Any:
    """Return the value at a path.

    Raises:
        ValueError: there is none.
    """
    for step in path:
        try:
            value = value[step]
        except (LookupError, TypeError):
            raise ValueError(f"the record has nothing at {step!r} of {list(path)!r}") from None
    return value


def charts(numbers: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return the range of an array, and how to draw it: as pixels, as a curve, or as a heat map."""
    found: dict[str, Any] = {}
    flat = numbers.reshape(-1)
    finite = flat[np.isfinite(flat)] if flat.dtype.kind in "fc" else flat
    plain = numbers
    if finite.dtype.kind == "c":
        plain, finite = np.abs(numbers), np.abs(finite)
    if finite.size:
        found["range"] = [short_number(finite.min()), short_number(finite.max())]
    if is_picture(numbers):
        found["picture"] = True
    elif numbers.ndim == 1 and numbers.size >= _LEAST_PICTURE and numbers.dtype.name not in _TOKENS:
        found["spark"] = downsampled(plain[None], (1, _POINTS))[0]
    elif numbers.ndim >= 2 and min(numbers.shape[-2:]) >= 1 and numbers.size > 1:
        found["heat"] = _heat(plain[(0,) * (numbers.ndim - 2)])
        if numbers.ndim > 2:
            found["plane"] = [*(0,) * (numbers.ndim - 2)]
    return found


def is_picture(value: Any) -> bool:
    """Tell whether an array is one of pixels: uint8 [height, width], or with 1, 3 or 4 channels."""
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim not in (2, 3):
        return False
    return min(value.shape[:2]) >= _LEAST_PICTURE and (value.ndim == 2 or value.shape[2] in (1, 3, 4))


def downsampled(plane: np.ndarray[Any, Any], size: tuple[int, int]) -> list[list[float | None]]:
    """Return means of the cells of a grid that is laid over a plane; None for what is not finite.

    Args:
        plane: numbers [rows, columns], at least one of each.
        size: the most rows and columns of the grid.
    """
    values = plane.astype(np.float64)
    for axis, most in enumerate(size):
        length = values.shape[axis]
        if length > most:
            edges = np.linspace(0, length, most, endpoint=False).astype(np.int64)
            widths = np.diff(np.append(edges, length))
            shape = (-1, 1) if axis == 0 else (1, -1)
            values = np.add.reduceat(values, edges, axis=axis) / widths.reshape(shape)
    return [[float(f"{each:.6g}") if np.isfinite(each) else None for each in row] for row in values]


def _heat(plane: np.ndarray[Any, Any]) -> dict[str, Any]:
    with np.errstate(invalid="ignore", over="ignore"):
        grid = downsampled(plane, _HEAT)
    known = [each for row in grid for each in row if each is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    # Halved first, so that the width of a range from end to end of the doubles is a number.
    width = high / 2 - low / 2
    return {
        "low": short_number(np.float64(low)),
        "high": short_number(np.float64(high)),
        "rows": [
            [
                -1 if each is None else round(255 * ((each / 2 - low / 2) / width)) if width else 0
                for each in row
            ]
            for row in grid
        ],
    }
