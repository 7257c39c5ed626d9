"""Parts of a dataset that the workers of an engine read; no engine is known here.

A span is part of one shard and ends where a block does, so that no block is read by two workers.  How many
rows and bytes it has follows from the manifest alone.  It pickles to some hundred bytes, an address of the
version that the driver has resolved, so a commit during the read changes nothing.
"""

from __future__ import annotations

import functools
import json
import math
import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardio.arguments import names as as_names
from shardio.codecs import need_pyarrow
from shardio.reader import (
    DatasetReader,
    arrow_batches,
    batch_rows,
    choose_columns,
    columns_schema,
    count_below,
    is_ascending,
    live_rows,
    load_table,
    open_split,
    positions_between,
    shards_without_table,
    sources_of,
    table_refusal,
    with_features,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


# Stored bytes of a span: what a lost worker costs, and what fits beside others in a worker's memory.
SPAN_BYTES = 64 << 20
_PAYLOAD_ROWS = 4096
_SOURCES = 4  # datasets that a worker keeps open


@dataclass(frozen=True)
class ShardSpan:
    """Records of one shard that one worker reads.

    Attributes:
        rows: how many, as the manifest tells; exact where the whole shard is one span.
        num_bytes: stored bytes of the shard, in proportion.
        exact: `rows` is exact.
    """

    rows: int
    num_bytes: int
    exact: bool
    _address: bytes
    _columns: tuple[str, ...]
    _shard: int
    _part: tuple[int, int] = (0, 1)
    _chosen: bytes | None = None

    def reader(self) -> DatasetReader:
        """Return a reader of the records."""
        whole = _reader(self._address)
        low, stop = self._bounds(whole)
        if self._chosen is None:
            return whole[low:stop]
        bits = np.unpackbits(np.frombuffer(self._chosen, np.uint8), count=stop - low)
        return whole.select(np.flatnonzero(bits) + low)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the records as `pyarrow.Table`s of some thousand rows.

        Args:
            columns: of those that the spans were made for; None for all of them.

        Raises:
            FormatError, NotFoundError, StorageError: with the address of the record or table.
        """
        pa = need_pyarrow("reading into an engine")
        reader, names = self.reader(), self._columns if columns is None else tuple(columns)
        source = reader.source
        if source.codec is None:
            for payloads in reader.iter_batches(_PAYLOAD_ROWS):
                yield pa.table({"payload": pa.array(payloads, pa.binary())}).select(list(names))
            return
        chosen = choose_columns(source.schema, names, what="an engine")
        if not chosen:  # of a count
            yield pa.table({"_": pa.nulls(len(reader))}).select([])
        elif not shards_without_table(source, chosen)[self._shard]:
            before = self._bounds(_reader(self._address), whole_shard=True)[0]
            rows = positions_between(reader.selection, 0, len(reader)) - before
            live = live_rows(source, self._shard)
            yield load_table(source, self._shard, chosen).take(rows if live is None else live[rows])
        else:
            records = type(reader)(with_features(source, sources_of(chosen), values=True), reader.selection)
            yield from arrow_batches(records, chosen, batch_rows(source, self._shard))

    def has_table(self, columns: Sequence[str]) -> bool:
        """Tell whether the table of small features of the shard has these columns."""
        source = _reader(self._address).source
        chosen = [] if source.codec is None else choose_columns(source.schema, columns, what="an engine")
        return bool(chosen) and not shards_without_table(source, chosen)[self._shard]

    def narrowed(self, test: Callable[[Any], NDArray[np.bool_]], columns: Sequence[str]) -> ShardSpan:
        """Return the span of the records that meet a test, which is given some columns of all of them."""
        whole = _reader(self._address)
        before, stop = self._bounds(whole, whole_shard=True)
        mask = np.zeros(stop - before, bool)
        places = positions_between(self.reader().selection, 0, len(self.reader())) - before
        kept = np.concatenate([np.zeros(0, bool), *map(test, self.batches(columns))])
        mask[places[kept]] = True
        chosen = np.packbits(mask).tobytes()
        return replace(self, rows=int(mask.sum()), exact=True, _part=(0, 1), _chosen=chosen)

    def _bounds(self, whole: DatasetReader, *, whole_shard: bool = False) -> tuple[int, int]:
        """Return the positions of the first record and past the last one, in the whole split."""
        source, (part, parts) = whole.source, self._part
        before = int(source.stops[self._shard - 1]) if self._shard else 0
        if whole_shard or parts == 1:
            return before, int(source.stops[self._shard])
        stops = source.block_stops(self._shard)
        # Blocks belong to the span in which they begin.
        starts = np.concatenate([np.zeros(1, np.int64), stops])
        edges = np.array([stops[-1] * part // parts, stops[-1] * (part + 1) // parts])
        low, stop = starts[np.searchsorted(starts, edges)].tolist()
        return before + low, before + stop


class SpanPlan(NamedTuple):
    """A dataset cut into spans.

    Attributes:
        spans: in storage order.
        schema: `pyarrow.Schema` of their columns.
    """

    spans: list[ShardSpan]
    schema: Any


def open_for(
    url: str | Path | DatasetReader, split: str | None, where: str | None, options: dict[str, Any]
) -> DatasetReader:
    """Return the reader that an engine reads, at one version; `options` are those of `shardio.open`."""
    found = url if isinstance(url, DatasetReader) else open_split(url, split, **options)
    return found if where is None else found.filter(where)


def plan(reader: DatasetReader, columns: Sequence[str] | None = None, *, wanted: int = 0) -> SpanPlan:
    """Cut the records of a reader into spans.

    Args:
        reader: of records in storage order.
        columns: features, or `<feature>_length`; None for the features of the reader. Without a schema there
            is the one column "payload".
        wanted: how many spans at least, as far as there are blocks.

    Raises:
        ValueError: there is no such column, the reader has another order, or is mapped or joined.
    """
    pa = need_pyarrow("reading into an engine")
    source = reader.source
    if source.options.functions or len(reader.parts) > 1:
        raise ValueError("an engine reads records as they are stored: leave out map() and joins")
    if not is_ascending(reader.selection):
        raise ValueError("an engine reads records in storage order: leave out shuffle(), and select in order")
    usual = ("payload",) if source.codec is None else reader.column_names
    names = as_names("features", usual if columns is None else columns)
    if source.codec is None:
        if unknown := set(names) - set(usual):
            message = f"there is no column {min(unknown)!r}: records without a schema have one, 'payload'"
            raise ValueError(message)
        schema = pa.schema([(name, pa.binary()) for name in names])
    else:
        # Records as a whole may hold what no column does, such as feature lists.
        schema = columns_schema(choose_columns(source.schema, names, what="an engine") if names else [])
    table, address = source.table, pickle.dumps(source)
    total = int(table.stored_bytes.sum())
    size = max(1, min(SPAN_BYTES, -(-total // wanted) if wanted else SPAN_BYTES))
    edges = count_below(reader.selection, np.concatenate([np.zeros(1, np.int64), source.stops]))
    spans: list[ShardSpan] = []
    for shard, (low, stop) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        live, stored = int(table.live_rows[shard]), int(table.stored_bytes[shard])
        if stop - low == live and live:
            parts = max(1, min(math.ceil(stored / size), int(table.blocks[shard])))
            for part in range(parts):
                rows = live * (part + 1) // parts - live * part // parts
                place = (address, names, shard, (part, parts))
                spans.append(ShardSpan(rows, stored // parts, parts == 1, *place))
        elif stop > low:
            mask = np.zeros(live, bool)
            mask[positions_between(reader.selection, low, stop) - (int(source.stops[shard]) - live)] = True
            bits = np.packbits(mask).tobytes()
            whole = (True, address, names, shard)
            part_bytes = stored * (stop - low) // live
            spans.append(ShardSpan(stop - low, part_bytes, *whole, _chosen=bits))
    return SpanPlan(spans, schema)


@functools.lru_cache(maxsize=_SOURCES)
def _reader(address: bytes) -> DatasetReader:
    """Return the reader of a whole split; a worker opens it once for all of its spans."""
    return DatasetReader(pickle.loads(address))  # noqa: S301 - the engine unpickles the span itself


_OPERATORS = {"=", "<", "<=", ">", ">=", "IN", "IS NULL", "IS NOT NULL"}


def comparison(reader: DatasetReader, column: str, operator: str, values: Iterable[Any] = ()) -> str | None:
    """Return a comparison as a condition for `DatasetReader.filter`, where tables of all shards answer it.

    Args:
        reader: of the dataset.
        column: its name.
        operator: as SQL writes it: a comparison, "IN", "IS NULL" or "IS NOT NULL".
        values: that it is compared with.

    Returns:
        The condition; None where the engine has to look at the records.
    """
    source = reader.source
    if operator not in _OPERATORS or source.codec is None or column not in reader.column_names:
        return None
    chosen = choose_columns(source.schema, [column], what="a filter")
    if table_refusal(chosen[0]) is not None or shards_without_table(source, chosen).any():
        return None
    literals = [_literal(value) for value in values]
    if None in literals or (operator == "IN" and not literals):
        return None
    name = '"' + column.replace('"', '""') + '"'
    if operator.startswith("IS"):
        return f"{name} {operator}"
    shown = ", ".join(filter(None, literals))
    return f"{name} IN ({shown})" if operator == "IN" else f"{name} {operator} {shown}"


def _literal(value: Any) -> str | None:
    """Return a value as SQL writes it; None for what SQL would compare in another way than engines do."""
    if isinstance(value, bool | np.bool_):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating) and math.isfinite(value):
        return f"CAST({json.dumps(float(value))} AS DOUBLE)"
    if isinstance(value, str) and "\0" not in value:
        return "'" + value.replace("'", "''") + "'"
    return None
