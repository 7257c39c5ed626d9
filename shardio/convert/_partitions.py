"""What the names of folders say of their records, `year=2020/lang=en/...`, becomes features of each record.

Values get the keys besides their own features.  Payloads stay as they are, byte for byte, and an Example of
the keys follows them: two protobuf messages one behind the other are the message that has the fields of both.
Source: https://protobuf.dev/programming-guides/encoding/#last-one-wins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shardio.codecs import record_codec
from shardio.errors import SchemaError
from shardio.formats import ForeignSource, Piece
from shardio.metadata import Feature, Schema
from shardio.sources import key_value

LEAVE_OUT = 'leave out what folders say with options={"partitions": None}'
_CARRIES = ("example", "sequence_example")


def check_keys(source: ForeignSource, schema: Schema | None, said: Any) -> None:
    """Refuse to lose what the names of folders say: a key without a feature that nothing leaves out.

    Args:
        source: whose keys are meant.
        schema: of the records; None where they are bytes.
        said: the caller's schema.

    Raises:
        SchemaError: names the key.
    """
    given = {} if said is None or isinstance(said, Schema) else {**said, **(said.get("context") or {})}
    for name in source.key_types():
        lost = schema is None or name not in schema
        if lost and (isinstance(said, Schema) or given.get(name, name) is None):
            continue
        holds = not source.payloads or (schema is not None and schema.encoding in _CARRIES)
        if lost or not holds:
            what = "are not tf.train.Examples" if source.payloads else "are bytes"
            raise SchemaError(
                f"folders give records the feature {name!r}, and the records {what}, which hold no features",
                advice=LEAVE_OUT,
            )


def notes_on_keys(source: ForeignSource, schema: Schema | None, pieces: Sequence[Piece]) -> list[str]:
    """Return what became of the names of folders, for people."""
    first = {key.name: key for piece in reversed(pieces) for key in piece.keys}
    kept = [name for name in source.key_types() if schema is not None and name in schema and name in first]
    told = ", ".join(f"{name} ({first[name]})" for name in kept)
    return [f"features from folder names: {told}"] if kept else []


def fitter(source: ForeignSource, piece: Piece, schema: Schema | None) -> Callable[[Any], Any]:
    """Return what makes a record of a piece fit a schema: see `ForeignSource.fit`; and adds the keys.

    Raises:
        SchemaError: a key does not fit its feature.
    """
    if schema is None:
        return _same
    keys = {
        key.name: key_value(key.text, key.name, schema[key.name]) for key in piece.keys if key.name in schema
    }
    if not keys:
        return lambda value: source.fit(value, schema)
    if source.payloads:
        return _Appended(keys, schema)

    def fit(value: Any) -> Any:
        fitted = source.fit(value, schema)
        if not isinstance(fitted, Mapping):
            what = f"folders give records the feature {next(iter(keys))!r}, and this record is bytes"
            raise SchemaError(what, advice=LEAVE_OUT)
        for name, item in keys.items():
            if name in fitted:
                _check_same(name, schema[name], fitted[name], item)
        return {**fitted, **keys}

    return fit


def _same(value: Any) -> Any:
    return value


def _check_same(name: str, feature: Feature, own: Any, said: Any) -> None:
    """Refuse a record that says something else than its folder."""
    if own is None or said is None:
        same = own is said
    else:
        ours, theirs = feature.fit(own, name), feature.fit(said, name)
        same = np.array_equal(ours, theirs) if isinstance(ours, np.ndarray) else ours == theirs
    if not same:
        raise SchemaError(
            f"the record and its folder give {name!r} different values",
            expected=f"{said!r}, as the folder says",
            found=repr(own)[:80],
            advice=LEAVE_OUT,
        )


class _Appended:
    """Payloads with the keys of their folder behind them, but for those that they hold themselves."""

    def __init__(self, keys: Mapping[str, Any], schema: Schema) -> None:
        self._keys = keys
        self._features = {name: schema[name].replace(optional=True, default=None) for name in keys}
        self._nested = schema.encoding == "sequence_example"
        self._own = record_codec(Schema(self._features, encoding=schema.encoding))
        self._suffix = self._encoded(keys)

    def _encoded(self, keys: Mapping[str, Any]) -> bytes:
        # The context of a sequence example has the field's number that features of an Example have.
        features = {name: self._features[name] for name in keys}
        payload: bytes = record_codec(Schema(features)).encode(dict(keys))
        return payload

    def __call__(self, payload: bytes) -> bytes:
        found = self._own.decode(payload)
        found = found["context"] if self._nested else found
        held = {name for name, value in found.items() if value is not None}
        for name in held:
            _check_same(name, self._features[name], found[name], self._keys[name])
        rest = {name: value for name, value in self._keys.items() if name not in held}
        return bytes(payload) + (self._encoded(rest) if held else self._suffix)
