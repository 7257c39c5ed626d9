"""Oracles of what reads hostile bytes: protobuf for the parser, and the specification for frames.

protobuf parses and refuses; what is left is to leave its containers cheaply.  Integers of a whole column are
collected in one list.  Floats are taken from the list's own serialisation, which is faster than its elements
and keeps every bit: a signalling NaN would not survive the way through a Python float.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from shardio.errors import FormatError
from shardio.kernels import gather, slice_records
from shardio.kernels._arguments import Scan
from shardio.kernels._checksums import crc32c, mask_crc
from shardio.kernels._features import (
    KINDS,
    Column,
    FeatureRequest,
    Mismatch,
    Parsed,
    Records,
    as_records,
    check_features,
    fill_missing,
)

_LISTS = (None, "bytes_list", "float_list", "int64_list")  # by number of the kind


class _Gathering:
    """The values of one feature, row by row or step by step, before they become arrays."""

    def __init__(self, feature: FeatureRequest) -> None:
        self.feature = feature
        self.name = feature.name.decode()
        self.wanted = 1 + KINDS.index(feature.kind)
        self.list_name = f"{feature.kind}_list"
        # By row (or step) the number of values, -1 where there is no kind, less where it is the wrong one.
        self.found: list[int] = []
        self.steps: list[int] = []  # by row, of a feature list; -1 where it is missing
        self.values: list[Any] = []

    def add(self, feature: Any) -> None:
        """Take the values of one Feature; this is where the time goes."""
        holder = getattr(feature, self.list_name)
        values = holder.value
        count = len(values)
        if count:
            if self.wanted == 2:
                self.values.append(_float_bytes(holder, count))
            else:
                self.values += values[:]
            self.found.append(count)
        else:
            kind = _LISTS.index(feature.WhichOneof("kind"))
            self.found.append(0 if kind == self.wanted else -1 - kind)

    def mismatch(self) -> Mismatch | None:
        """Find the first row or step that does not fit."""
        feature = self.feature
        found = np.array(self.found, np.int64)
        wrong = found < -1
        if feature.count is not None:
            wrong |= (found >= 0) & (found != feature.count)
        if (self.steps and feature.count) or (feature.required and not self.steps):
            wrong |= found == -1
        places = np.flatnonzero(wrong)
        first = self._describe(int(places[0]), int(found[places[0]])) if places.size else None
        if feature.required and -1 in self.steps:
            row = self.steps.index(-1)
            if first is None or row < first.row:
                return Mismatch(row, feature.name, "missing")
        return first

    def _describe(self, place: int, found: int) -> Mismatch:
        feature, row, step = self.feature, place, None
        if self.steps:
            stops = np.cumsum(np.maximum(self.steps, 0))
            row = int(np.searchsorted(stops, place, "right"))
            step = place - int(stops[row] - self.steps[row])
        elif found == -1:
            return Mismatch(row, feature.name, "missing")
        if found < -1:
            return Mismatch(row, feature.name, "kind", feature.kind, KINDS[-found - 2], step)
        return Mismatch(row, feature.name, "length", feature.count, max(found, 0), step)

    def column(self, *, lists: bool) -> Column:
        """Turn what was gathered into arrays; there is no mismatch."""
        feature = self.feature
        fixed = feature.count is not None
        present = np.array(self.steps if lists else self.found, np.int64)
        fields: dict[str, Any] = {"present": present >= 0, "kind": feature.kind}
        if lists:
            fields["steps"] = _offsets(np.maximum(present, 0))
        if not fixed:
            fields["offsets"] = _offsets(np.maximum(np.array(self.found, np.int64), 0))
        if feature.kind == "bytes":
            ends = _offsets(np.fromiter(map(len, self.values), np.int64, len(self.values)))
            fields["source"] = b"".join(self.values)
            arrays = {"starts": ends[:-1].copy(), "stops": ends[1:].copy()}
        elif feature.kind == "float":
            arrays = {"values": np.frombuffer(bytearray().join(self.values), np.float32)}
        else:
            arrays = {"values": np.array(self.values, np.int64)}
        if fixed:
            arrays = {key: self._spread(array) for key, array in arrays.items()}
        column = Column(**fields, **arrays)
        return column if bool(column.present.all()) else fill_missing(feature, column, gather)

    def _spread(self, array: Any) -> Any:
        """Spread values over rows of the fixed count, past those that lack the feature."""
        count = self.feature.count or 0
        there = np.array(self.found, np.int64) >= 0
        rows = there.size
        if bool(there.all()):
            return array.reshape(rows, count)
        spread = np.zeros((rows, count), array.dtype)
        spread[there] = array.reshape(-1, count) if count else 0
        return spread


def _float_bytes(holder: Any, count: int) -> bytes:
    """Take the packed values out of the serialised list: a tag byte, their length, the values."""
    size = 4 * count
    if not size:
        return b""
    start = 1 + (size.bit_length() + 6) // 7
    serialised: bytes = holder.SerializeToString()
    return serialised[start : start + size]


def _offsets(counts: Any) -> Any:
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _messages(
    records: Records | Sequence[Any], parse: Callable[[bytes], Any], what: str
) -> Iterator[Any | FormatError]:
    """Parse record by record; the first that protobuf refuses comes out as the error it is, and ends it.

    Only one message lives at a time: a batch of them costs three times as much, most of it in the caches.
    """
    from google.protobuf.message import DecodeError

    for row, payload in enumerate(slice_records(*as_records(records))):
        try:
            message = parse(payload)
        except DecodeError as error:
            advice = "check that the records are what the schema says, and verify the shard"
            yield FormatError(f"the record is not a {what}: {error}", row=row, advice=advice)
            return
        yield message


def parse_examples(records: Records | Sequence[Any], features: Sequence[FeatureRequest]) -> Parsed:
    from shardio.v1 import example_pb2

    check_features(features)
    columns = [_Gathering(feature) for feature in features]
    for message in _messages(records, example_pb2.Example.FromString, "tf.train.Example"):
        if isinstance(message, FormatError):
            return _finish(columns, [], message)
        _gather(message.features.feature, columns)
    return _finish(columns, [], None)


def parse_sequence_examples(
    records: Records | Sequence[Any], context: Sequence[FeatureRequest], lists: Sequence[FeatureRequest]
) -> Parsed:
    from shardio.v1 import example_pb2

    check_features(context)
    check_features(lists, lists=True)
    columns = [_Gathering(feature) for feature in context]
    sequences = [_Gathering(feature) for feature in lists]
    parse = example_pb2.SequenceExample.FromString
    for message in _messages(records, parse, "tf.train.SequenceExample"):
        if isinstance(message, FormatError):
            return _finish(columns, sequences, message)
        _gather(message.context.feature, columns)
        entries = message.feature_lists.feature_list
        for column in sequences:
            if column.name not in entries:
                column.steps.append(-1)
                continue
            steps = entries[column.name].feature
            column.steps.append(len(steps))
            for step in steps:
                column.add(step)
    return _finish(columns, sequences, None)


def _gather(entries: Any, columns: list[_Gathering]) -> None:
    for column in columns:
        if column.name in entries:
            column.add(entries[column.name])
        else:
            column.found.append(-1)


def _finish(columns: list[_Gathering], lists: list[_Gathering], error: FormatError | None) -> Parsed:
    mismatches = [found for column in (*columns, *lists) if (found := column.mismatch()) is not None]
    if mismatches:
        return Parsed({}, {}, min(mismatches, key=lambda found: found.row))
    if error is not None:
        raise error
    return Parsed(
        {column.feature.name: column.column(lists=False) for column in columns},
        {column.feature.name: column.column(lists=True) for column in lists},
    )


_CRCS: dict[str, Callable[[bytes], int]] = {"crc32c": crc32c, "crc32": zlib.crc32}


def _problem(data: bytes, start: int, check: str, limit: int) -> tuple[Any, ...] | None:
    """Return what is wrong with a frame: None for nothing; what and why, all None where it is cut."""

    def differ(name: str, body: bytes, stored: bytes) -> tuple[Any, ...] | None:
        if check == "none":
            return None
        expected, found = int.from_bytes(stored, "little"), mask_crc(_CRCS[check](body))
        return None if expected == found else (name, expected, found)

    if len(data) - start < 12:
        return (None, None, None)
    head = data[start : start + 8]
    if wrong := differ("length crc", head, data[start + 8 : start + 12]):
        return wrong
    length = int.from_bytes(head, "little")
    if length > limit:
        return ("length over limit", limit, length)
    stop = start + 16 + length
    if stop > len(data):
        return (None, None, None)
    return differ("payload crc", data[start + 12 : stop - 4], data[stop - 4 : stop])


def scan_frames(buffer: Any, *, check: str = "crc32c", max_record: int = 1 << 30) -> Scan:
    data, place, stops = bytes(buffer), 0, []
    while (problem := _problem(data, place, check, max_record)) is None:
        place += 16 + int.from_bytes(data[place : place + 8], "little")
        stops.append(place)
    return Scan(np.array(stops, np.int64), place, *problem)


def check_frames(buffer: Any, starts: Any, stops: Any, *, check: str = "crc32c") -> int:
    data = bytes(buffer)
    for row, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        length = int.from_bytes(data[start : start + 8], "little")
        if not 0 <= start <= stop - 16 <= len(data) - 16 or length != stop - start - 16:
            return row
        if _problem(data, int(start), check, 1 << 62) is not None:
            return row
    return -1
