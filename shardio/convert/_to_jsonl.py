"""JSON lines, `<split>.jsonl`: an object a record, arrays as lists, bytes as `{"$base64": ...}`.

Each line is a document that `shardio.format.parse_json` reads, and so does every strict reader.  Missing
values are left out.  Floating-point numbers are written so that they come back exactly; NaN, infinities and
complex numbers, for which JSON has no word, as `{"$float": "NaN"}` and `{"$complex": [real, imaginary]}`.
"""

from __future__ import annotations

import base64
import gzip
import math
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from shardio.convert._target import TargetWriter, as_lists, json_text
from shardio.errors import SchemaError
from shardio.format import MAX_JSON_DEPTH

if TYPE_CHECKING:
    from shardio.metadata import Feature, Schema

__all__ = ["JsonLinesWriter"]

# Objects of one of these names alone stand for what JSON has no word for.
_SIGNS = ("$base64", "$float", "$complex")


class JsonLinesWriter(TargetWriter):
    """Write JSON lines."""

    compressions: ClassVar[tuple[str, ...]] = ("gzip",)
    _file: IO[bytes] | None = None

    @classmethod
    def check(cls, schema: Schema | None, compression: str | None) -> None:
        """Refuse names that mean something else in a line."""
        super().check(schema, compression)
        if schema is None:
            return
        for name in (*schema, *schema.sequence_features):
            if name in _SIGNS:
                message = f"feature {name!r}: in JSON lines this name stands for bytes and numbers"
                raise ValueError(message)

    @property
    def _name(self) -> str:
        return f"{self.split}.jsonl" + ".gz" * (self.compression == "gzip")

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            path = self.outbox.path(self._name)
            # mtime=0: the same records give the same bytes.
            self._file = cast(
                "IO[bytes]", gzip.GzipFile(path, "wb", 6, mtime=0) if self.compression else path.open("wb")
            )
        return self._file

    def add(self, value: Any) -> None:
        """Write a line."""
        if self.schema is None:
            plain = _plain(value, "the record")
        elif self.schema.sequence_features:
            plain = _sequence(value, self.schema)
        else:
            plain = _features(value, self.schema)
        self._opened().write(json_text(plain).encode() + b"\n")
        self.records += 1

    def close(self) -> None:
        """Close the file; a split without records is an empty one."""
        self._opened().close()
        self.outbox.finish(self._name)

    def abandon(self) -> None:
        """Close the file that is open."""
        if self._file is not None:
            self._file.close()


def _features(value: Any, features: Mapping[str, Feature]) -> Any:
    # What is missing is left out; a null that a required document is, or has within, is its own.
    return {
        name: _feature(item, name, features[name]) if name in features else _plain(item, name)
        for name, item in value.items()
        if item is not None or (name in features and not features[name].optional)
    }


def _sequence(value: Any, schema: Schema) -> Any:
    lists = {
        name: [_feature(item, name, schema.sequence_features[name]) for item in items]
        if name in schema.sequence_features and isinstance(items, list)
        else _plain(items, name)
        for name, items in value["feature_lists"].items()
        if items is not None
    }
    return {"context": _features(value["context"], schema), "feature_lists": lists}


def _feature(item: Any, name: str, feature: Feature) -> Any:
    if feature.kind == "number":
        return _plain(as_lists(item, name, feature), name)
    if feature.kind == "json":
        _check_document(item, name)
    return _plain(item, name)


def _check_document(value: Any, name: str) -> None:
    stack = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if depth >= MAX_JSON_DEPTH:
            # The line is one level deeper than its features.
            raise SchemaError(f"feature {name!r} is nested too deep for a line", expected=MAX_JSON_DEPTH - 1)
        if isinstance(item, dict):
            if len(item) == 1 and next(iter(item)) in _SIGNS:
                sign = next(iter(item))
                what = f"feature {name!r} holds an object of {sign!r} alone, which stands for something else"
                raise SchemaError(what)
            stack += [(part, depth + 1) for part in item.values()]
        elif isinstance(item, list):
            stack += [(part, depth + 1) for part in item]


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item, name) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, name) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist(), name)
    if isinstance(value, complex):
        return {"$complex": [_plain(value.real, name), _plain(value.imag, name)]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    return value
