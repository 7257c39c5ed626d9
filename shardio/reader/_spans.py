"""Parts of a dataset for the workers of an engine: picklable, pinned to one version, read independently.

A span is a run of consecutive records.  It pickles to a few hundred bytes and holds the version that the
driver resolved, so that a commit during the read changes nothing.  Spans are cut from the manifest alone;
no shard is opened.  A block at a span's edge is read by both neighbors.
"""

from __future__ import annotations

import functools
import itertools
import math
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardio.arguments import integer, names as as_names
from shardio.codecs import need_pyarrow
from shardio.reader._columns import choose_columns, columns_schema, iterate_columns
from shardio.reader._subset import count_below, is_ascending, positions_between

if TYPE_CHECKING:
    from shardio.reader._records import DatasetReader

SPAN_BYTES = 64 << 20
_PAYLOAD_ROWS = 4096
_OPEN_DATASETS = 4  # that a worker process keeps open


@dataclass(frozen=True)
class Span:
    """Consecutive records of a dataset for one worker; made by `DatasetReader.spans`.

    Attributes:
        num_rows: number of records.
        num_bytes: stored bytes of their shards, in proportion to the records.
    """

    num_rows: int
    num_bytes: int
    _dataset: bytes = field(repr=False)  # a pickled DatasetReader of the whole split
    _start: int
    _stop: int
    _selected: bytes | None = field(default=None, repr=False)  # a bit for each position of [start, stop)

    @property
    def reader(self) -> DatasetReader:
        """A reader of the records; a process opens the dataset once for all of its spans."""
        whole = _open(self._dataset)
        if self._selected is None:
            return whole[self._start : self._stop]
        bits = np.unpackbits(np.frombuffer(self._selected, np.uint8), count=self._stop - self._start)
        return whole.select(np.flatnonzero(bits) + self._start)

    def __len__(self) -> int:
        return self.num_rows

    def __iter__(self) -> Iterator[Any]:
        """Yield the records, as iterating over the dataset does."""
        return iter(self.reader)

    def iter_arrow(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the records as `pyarrow.Table`s of a few thousand rows; see `to_arrow`."""
        pa = need_pyarrow("reading into an engine")
        reader = self.reader
        chosen = _column_names(reader, columns)
        if not chosen:  # an engine that counts rows
            yield pa.table({"_": pa.nulls(len(reader))}).select([])
        elif reader.source.codec is None:
            for payloads in reader.iter_batches(_PAYLOAD_ROWS):
                yield pa.table({"payload": pa.array(payloads, pa.binary())})
        else:
            yield from iterate_columns(reader, choose_columns(reader.source.schema, chosen, what="an engine"))

    def to_arrow(self, columns: Sequence[str] | None = None) -> Any:
        """Return the records as one `pyarrow.Table`.

        Args:
            columns: features, or `<feature>_length`; None for the features of the reader. Records without a
                schema have one column, "payload".

        Raises:
            ValueError: there is no such column.
            FormatError, NotFoundError, StorageError: with the address of the record or table.
        """
        pa = need_pyarrow("reading into an engine")
        tables = list(self.iter_arrow(columns))
        if len(tables) == 1:  # concatenation loses the number of rows of tables without columns
            return tables[0]
        return pa.concat_tables(tables) if tables else arrow_schema(self.reader, columns).empty_table()

    def filter(self, mask: NDArray[np.bool_]) -> Span:
        """Return the span of the records where a mask, bool [num_rows], is true."""
        positions = positions_between(self.reader.selection, 0, self.num_rows)[np.asarray(mask, bool)]
        if not len(positions):
            return Span(0, 0, self._dataset, 0, 0)
        return _span(self._dataset, positions, self.num_bytes * len(positions) // self.num_rows)


def cut_spans(reader: DatasetReader, span_bytes: int) -> list[Span]:
    """Cut a reader into spans of about `span_bytes` stored bytes; see `DatasetReader.spans`."""
    size = integer("bytes", span_bytes)
    if size < 1:
        raise ValueError(f"bytes={size} must be 1 or more")
    source, selection = reader.source, reader.selection
    if source.options.functions or len(reader.parts) > 1:
        raise ValueError("spans hold records as they are stored: call spans() before map() and without joins")
    if not is_ascending(selection):
        raise ValueError("spans hold records in storage order: call spans() without shuffle()")
    dataset = pickle.dumps(type(reader)(source))
    table = source.table
    # Records of the reader before each shard, and their stored bytes in each.
    edges = count_below(selection, np.concatenate([np.zeros(1, np.int64), source.stops]))
    stored_bytes = np.diff(edges) * (table.stored_bytes / np.maximum(table.live_rows, 1))
    return [
        _span(dataset, positions_between(selection, start, stop), int(num_bytes))
        for start, stop, num_bytes in _runs(edges.tolist(), stored_bytes.tolist(), size)
    ]


def arrow_schema(reader: DatasetReader, columns: Sequence[str] | None = None) -> Any:
    """Return the `pyarrow.Schema` of the columns of a reader's spans; arguments as in `Span.to_arrow`."""
    pa = need_pyarrow("reading into an engine")
    chosen = _column_names(reader, columns)
    if not chosen or reader.source.codec is None:
        return pa.schema([(name, pa.binary()) for name in chosen])
    return columns_schema(choose_columns(reader.source.schema, chosen, what="an engine"))


def _runs(edges: list[int], sizes: list[float], most: int) -> Iterator[tuple[int, int, float]]:
    """Yield start, stop and bytes of each span: small shards together, large ones in equal parts."""
    start, held = 0, 0.0
    for low, stop, size in zip(edges[:-1], edges[1:], sizes, strict=True):
        if start < low and held + size > most:
            yield start, low, held
            start, held = low, 0.0
        held += size
        if held > most:
            parts = min(math.ceil(held / most), stop - start)
            cuts = [start + (stop - start) * part // parts for part in range(parts + 1)]
            for first, last in itertools.pairwise(cuts):
                yield first, last, held / parts
            start, held = stop, 0.0
    if start < edges[-1]:
        yield start, edges[-1], held


def _span(dataset: bytes, positions: NDArray[np.int64], num_bytes: int) -> Span:
    """Return the span of ascending positions of a split."""
    start, stop = int(positions[0]), int(positions[-1]) + 1
    if stop - start == len(positions):
        return Span(len(positions), num_bytes, dataset, start, stop)
    selected = np.zeros(stop - start, bool)
    selected[positions - start] = True
    return Span(len(positions), num_bytes, dataset, start, stop, np.packbits(selected).tobytes())


def _column_names(reader: DatasetReader, columns: Sequence[str] | None) -> tuple[str, ...]:
    if reader.source.codec is not None:
        return as_names("columns", reader.column_names if columns is None else columns)
    chosen = as_names("columns", ("payload",) if columns is None else columns)
    if unknown := set(chosen) - {"payload"}:
        raise ValueError(f"there is no column {min(unknown)!r}: records without a schema have one, 'payload'")
    return chosen


@functools.lru_cache(maxsize=_OPEN_DATASETS)
def _open(dataset: bytes) -> DatasetReader:
    reader: DatasetReader = pickle.loads(dataset)  # noqa: S301 - the engine unpickles the span itself
    return reader
