"""Describe features as Hugging Face `datasets` does: the JSON that its `Features.to_dict` returns.

Conversions keep that JSON in a dataset's metadata for columns that a schema of shardio describes in part,
such as rates of audio and types of times. The names of classes stay in the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardio.metadata import Feature

HF_METADATA = "huggingface"  # key of the dataset's metadata
_MOST_SIZES = 5  # of `Array5D`, the last of its kind


def hf_feature(feature: Feature) -> dict[str, Any]:
    """Return a feature as JSON in the form of `datasets`."""
    found: dict[str, Any]
    if feature.classes is not None:
        found = {"names": list(feature.classes), "_type": "ClassLabel"}
    elif feature.kind == "image":
        found = {"_type": "Image"}
    elif feature.kind == "json":
        found = {"_type": "Json"}
    else:
        named = {"bytes": "binary", "text": "string", "bfloat16": "float32"}
        name = "binary" if feature.kind == "tensor" else named.get(feature.type, feature.type)
        found = {"dtype": name, "_type": "Value"}
    sizes = feature.shape
    if found["_type"] == "Value" and 1 < len(sizes) <= _MOST_SIZES and None not in sizes[1:]:
        return {"shape": list(sizes), "dtype": found["dtype"], "_type": f"Array{len(sizes)}D"}
    for size in reversed(sizes):
        found = {"feature": found, **({} if size is None else {"length": size}), "_type": "List"}
    return found


def hf_json(node: Any) -> Any:
    """Return the JSON of a feature in one form for all versions of `datasets`."""
    if isinstance(node, list):
        return {"feature": hf_json(node[0]), "_type": "List"} if len(node) == 1 else node
    if not isinstance(node, dict):
        return node
    kind = node.get("_type")
    if not isinstance(kind, str):
        return {name: hf_json(inner) for name, inner in node.items()}
    if kind == "Sequence":
        inner = node.get("feature")
        if isinstance(inner, dict) and not isinstance(inner.get("_type"), str):
            return {name: hf_json({**node, "feature": each}) for name, each in inner.items()}
        kind = "List"
    found = {
        name: value
        for name, value in node.items()
        if value is not None and (name, value) not in (("decode", True), ("length", -1))
    }
    for name in ("id", "feature", "_type", "num_classes"):
        found.pop(name, None)
    if "shape" in found:
        found["shape"] = list(found["shape"])
    inside = {"feature": hf_json(node["feature"])} if "feature" in node else {}
    return {**inside, **found, "_type": kind}


def without_names(node: Any, name: str, known: Mapping[str, Any]) -> Any:
    """Return the JSON of a feature without the names of classes that the schema has.

    Args:
        node: as `hf_json` returns it.
        name: of its column, or columns.
        known: features of the schema.
    """
    if not isinstance(node, dict):
        return node
    if node.get("_type") == "ClassLabel":
        named = getattr(known.get(name), "classes", None) is not None
        return {key: inner for key, inner in node.items() if key != "names" or not named}
    return _inside(node, name, lambda inner, at: without_names(inner, at, known))


def with_names(node: Any, name: str, known: Mapping[str, Feature]) -> Any:
    """Undo `without_names`, with the current names of the classes."""
    if not isinstance(node, dict):
        return node
    if node.get("_type") == "ClassLabel" and "names" not in node:
        return {**node, "names": list(known[name].classes or ())}
    return _inside(node, name, lambda inner, at: with_names(inner, at, known))


def _inside(node: dict[str, Any], name: str, change: Callable[[Any, str], Any]) -> dict[str, Any]:
    """Return the JSON of a feature, changed where it holds those of other features."""
    if isinstance(node.get("_type"), str):
        return {**node, "feature": change(node["feature"], name)} if "feature" in node else node
    return {part: change(inner, f"{name}.{part}") for part, inner in node.items()}
