"""Values as cells: short, bounded descriptions for JSON that the page draws.

A cell is a dict with a `kind`: "missing", "number", "text", "json", "bytes", "image", "audio", "array",
"list" or "map".  A larger value is fetched by its `path` within the record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardio import Feature, Schema
from shardio.codecs import decode_example, decode_sequence_example, image_type, open_image
from shardio.errors import ShardioError

Path = tuple[str | int, ...]

_POINTS = 120  # of a sparkline
_HEAT = (48, 64)
_LEAST_PICTURE = 4  # pixels of a side; a smaller array is rather numbers
# Integers that are rather numbers of tokens than samples of a curve.
_TOKENS = frozenset({"int32", "int64", "uint16", "uint32", "uint64"})
_AUDIO = {b"fLaC": "audio/flac", b"OggS": "audio/ogg", b"ID3": "audio/mpeg"}


class _Bounds(NamedTuple):
    """How much of a value a cell shows: characters, items of lists, numbers of arrays, bytes as hex."""

    text: int
    items: int
    numbers: int
    hex: int


_SHORT = _Bounds(text=240, items=4, numbers=24, hex=16)
_FULL = _Bounds(text=100_000, items=200, numbers=2048, hex=1024)


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
    return text if _printable(text) else payload


def flatten(value: Any, schema: Schema | None) -> list[FlatValue]:
    """Return the features of a record in order, those of a sequence example in one list."""
    if not isinstance(value, Mapping):
        return [FlatValue("", (), value, None)]
    if set(value) == {"context", "feature_lists"} and all(
        isinstance(part, Mapping) for part in value.values()
    ):
        found = []
        for part, prefix in (("context", ""), ("feature_lists", "[] ")):
            features: Mapping[str, Feature] = {}
            if schema is not None:
                features = schema.sequence_features if prefix else schema
            found += [
                FlatValue(f"{prefix}{name}", (part, str(name)), each, features.get(name))
                for name, each in value[part].items()
            ]
        return found
    return [
        FlatValue(str(name), (str(name),), each, None if schema is None else schema.get(str(name)))
        for name, each in value.items()
    ]


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


def unwrapped(value: Any, feature: Feature | None, path: Path = ()) -> tuple[Any, Path]:
    """Return the one item of a list of one, as Examples without a schema have them, and its path."""
    if feature is not None:
        return value, path
    if isinstance(value, list) and len(value) == 1:
        return value[0], (*path, 0)
    if isinstance(value, np.ndarray) and value.shape == (1,):
        return value[0], (*path, 0)
    return value, path


def cell(value: Any, path: Path, feature: Feature | None = None, *, full: bool = False) -> dict[str, Any]:
    """Return the cell of a value.

    Args:
        value: as a codec returns it.
        path: from the record's value to it.
        feature: its entry in the schema.
        full: show as much as one page holds; else a line.
    """
    return _cell(value, path, feature, _FULL if full else _SHORT)


def _cell(value: Any, path: Path, feature: Feature | None, bounds: _Bounds) -> dict[str, Any]:
    value, path = unwrapped(value, feature, path)
    if value is None:
        return {"kind": "missing"}
    if feature is not None and feature.kind == "json":
        text = json.dumps(value, ensure_ascii=False, indent=2 if bounds is _FULL else None, default=str)
        return {"kind": "json", **_cut(text, bounds.text)}
    if isinstance(value, str):
        return {"kind": "text", **_cut(value, bounds.text)}
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes_cell(bytes(value), path, bounds)
    if isinstance(value, np.ndarray) and value.ndim:
        return _array_cell(value, path, feature, bounds)
    if isinstance(value, bool | int | float | complex | np.generic | np.ndarray):
        return _number_cell(as_numbers(np.asarray(value), feature)[()], feature)
    if isinstance(value, Mapping):
        shown = [
            [str(name), _cell(each, (*path, str(name)), None, bounds)]
            for name, each in list(value.items())[: bounds.items]
        ]
        return {"kind": "map", "count": len(value), "items": shown}
    if isinstance(value, list | tuple):
        items = [_cell(each, (*path, k), feature, bounds) for k, each in enumerate(value[: bounds.items])]
        return {"kind": "list", "count": len(value), "items": items}
    return {"kind": "text", **_cut(repr(value), bounds.text)}


def _number_cell(value: Any, feature: Feature | None) -> dict[str, Any]:
    item = value.item() if isinstance(value, np.generic) else value
    found: dict[str, Any] = {"kind": "number", "text": str(value if isinstance(item, float) else item)}
    classes = None if feature is None else feature.classes
    if classes is not None and isinstance(item, int) and 0 <= item < len(classes):
        found["class"] = classes[item]
    return found


def _bytes_cell(data: bytes, path: Path, bounds: _Bounds) -> dict[str, Any]:
    found: dict[str, Any] = {"bytes": len(data), "path": list(path)}
    kind = image_type(data[:16])
    if kind is not None:
        size = image_size(data)
        return {"kind": "image", "format": kind, **found, **({} if size is None else {"size": list(size)})}
    audio = audio_type(data)
    if audio is not None:
        return {"kind": "audio", "format": audio.partition("/")[2], **found}
    text = readable(data)
    if text is not None:
        return {"kind": "text", "encoded": True, **found, **_cut(text, bounds.text)}
    return {"kind": "bytes", **found, "hex": data[: bounds.hex].hex(" ")}


def _array_cell(
    value: np.ndarray[Any, Any], path: Path, feature: Feature | None, bounds: _Bounds
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": "array",
        "dtype": feature.type if feature is not None and feature.kind == "number" else value.dtype.name,
        "shape": list(value.shape),
        "path": list(path),
    }
    if value.dtype.kind not in "biufc":
        return {
            **found,
            "numbers": [_cut(str(each), 80)["text"] for each in value.reshape(-1)[: bounds.items]],
        }
    numbers = as_numbers(value, feature)
    flat = numbers.reshape(-1)
    found["numbers"] = [_short(each) for each in flat[: bounds.numbers]]
    finite = flat[np.isfinite(flat)] if flat.dtype.kind in "fc" else flat
    if finite.dtype.kind == "c":
        numbers, finite = np.abs(numbers), np.abs(finite)
    if finite.size:
        found["range"] = [_short(finite.min()), _short(finite.max())]
    if is_picture(value):
        found["picture"] = True
    elif value.ndim == 1 and value.size >= _LEAST_PICTURE and value.dtype.name not in _TOKENS:
        found["spark"] = downsampled(numbers[None], (1, _POINTS))[0]
    elif value.ndim >= 2 and min(value.shape[-2:]) >= 1 and value.size > 1:
        plane = numbers[(0,) * (value.ndim - 2)]
        found["heat"] = _heat(plane)
        if value.ndim > 2:
            found["plane"] = [*(0,) * (value.ndim - 2)]
    return found


def as_numbers(value: np.ndarray[Any, Any], feature: Feature | None) -> np.ndarray[Any, Any]:
    """Return an array as NumPy's numbers; bfloat16 travels as uint16."""
    if feature is not None and feature.type == "bfloat16" and value.dtype == np.uint16:
        return (value.astype(np.uint32) << 16).view(np.float32)
    return value


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
        "low": _short(np.float64(low)),
        "high": _short(np.float64(high)),
        "rows": [
            [
                -1 if each is None else round(255 * ((each / 2 - low / 2) / width)) if width else 0
                for each in row
            ]
            for row in grid
        ],
    }


def audio_type(data: bytes) -> str | None:
    """Return the media type of an audio file by its first bytes, None where browsers play no such file."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "audio/wav"
    for signature, name in _AUDIO.items():
        if data.startswith(signature):
            return name
    # A frame of MPEG audio, layer III; of other layers the first bytes are too common.
    return "audio/mpeg" if data[:2] in (b"\xff\xfb", b"\xff\xf3", b"\xff\xf2") and len(data) > 256 else None


def image_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of an image file by its header, None where Pillow is absent or cannot tell."""
    try:
        with open_image(data) as image:
            return image.width, image.height
    except Exception:  # noqa: BLE001 - there is no Pillow, or its plugins fail at broken bytes
        return None


def readable(data: bytes) -> str | None:
    """Return bytes as text where all of it can be read, else None."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if text and _printable(text) else None


def _printable(text: str) -> bool:
    # Not character by character: a record may hold a gigabyte of text.
    return text.replace("\t", "").replace("\r", "").replace("\n", "").isprintable()


def _cut(text: str, most: int) -> dict[str, Any]:
    return {"text": text[:most], "characters": len(text)}


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, np.floating | np.complexfloating) else str(value)
