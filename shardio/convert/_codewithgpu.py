"""codewithgpu records: `METADATA`, and pairs of `.data` and `.index` files; `start length` a line and record.

A record is a `FeatureMap`, a protobuf message: `map<string, Feature> = 1`, and a Feature one of bytes (1),
float (2), int64 (3), a list of Features (4), a FeatureMap (5).  METADATA says the types; maps become
features called `outer.inner`.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadRecord, FormatError
from shardio.format import parse_json
from shardio.formats import RUN_BYTES, File, FileSource, Piece, Sample, Unreadable, read_whole
from shardio.metadata import Feature, read_fields
from shardio.storage import connect
from shardio_indexer import parse_record_index

_MOST_LEVELS = 32
_TYPES = {
    "BYTES": "bytes", "STRING": "text", "INT64": "int64", "FLOAT64": "float32", "FLOAT32": "float32",
}  # fmt: skip


@dataclass(frozen=True)
class CodeWithGpu(FileSource):
    """A folder of codewithgpu records."""

    kind: ClassVar[str] = "codewithgpu"

    @classmethod
    def fits(cls, key: str) -> bool:
        """Tell whether a file is METADATA, records or their index."""
        return key.endswith((".data", ".index")) or key.rpartition("/")[2] == "METADATA"

    @cached_property
    def _metadata(self) -> dict[str, Any]:
        for file in self.files:
            if file.key.rpartition("/")[2] == "METADATA":
                data = read_whole(file.root, file.key, self.options.storage_options, max_bytes=16 << 20)
                try:
                    metadata = parse_json(data)
                    metadata["features"].items()
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise FormatError(f"METADATA is damaged ({error!r})", url=file.url) from None
                return dict(metadata)
        raise FormatError("there is no METADATA here", url=str(self.place))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_metadata": self._metadata}

    @property
    def heads(self) -> list[File]:
        """The indexes."""
        return [file for file in self.files if file.key.endswith(".index")]

    def ignored(self) -> Sequence[str]:
        """Return files that are not of the source, and the indexes and records of no split."""
        used = {file.key.removesuffix(".index") for file, _ in self.split_files()}
        data = [file for file in self.files if file.key.endswith(".data")]
        left = [file.name for file in data if file.key.removesuffix(".data") not in used]
        return [*super().ignored(), *left]

    def pieces(self) -> list[Piece]:
        """Return runs of records."""
        sizes = {file.key: file for file in self.files if file.key.endswith(".data")}
        alone = sizes.keys() ^ {f"{file.key.removesuffix('.index')}.data" for file in self.heads}
        if alone:
            raise FormatError("a .data or .index file is missing", url=str(self.place), found=min(alone))
        runs = []
        entries = 0
        splits = {file.url: split for file, split in self.split_files()}
        for file in self.heads:
            data = sizes[f"{file.key.removesuffix('.index')}.data"]
            index = read_whole(file.root, file.key, self.options.storage_options)
            stops = parse_record_index(index, file.url)
            if len(stops) and stops[-1] > data.size:
                what = "a record ends after the end of the file"
                raise FormatError(what, url=file.url, expected=f"at most {data.size}", found=int(stops[-1]))
            entries += len(stops)
            if file.url not in splits:
                continue
            for first, edges in _runs(stops):
                size, last = int(edges[-1] - edges[0]), first + len(edges) - 1
                runs.append(Piece(file.root, data.key, splits[file.url], size, first, last, edges))
        if entries != self._metadata.get("entries", entries):
            raise FormatError(
                "the index files do not hold the records that METADATA says",
                url=str(self.place), expected=self._metadata["entries"], found=entries,
            )  # fmt: skip
        return runs

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord]:
        """Yield the records of a run."""
        with connect(piece.root, storage_options=self.options.storage_options).open(piece.key) as file:
            payloads = file.read_many(piece.extra[:-1], piece.extra[1:])
        for row, payload in enumerate(payloads, piece.start):
            where = f"{piece.url} row {row}"
            try:
                yield Sample(where, _feature_map(bytes(payload), self._metadata["features"]))
            except (ValueError, struct.error) as error:
                yield BadRecord(where, f"the record is damaged: {error}")

    def known(self) -> Mapping[str, Feature | str | Unreadable]:
        """Return the types that METADATA declares; sizes of lists it does not know."""
        declared = list(_declared(self._metadata["features"], ""))
        counts = Counter(name for name, _ in declared)
        return {
            name: Unreadable(f"METADATA names two features {name!r}") if counts[name] > 1 else kind
            for name, kind in declared
        }


def _declared(
    features: Mapping[str, Any], prefix: str, level: int = 0
) -> Iterator[tuple[str, Feature | str | Unreadable]]:
    if level > _MOST_LEVELS:
        raise FormatError("METADATA is damaged: maps are nested too deeply", found=prefix)
    for name, kind in features.items():
        if isinstance(kind, dict):
            yield from _declared(kind, f"{prefix}{name}.", level + 1)
        elif isinstance(kind, list) and len(kind) == 1 and isinstance(kind[0], str) and kind[0] in _TYPES:
            yield prefix + name, Feature(_TYPES[kind[0]], shape=(None,))
        elif isinstance(kind, str) and kind in _TYPES:
            # Bytes may be images; a look at them tells.
            if kind != "BYTES":
                yield prefix + name, _TYPES[kind]
        elif _holds_bytes(kind):
            yield prefix + name, Unreadable(f"feature {prefix + name!r} is {kind}: JSON holds no bytes")
        else:
            yield prefix + name, "json"


def _holds_bytes(kind: Any) -> bool:
    if isinstance(kind, dict | list):
        return any(map(_holds_bytes, kind.values() if isinstance(kind, dict) else kind))
    return bool(kind == "BYTES")


def _runs(stops: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield runs of about 8 MiB: the number of the first record, where it begins, and where each ends."""
    first, edges = 0, np.concatenate([[0], stops])
    while first < len(stops):
        last = max(first + 1, int(np.searchsorted(stops, edges[first] + RUN_BYTES, "right")))
        yield first, edges[first : last + 1]
        first = last


