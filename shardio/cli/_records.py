"""Records that a command shows: splits of a dataset, or a shard, indexed or not."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from cyclopts import Parameter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardio import DatasetReader, Location, ShardReader
    from shardio.cli._command import Given

ReadAs: TypeAlias = Annotated[
    Literal["auto", "bytes", "text", "example"],
    Parameter(name="--as", help="how to decode records without a schema"),
]
Where: TypeAlias = Annotated[str | None, Parameter(help='records that match an SQL condition: "label = 3"')]


@dataclass(eq=False, repr=False)
class RecordGroup:
    """Records that are counted together: a split, or a shard.

    Attributes:
        name: of the split; "" for a shard.
        version: of the dataset; None for a shard.
        records: the reader, or None for a shard without an index, which is read in order.
    """

    name: str
    version: int | str | None
    records: DatasetReader | ShardReader | None
    payloads: Iterable[Any] = ()

    def __len__(self) -> int:
        """Return the number of records; 0 if unknown without reading."""
        return 0 if self.records is None else len(self.records)

    def first(self, most: int) -> Iterator[tuple[int, Any]]:
        """Yield the first records with their positions."""
        source = self.payloads if self.records is None else self.records[:most]
        return zip(itertools.count(), itertools.islice(source, min(most, sys.maxsize)), strict=False)

    def pick(self, positions: list[int]) -> Iterator[tuple[int, Any]]:
        """Yield records by position, in the order asked.

        Raises:
            IndexError: out of range.
        """
        if self.records is not None:
            known = len(self.records)
            values = self.records.read(positions)
            yield from zip((p + known if p < 0 else p for p in positions), values, strict=True)
            return
        if min(positions) < 0:
            raise IndexError("this shard has no index: records can only be counted from the start")
        wanted = set(positions)
        found = {}
        for position, value in enumerate(self.payloads):
            if position in wanted:
                found[position] = value
            if len(found) == len(wanted):
                break
        for position in positions:
            if position not in found:
                raise IndexError(f"record {position} is out of range")
            yield position, found[position]

    def matching(self, condition: str) -> list[int]:
        """Return the positions of the records that match an SQL condition."""
        from shardio.reader import DatasetReader

        if not isinstance(self.records, DatasetReader):
            raise ValueError("--where needs a dataset, and this is a single shard")  # noqa: TRY004
        positions: list[int] = np.asarray(self.records.filter(condition).selection, np.int64).tolist()
        return positions

    def locate(self, position: int) -> Location | None:
        """Return the location of a record, or None without an index."""
        return None if self.records is None else self.records.locate(position)


def open_parts(given: Given, *, decode: bool) -> list[RecordGroup]:
    """Open the dataset or shard of a command line.

    Args:
        given: url, storage and reading options, and `features`.
        decode: values by the schema; False for payload bytes.

    Returns:
        The splits by name, or the one that was named; for a shard the one part.
    """
    import shardio
    from shardio.reader import is_shard

    if given.call(is_shard):
        return [_open_shard(given)]
    options = given.options(shardio.open) | {"decode": decode}
    if not decode:
        options["features"] = None
    whole = shardio.open(**{"split": "all"} | options)
    if given.split or len(whole.splits) < 2:
        name = given.split or next(iter(whole.splits), "")
        return [RecordGroup(name, whole.version, whole)]
    # The version is resolved once, so that all splits are of the same one.
    options |= {"version": whole.version, "digest": whole.digest}
    return [
        RecordGroup(name, whole.version, shardio.open(**options | {"split": name})) for name in whole.splits
    ]


def _open_shard(given: Given) -> RecordGroup:
    import shardio

    if given.split or given.version or given.digest:
        raise ValueError(f"{given.url} is a single shard: it has no split, version or digest to choose")
    shard = given.call(shardio.open_shard)
    if isinstance(shard, shardio.ShardReader):
        return RecordGroup("", None, shard)
    return RecordGroup("", None, None, shard)


def reader_of(kind: str) -> Callable[[Any], Any]:
    """Return a function that decodes the payload of a record without a schema for display."""
    readers: dict[str, Callable[[Any], Any]] = {"auto": _guess, "text": _as_text, "example": _as_example}
    return readers.get(kind, bytes)


def _guess(payload: Any) -> Any:
    from shardio.view import guess_value

    return guess_value(payload)


def _as_text(payload: Any) -> Any:
    return payload.decode(errors="backslashreplace") if isinstance(payload, bytes) else payload


def _as_example(payload: Any) -> Any:
    from shardio.codecs import decode_example

    return decode_example(payload) if isinstance(payload, bytes) else payload
