"""From windows to batches: gather the payloads of several steps, decode them together, cut them by step.

The unit of work is a group of steps, so that what Python and NumPy cost is paid once for many records;
payloads of one length become one strided view, Examples are parsed straight into columns.  An error comes at
its own step: the batches before it are delivered.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardio import kernels
from shardio.codecs import ImageCodec, are_alike, stack
from shardio.errors import ShardioError
from shardio.joins import JoinedSource
from shardio.order import Rows, StepGroup, record_generator
from shardio.reader import Damage, DatasetSource, SuppressCorruption
from shardio.redact import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from shardio.reader import DatasetReader
    from shardio.streaming._options import StreamOptions
    from shardio.streaming._rows import GatheredRows, RowGatherer


class Batch(NamedTuple):
    """What one step delivers.

    Attributes:
        step: its number in the epoch.
        columns: or what transforms made of them.
        rows: records in it.
    """

    step: int
    columns: Any
    rows: int


class CancelledError(Exception):
    """The pass was ended while a batch of it was being made."""


class PlannedSteps(NamedTuple):
    """A group of steps whose chunks are being opened.

    Attributes:
        group: which steps, and where the rows of each are.
        codes: int64 [rows], of each row, in the order of the group's parts; see `RowGatherer`.
        chunks: int64, numbers of the chunks that are in use for the group.
        identities: which records the rows are, where that is needed.
    """

    group: StepGroup
    codes: NDArray[np.int64]
    chunks: NDArray[np.int64]
    identities: Rows | None

    def single(self, k: int) -> PlannedSteps:
        """Return the k-th step of the group alone; the group still uses the chunks."""
        group = self.group
        low, high = int(group.edges[k]), int(group.edges[k + 1])
        index = group.order[low:high]
        edges = group.edges[k : k + 2] - low
        step = StepGroup(
            group.steps[k : k + 1], edges, group.valid[k : k + 1], group.parts, np.arange(high - low)
        )
        identities = self.identities
        if identities is not None:
            identities = Rows(*(column[low:high] for column in identities))
        return PlannedSteps(step, self.codes[index], _NO_CHUNKS, identities)


_NO_CHUNKS = np.zeros(0, np.int64)
_PATTERN_ROWS = 16  # records that are looked at for the pattern of a batch that has none


class _Decoded(NamedTuple):
    """Rows of a group without those that are skipped.

    Attributes:
        kept: numbers of these rows in the group; None for all of them.
        rows: how many they are.
        content: columns; or the list of values where a function is to see each.
    """

    kept: NDArray[np.int64] | None
    rows: int
    content: Any

    def numbers(self, low: int, high: int) -> NDArray[np.int64]:
        """Return the numbers in their group of rows `low .. high - 1`."""
        return np.arange(low, high) if self.kept is None else self.kept[low:high]


def _end_if_forked(home: int, error: BaseException | None = None) -> None:
    """End this process if it is a child that a function of the caller's forked and did not end.

    It would continue as a second copy of a thread or a worker process and wait for those that stayed with its
    parent, which waits for it.

    Args:
        home: the process that called the function.
        error: what the function raised here; `sys.exit` does so, too.
    """
    if os.getpid() == home:
        return
    code: object = 1
    if isinstance(error, SystemExit):
        code = 0 if error.code is None else error.code
        if not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
    elif error is not None:
        traceback.print_exception(error)
    else:
        sys.stderr.write(
            "shardio: a transform or collate_fn forked a process and returned in the child, which ends here; "
            "end it with os._exit(0)\n"
        )
    for file in (sys.stdout, sys.stderr):
        if file is not None:
            file.flush()
    os._exit(code if isinstance(code, int) else 1)


class BatchBuilder:
    """Builds the batches of groups of steps; the threads of a pass share one.

    Args:
        gatherer: brings their rows together.
        options: of the stream.
        epoch: the stream's, which keys `random_transform` together with seed and position.
        damage: what to do about it.
        collate: makes a batch of the values of records; None for columns of the schema, or `stack` where a
            transform is given.
        columnar: whether what `collate` makes can be cut by rows; else a batch without rows is
            `collate([])`.
        finish: is called with each batch at last, in the thread that built it.
    """

    def __init__(
        self,
        gatherer: RowGatherer,
        options: StreamOptions,
        *,
        epoch: int,
        damage: Damage,
        collate: Callable[[list[Any]], Any] | None = None,
        columnar: bool = True,
        finish: Callable[[Any], Any] | None = None,
    ) -> None:
        components = gatherer.components
        self._gatherer, self._release = gatherer, gatherer.chunks.release
        self._mixed = len(components) > 1
        self._options = options
        self._epoch = epoch
        self._damage = damage
        self._counters = gatherer.counters
        self._collate = collate or stack
        self._finish = finish
        self._codec = components[0].source.codec
        self._by_value = options.transforms_records or collate is not None
        # Where the schema alone does not say what a batch of no rows looks like.
        self._components = components
        self._joins = any(isinstance(each.source, JoinedSource) for each in components)
        varied = any(_stacks_by_value(each.source) for each in components)
        self._patterned = columnar and (self._by_value or varied)
        self._pattern: Any = None
        self._cancelled = False

    def cancel(self) -> None:
        """Make every call that is under way end at the next record with `CancelledError`."""
        self._cancelled = True

    def build(self, planned: PlannedSteps) -> Iterator[Batch]:
        """Wait for the chunks of a group and yield its batches, in order.

        Raises:
            Exception: whatever the first step that cannot be built raises; the steps before it come first.
        """
        try:
            decoded = self._decode(planned)
        except CancelledError:
            raise
        except Exception:
            if len(planned.group.steps) == 1:
                raise
            for k in range(len(planned.group.steps)):
                yield from self.build(planned.single(k))
            self._release(planned.chunks)
            return
        group = planned.group
        edges = group.edges if decoded.kept is None else np.searchsorted(decoded.kept, group.edges)
        bounds, wanted = edges.tolist(), np.diff(group.edges).tolist()
        for k, step in enumerate(group.steps):
            low, high = bounds[k], bounds[k + 1]
            if high - low < wanted[k]:
                self._damage.count(wanted[k] - high + low)
            home = os.getpid()
            try:
                batch, rows = self._batch(planned, decoded, k, low, high)
            except BaseException as error:
                _end_if_forked(home, error)
                raise
            _end_if_forked(home)
            yield Batch(step, batch, rows)
        self._release(planned.chunks)

    def _batch(
        self, planned: PlannedSteps, decoded: _Decoded, k: int, low: int, high: int
    ) -> tuple[Any, int]:
        """Return the batch of step number k of a group, from rows `low .. high - 1`, and its rows."""
        batch, kept = self._columns(planned, decoded, low, high)
        batch = self._extend(batch, planned, k, kept)
        transform = self._options.batch_transform
        if transform is not None:
            with self._counters.timed("transform_seconds"):
                try:
                    batch = transform(batch)
                except Exception as error:
                    step = planned.group.steps[k]
                    error.add_note(f"in the batch_transform of step {step} of epoch {self._epoch}")
                    raise
            if batch is None:
                raise TypeError("batch_transform returned None; it must return the batch")
        return batch if self._finish is None else self._finish(batch), len(kept)

    def _columns(
        self, planned: PlannedSteps, decoded: _Decoded, low: int, high: int
    ) -> tuple[Any, NDArray[np.int64]]:
        """Return the columns of one step, from rows `low .. high - 1` of what was decoded.

        And the numbers in their group of the rows in them: of those that a transform did not drop.
        """
        rows = decoded.numbers(low, high)
        if low == high and self._patterned:
            return self._nothing(), rows
        if self._by_value:
            with self._counters.timed("transform_seconds"):
                values = self._transformed(planned, decoded, low, high)
                if self._options.drop_none:
                    rows = rows[[value is not None for value in values]]
                    values = [value for value in values if value is not None]
                    self._counters.add(records_dropped=high - low - len(values))
                    if not values and self._patterned:
                        return self._nothing(), rows
                columns = self._collate(values)
        elif low == 0 and high == decoded.rows:
            columns = decoded.content
        else:
            columns = cut(decoded.content, low, high)
        if self._patterned and self._pattern is None:
            self._pattern = cut(columns, 0, 0)
        return columns, rows

    def _extend(self, columns: Any, planned: PlannedSteps, k: int, rows: NDArray[np.int64]) -> Any:
        """Add the columns that were asked for beside those of the records."""
        if not (self._options.positions or self._options.valid):
            return columns
        if not isinstance(columns, dict):
            raise TypeError(
                "positions= and valid= add columns to a dict, but the transform or collate_fn makes a "
                f"{type(columns).__name__} of a batch: let it return dicts"
            )
        columns = dict(columns)
        if planned.identities is not None and self._options.positions:
            columns["_position"] = planned.identities.positions[rows]
            if self._mixed:
                columns["_source"] = planned.identities.sources[rows]
        if self._options.valid:
            columns["_valid"] = rows - planned.group.edges[k] < planned.group.valid[k]
        return columns

    def _transformed(self, planned: PlannedSteps, decoded: _Decoded, low: int, high: int) -> list[Any]:
        options, values, home = self._options, [], os.getpid()
        if not options.transforms_records:
            return list(decoded.content[low:high])
        numbers = decoded.numbers(low, high).tolist()
        for value, number in zip(decoded.content[low:high], numbers, strict=True):
            if self._cancelled:
                raise CancelledError
            try:
                if options.random_transform is not None:
                    made = options.random_transform(value, self._generator(planned, number, "record"))
                else:
                    assert options.transform is not None  # noqa: S101 - for the type checker
                    made = options.transform(value)
                if made is None and not options.drop_none:
                    raise TypeError(  # noqa: TRY301 - its address is added below
                        "the transform returned None; it must return the record's new value (a function "
                        "without `return` returns None), or give drop_none=True to leave the record out"
                    )
            except Exception as error:
                _, url, shard, row = self._address(planned, number)
                error.add_note(f"in a transform, for row {row} of shard {shard} ({redact(url)})")
                raise
            _end_if_forked(home)  # not after the whole step, of which each record would fork again
            values.append(made)
        return values

    def _generator(self, planned: PlannedSteps, row: int, purpose: str) -> np.random.Generator:
        """Return the generator of a row of a group.

        Keyed by the record, not by the process that delivers it; a dataset that began again is another cycle
        of its own.
        """
        assert planned.identities is not None  # noqa: S101 - a stream that draws at random asks for them
        position, source, cycle = (int(column[row]) for column in planned.identities)
        options = self._options
        return record_generator(
            options.seed, self._epoch, position, source=source, cycle=cycle, purpose=purpose
        )

    def _decode(self, planned: PlannedSteps) -> _Decoded:
        """Gather and decode all rows of a group together.

        Raises:
            FormatError, SchemaError, StorageError: with the address of the record, where it is not to be
                skipped.
        """
        if self._cancelled:
            raise CancelledError
        found = self._gatherer.gather(planned.codes[planned.group.order], as_bytes=self._codec is None)
        with self._counters.timed("decode_seconds"):
            if found.records is not None:
                # They stay bytes, and none is missing.
                records = found.records
                self._counters.add(record_bytes=sum(map(len, records)))
                return _Decoded(None, len(records), self._raw(planned, np.arange(len(records)), records))
            return self._decode_payloads(planned, found)

    def _decode_payloads(self, planned: PlannedSteps, gathered: GatheredRows) -> _Decoded:
        values, offsets, kept = gathered.values, gathered.offsets, gathered.kept
        rows = np.arange(offsets.size - 1) if kept is None else kept
        self._counters.add(record_bytes=len(values))
        with SuppressCorruption() as skipped:
            content = self._content(planned, rows, values, offsets[:-1], offsets[1:])
            return _Decoded(kept, len(rows), content)
        if skipped.error is not None and not self._damage.skips:
            found = self._located(skipped.error, planned, rows)
            raise found from found.__cause__
        # Those that cannot be decoded are found one by one, and left out.
        good = np.ones(len(rows), bool)
        for k in range(len(rows)):
            with SuppressCorruption() as skipped:
                self._content(planned, rows[k : k + 1], values, offsets[k : k + 1], offsets[k + 1 : k + 2])
            if skipped.error is not None:
                found = self._located(skipped.error, planned, rows[k : k + 1])
                source, _, shard, row = self._address(planned, int(rows[k]))
                self._damage.note(found, source, shard, [row])
                good[k] = False
        content = self._content(planned, rows[good], values, offsets[:-1][good], offsets[1:][good])
        return _Decoded(rows[good], int(good.sum()), content)

    def _address(self, planned: PlannedSteps, row: int) -> tuple[DatasetSource, str, str, int]:
        """Return the dataset of a row of a group, URL and key of its shard, and the row in that."""
        place = self._gatherer.place_of(int(planned.codes[planned.group.order[row]]))
        source = place.source
        return source, source.pool.url_of(place.shard), source.table.key[place.shard], place.row

    def _located(self, error: ShardioError, planned: PlannedSteps, rows: NDArray[np.int64]) -> ShardioError:
        """Return a codec's error, which knows the row of its call, with the address of the record.

        Args:
            error: of the codec.
            planned: the group.
            rows: rows of the group that the codec was given.
        """
        if error.row is None or error.url is not None:
            return error
        _, url, shard, row = self._address(planned, int(rows[error.row]))
        error.row = None
        return error.located(url=url, shard=shard, row=row)

    def _content(self, planned: PlannedSteps, rows: NDArray[np.int64], *payloads: NDArray[Any]) -> Any:
        codec = self._codec
        if isinstance(codec, ImageCodec) and codec.random:
            codec = codec.keyed(lambda row: self._generator(planned, int(rows[row]), "crop"))
        if codec is None:
            return self._raw(planned, rows, kernels.slice_records(*payloads))
        if self._by_value:
            values = codec.decode_many(payloads)
            return self._joined_values(values, planned, rows) if self._joins else values
        columns = codec.decode_batch(payloads)
        return self._joined_columns(columns, planned, rows) if self._joins else columns

    def _raw(self, planned: PlannedSteps, rows: NDArray[np.int64], records: list[bytes]) -> Any:
        """Return the content of rows whose records stay bytes."""
        if self._by_value:
            return self._joined_values(records, planned, rows) if self._joins else records
        return {"payload": records}

    def _joined_values(self, values: list[Any], planned: PlannedSteps, rows: NDArray[np.int64]) -> list[Any]:
        """Return the values of rows of a group with the features that are joined to them."""
        joined = list(values)
        for source, places, positions in self._by_component(planned, rows):
            found = source.add_values([values[place] for place in places.tolist()], positions)
            for place, value in zip(places.tolist(), found, strict=True):
                joined[place] = value
        return joined

    def _joined_columns(
        self, columns: dict[str, Any], planned: PlannedSteps, rows: NDArray[np.int64]
    ) -> dict[str, Any]:
        parts = list(self._by_component(planned, rows))
        if len(self._components) == 1:
            ((source, _, positions),) = parts
            return source.add_columns(columns, positions)
        # Of a mixture each record is looked up where it belongs, and the columns are made of all.
        values = self._joined_values([{} for _ in range(len(rows))], planned, rows)
        first = self._components[0].source
        assert isinstance(first, JoinedSource)  # noqa: S101 - as all are, or none
        return {**columns, **first.columns_of(values)}

    def _by_component(
        self, planned: PlannedSteps, rows: NDArray[np.int64]
    ) -> Iterator[tuple[JoinedSource, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield each joined dataset, which of the rows are its, and their positions in its split."""
        identities = planned.identities
        assert identities is not None  # noqa: S101 - a stream over a join asks for them
        for number, component in enumerate(self._components):
            places = np.flatnonzero(identities.sources[rows] == number)
            if isinstance(component.source, JoinedSource) and (len(places) or len(self._components) == 1):
                yield component.source, places, component.positions(identities.positions[rows[places]])

    def _nothing(self) -> Any:
        """Return the columns of a batch without rows: names, dtypes and trailing shapes as of any other."""
        if self._pattern is None:
            reader = self._components[0].reader
            if self._by_value:
                self._pattern = self._pattern_by_value(reader)
            else:
                self._pattern = reader.read_batch([0])
        return cut(self._pattern, 0, 0)

    def _pattern_by_value(self, reader: DatasetReader) -> Any:
        """Return the columns of the first record that the transform does not drop."""
        options, count = self._options, min(_PATTERN_ROWS, len(reader))
        for position, value in enumerate(reader.read(range(count), on_error="return")):
            if isinstance(value, ShardioError):
                continue
            if options.transform is not None:
                value = options.transform(value)  # noqa: PLW2901
            elif options.random_transform is not None:
                value = options.random_transform(value, record_generator(options.seed, self._epoch, position))  # noqa: PLW2901
            if value is not None:
                return self._collate([value])
        raise TypeError(
            f"a batch is empty and its columns are unknown, because the transform also dropped the first "
            f"{count} records: leave such records out with ds.filter"
        )


def _stacks_by_value(source: DatasetSource) -> bool:
    """Tell whether images or tensors of a batch become one array or a list, as their shapes are."""
    schema = (source.codec and source.codec.schema) or {}
    tensors = any(feature.kind == "tensor" for feature in schema.values())
    joined = isinstance(source, JoinedSource) and _stacks_by_value(source.sides.right.source)
    return tensors or joined or source.options.images is not None


# What a batch looks like depends on its own records alone: not on the steps that were decoded together with
# it, so not on the process that delivers it.


def cut(columns: Any, low: int, high: int) -> Any:
    """Return rows `low .. high - 1` of every column, as views.

    A list of arrays (images of differing sizes) that have one shape in these rows becomes one array.
    """
    if isinstance(columns, dict):
        return {name: cut(column, low, high) for name, column in columns.items()}
    if isinstance(columns, tuple):
        items = [cut(column, low, high) for column in columns]
        return type(columns)(*items) if hasattr(columns, "_fields") else tuple(items)
    part = columns[low:high]
    if isinstance(part, list) and part and isinstance(part[0], np.ndarray) and are_alike(part):
        return np.stack(part)
    return part