def _feature_map(
    payload: bytes, kinds: Mapping[str, Any], prefix: str = "", level: int = 0, *, nested: bool = False
) -> dict[str, Any]:
    if level > _MOST_LEVELS:
        raise ValueError("maps are nested too deeply")
    value: dict[str, Any] = {}
    for number, entry in read_fields(payload):
        if number != 1 or not isinstance(entry, bytes):
            continue
        parts = dict(read_fields(entry))
        name, feature = _bytes(parts.get(1, b"")).decode(), _bytes(parts.get(2, b""))
        kind = kinds.get(name)
        if isinstance(kind, dict) and not nested:
            fields = dict(read_fields(feature))
            value |= _feature_map(_bytes(fields.get(5, b"")), kind, f"{prefix}{name}.", level + 1)
        else:
            value[prefix + name] = _value(feature, kind, level)
    return value


def _value(feature: bytes, kind: Any, level: int) -> Any:
    """Return a Feature's value; one without any is an empty list, or the zero of its kind."""
    if level > _MOST_LEVELS:
        raise ValueError("lists are nested too deeply")
    if isinstance(kind, dict):
        # A map within a list stays an object of its own.
        inner = dict(read_fields(feature)).get(5, b"")
        return _feature_map(_bytes(inner), kind, level=level + 1, nested=True)
    fields = list(read_fields(feature))
    if isinstance(kind, list):
        items = [item for number, data in fields if number == 4 for _, item in read_fields(_bytes(data))]
        return [_value(_bytes(item), kind[0] if kind else None, level + 1) for item in items]
    if not fields:
        return {"BYTES": b"", "STRING": "", "INT64": 0, "FLOAT32": 0.0, "FLOAT64": 0.0}.get(kind)
    number, data = fields[-1]
    if number == 1:
        return _bytes(data).decode() if kind == "STRING" else _bytes(data)
    if number == 2:
        return struct.unpack("<f", _bytes(data))[0]
    if number == 3 and isinstance(data, int):
        return data - (1 << 64) if data >> 63 else data
    raise ValueError(f"a feature is of kind {number}, and METADATA says {kind}")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number is where bytes should be")  # noqa: TRY004 - the data is wrong
    return value
