"""A schema as JSON, for command lines and files: all that `Feature` can say, and one reader of it.

A feature is a short string (`"int64"`, `"float32[16]"`) or an object with the arguments of `Feature`:
`{"type": "int64", "default": -1}`.
"""

from __future__ import annotations

import base64
import inspect
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.format import parse_json
from shardio.metadata._feature import Feature
from shardio.metadata._types import describe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardio.metadata._schema import Schema

__all__ = ["parse_schema_json", "schema_to_json"]

_GROUPS = frozenset({"context", "feature_lists"})
_BASE64 = "$base64"
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_EXAMPLE = '{"label": "int64", "box": {"type": "float32[4]", "optional": true}}'


def parse_schema_json(text: str | bytes) -> dict[str, Any]:
    """Return the mapping that `Schema.parse` takes.

    Args:
        text: an object of features by name: short strings; objects with the arguments of `Feature`; null for
            a feature that a converter shall leave out. For sequence examples
            `{"context": {...}, "feature_lists": {...}}`. In a default, bytes are `{"$base64": "..."}`, floats
            without a numeral `"NaN"`, `"Infinity"`, `"-Infinity"`, complex numbers `"1+2j"`.

    Raises:
        ValueError: it is not such an object; names the feature.

    Examples:
        >>> parse_schema_json('{"label": {"type": "int64", "default": -1}}')
        {'label': Feature('int64', default=-1)}
    """
    try:
        given = parse_json(text.encode() if isinstance(text, str) else text)
    except ValueError as error:
        message = f"the schema is not JSON ({error}); try {_EXAMPLE}"
        raise ValueError(message) from None
    if not isinstance(given, dict):
        message = f"a schema is an object of features by name, not {describe(given)}; try {_EXAMPLE}"
        raise ValueError(message)  # noqa: TRY004 - what is wrong is the text
    if given and given.keys() <= _GROUPS and all(_is_group(part) for part in given.values()):
        return {name: _features(part, f"{name}/") for name, part in given.items()}
    return _features(given, "")


def schema_to_json(schema: Schema) -> dict[str, Any]:
    """Return plain values that JSON can hold and `parse_schema_json` reads: all but the encoding."""
    context = {name: _plain(feature) for name, feature in schema.items()}
    if schema.encoding != "sequence_example":
        return context
    lists = {name: _plain(feature) for name, feature in schema.sequence_features.items()}
    return {"context": context, "feature_lists": lists}


def _is_group(part: object) -> bool:
    return isinstance(part, dict) and not isinstance(part.get("type"), str)


def _features(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {name: _feature(f"{where}{name}", value) for name, value in given.items()}


def _feature(name: str, given: Any) -> Feature | None:
    if given is None:
        return None
    given = {"type": given} if isinstance(given, str) else given
    try:
        wrong = _problem(given)
        if wrong is None:
            arguments = {key: value for key, value in given.items() if key != "type"}
            if arguments.get("default") is not None:
                arguments["default"] = _default(Feature(given["type"]), arguments["default"])
            return Feature(given["type"], **arguments)
    except (TypeError, ValueError) as error:
        wrong = str(error)
    message = f"feature {name!r} of the schema: {wrong}"
    raise ValueError(message)


def _problem(given: Any) -> str | None:
    """Return what keeps an object from being a feature, as far as JSON is concerned."""
    known = list(inspect.signature(Feature).parameters)
    if not isinstance(given, dict) or not isinstance(given.get("type"), str):
        return f"expected a type as a string, or an object with {', '.join(known)}"
    other = next((key for key in given if key not in known), None)
    if other is not None:
        return f"{other!r} is not known; an object has {', '.join(known)}"
    if not isinstance(given.get("optional", False), bool):
        return "optional is true or false"
    if not isinstance(given.get("shape", []), list):
        return 'shape is a list of sizes, null or "?" for any size'
    return None


def _default(feature: Feature, value: Any) -> Any:
    """Return a default as `Feature` takes it; JSON has no bytes, NaN or complex numbers of its own."""
    if feature.kind == "json":
        return value
    if isinstance(value, list):
        return [_default(feature, item) for item in value]
    if isinstance(value, dict) and value.keys() == {_BASE64} and isinstance(value[_BASE64], str):
        return base64.b64decode(value[_BASE64], validate=True)
    if isinstance(value, str) and feature.kind == "number":
        if feature.type.startswith("complex"):
            return complex(value)
        return _FLOATS.get(value, value) if "float" in feature.type else value
    return value


def _plain(feature: Feature) -> Any:
    if not feature.optional:
        return feature.short
    out: dict[str, Any] = {"type": feature.short}
    if feature.has_default:
        out["default"] = _plain_value(feature, feature.default)
    else:
        out["optional"] = True
    return out


def _plain_value(feature: Feature, value: Any) -> Any:
    if feature.kind == "json":
        return value
    if isinstance(value, np.ndarray | np.generic):
        if feature.type == "bfloat16":  # stored as its bits
            value = (np.asarray(value).astype(np.uint32) << 16).view(np.float32)
        return _plain_numbers(value.tolist())
    if isinstance(value, list):
        return [_plain_value(feature, item) for item in value]
    return {_BASE64: base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain_numbers(item) for item in value]
    if isinstance(value, complex):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
