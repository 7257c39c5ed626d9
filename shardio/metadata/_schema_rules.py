"""What a schema may hold, and what may follow what: the rules, apart from the value they are about."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardio.metadata._types import IMAGE_TYPES, describe, short_form

if TYPE_CHECKING:
    from shardio.metadata._feature import Feature
    from shardio.metadata._schema import Schema

__all__ = ["ENCODINGS", "MAX_FEATURES", "check_schema", "why_not"]

ENCODINGS = ("example", "sequence_example", "tensors", "array", "bytes")

MAX_FEATURES = 10_000
_MAX_NAME_BYTES = 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Columns that streams add to a batch.
_RESERVED = frozenset({"_position", "_valid"})
# What a caffe2 TensorProto has a data type for; bytes, text, images and json are its strings.
_TENSOR_TYPES = frozenset(
    {
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "float16",
        "bfloat16",
        "float32",
        "float64",
    }
)
# Types whose stored bytes another type reads as they are.
_WIDER = frozenset(
    {(image, wide) for image in IMAGE_TYPES for wide in ("image", "bytes")}
    | {("text", "bytes"), ("json", "text"), ("json", "bytes")}
)


def check_schema(schema: Schema) -> None:
    """Raise ValueError for a name or a combination of features that the encoding cannot hold."""
    if schema.encoding not in ENCODINGS:
        message = f"unknown encoding {schema.encoding!r}; the encodings are {', '.join(ENCODINGS)}"
        raise ValueError(message)
    if len(schema) + len(schema.sequence_features) > MAX_FEATURES:
        message = (
            f"a schema of {len(schema) + len(schema.sequence_features)} features; at most {MAX_FEATURES}"
        )
        raise ValueError(message)
    if schema.sequence_features and schema.encoding != "sequence_example":
        message = f'feature lists need the encoding "sequence_example", not {schema.encoding!r}'
        raise ValueError(message)
    for name, feature in schema.sequence_features.items():
        if feature.has_default:
            message = f"feature {name!r}: a feature list has no default; optional=True reads as no steps"
            raise ValueError(message)
    for group in (schema, schema.sequence_features):
        for name, feature in group.items():
            _check_name(name)
            if feature.unknown_dimensions > 1 and f"{name}/shape" in group:
                message = f"feature {name + '/shape'!r}: the name is taken, {name!r} keeps its shape there"
                raise ValueError(message)
    _check_encoding(schema)


def _check_encoding(schema: Schema) -> None:
    if schema.encoding == "tensors":
        for name, feature in schema.items():
            if feature.kind == "number" and feature.type not in _TENSOR_TYPES:
                message = (
                    f"feature {name!r}: TensorProto has no type for {feature.type}; use another encoding"
                )
                raise ValueError(message)
    elif schema.encoding == "array":
        fixed = [
            f for f in schema.values() if f.kind == "number" and not f.unknown_dimensions and not f.optional
        ]
        if len(schema) != 1 or not fixed:
            message = (
                f'the encoding "array" holds one required feature of numbers and fixed shape, not {schema!r}'
            )
            raise ValueError(message)
    elif schema.encoding == "bytes":
        plain = [f for f in schema.values() if f.kind != "number" and not f.shape and not f.optional]
        if len(schema) > 1 or len(plain) != len(schema):
            message = (
                f'the encoding "bytes" holds one required bytes, text, image or json feature, not {schema!r}'
            )
            raise ValueError(message)


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        message = f"a feature's name is a str, not {describe(name)}"
        raise TypeError(message)
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        message = f"feature name {name!r} has a lone surrogate and cannot be stored as UTF-8"
        raise ValueError(message) from error
    if not 0 < size <= _MAX_NAME_BYTES or _CONTROL.search(name):
        limits = f"1 to {_MAX_NAME_BYTES} bytes and no control characters"
        message = f"feature name {short_form(name)!r} must have {limits}"
        raise ValueError(message)
    if name in _RESERVED:
        message = f"feature name {name!r} is taken: streams add a column of that name"
        raise ValueError(message)


def why_not(new: Feature, old: Feature | None) -> str | None:
    """Say why values of `old` (None: there were none) cannot be read as `new`; None when they can."""
    if old is None:
        return None if new.optional else "it is new and required; give it a default, or optional=True"
    if old.optional and not new.optional:
        return "older records may lack it, and now it is required"
    if new.type != old.type and (old.type, new.type) not in _WIDER:
        return f"its type changes from {old.short} to {new.short}"
    if new.shape == old.shape:
        return None
    widened = len(new.shape) == len(old.shape) and all(
        after in (None, before) for after, before in zip(new.shape, old.shape, strict=True)
    )
    # With two or more `?` the shape is stored beside the numbers, which the older records do not have.
    if widened and (new.unknown_dimensions <= 1 or old.unknown_dimensions > 1):
        return None
    return f"its shape changes from {old.short} to {new.short}"
