"""From windows to batches: gather the payloads of several steps, decode them together, cut them by step.

The unit of work is a stride of steps, so that what Python and NumPy cost is paid once for many records;
payloads of one length become one strided view, Examples are parsed straight into columns.  What fails, fails
at its own step: the batches before it are delivered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardio import kernels
from shardio.order import record_generator
from shardio.reader import is_damage
from shardio.streaming._columns import cut, stack
from shardio.streaming._gather import address, locate, located
from shardio.streaming._planned import Batch, Made

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shardio.reader import Damage
    from shardio.streaming._members import Member
    from shardio.streaming._options import StreamOptions
    from shardio.streaming._planned import Planned
    from shardio.streaming._windows import WindowData

__all__ = ["Maker"]


class _Decoded(NamedTuple):
    """Rows of a stride without those that are skipped.

    Attributes:
        data: the windows.
        kept: numbers of these rows in the stride; None for all of them.
        rows: how many they are.
        content: columns; or the list of values where a transform is to see each.
    """

    data: list[WindowData]
    kept: NDArray[np.int64] | None
    rows: int
    content: Any


class Maker:
    """Makes the batches of strides; one for all threads of a pass.

    Args:
        members: the datasets.
        options: of the stream.
        epoch: the stream's, which keys `random_transform` together with seed and position.
        damage: what to do about it.
        template: plans a step of a few records: the pattern of a batch without rows.
        finish: is called with each batch at last, in the thread that made it.
    """

    def __init__(
        self,
        members: Sequence[Member],
        options: StreamOptions,
        *,
        epoch: int,
        damage: Damage,
        template: Callable[[], Planned],
        finish: Callable[[Any], Any] | None = None,
    ) -> None:
        self._mixed = len(members) > 1
        self._options = options
        self._epoch = epoch
        self._damage = damage
        self._template = template
        self._finish = finish
        source = members[0].source
        self._codec = source.codec
        self._transforms = options.transform is not None or options.random_transform is not None
        # Where the schema alone does not say what a batch of no rows looks like.
        self._patterned = self._transforms or source.options.decode == "image"
        self._pattern: dict[str, Any] | None = None

    def make(self, planned: Planned) -> Made:
        """Wait for the windows of a stride and return its batches, in order."""
        try:
            decoded = self._decode(planned)
        except Exception as error:  # noqa: BLE001 - it is delivered at its step
            if len(planned.stride.steps) == 1:
                return Made([], error)
            batches: list[Batch] = []
            for k in range(len(planned.stride.steps)):
                one = self.make(planned.single(k))
                batches += one.batches
                if one.error is not None:
                    return Made(batches, one.error)
            return Made(batches, None)
        return self._deliver(planned, decoded)

    def _deliver(self, planned: Planned, decoded: _Decoded) -> Made:
        stride = planned.stride
        edges = stride.edges if decoded.kept is None else np.searchsorted(decoded.kept, stride.edges)
        bounds, wanted = edges.tolist(), np.diff(stride.edges).tolist()
        batches: list[Batch] = []
        for k, step in enumerate(stride.steps):
            low, high = bounds[k], bounds[k + 1]
            try:
                if high - low < wanted[k]:
                    self._damage.count(wanted[k] - high + low)
                columns = self._columns(planned, decoded, low, high)
                self._extend(columns, planned, decoded, k, low, high)
                transform = self._options.batch_transform
                batch = columns if transform is None else transform(columns)
                batches.append(Batch(step, batch if self._finish is None else self._finish(batch)))
            except Exception as error:  # noqa: BLE001 - it is delivered after the batches before it
                return Made(batches, error)
        return Made(batches, None)

    def _columns(self, planned: Planned, decoded: _Decoded, low: int, high: int) -> dict[str, Any]:
        """Return the columns of one step, from rows `low .. high - 1` of what was decoded."""
        if low == high and self._patterned:
            return self._nothing()
        if self._transforms:
            columns = stack(self._transformed(planned, decoded, low, high))
        elif low == 0 and high == decoded.rows:
            columns = decoded.content
        else:
            columns = cut(decoded.content, low, high)
        if self._patterned and self._pattern is None:
            self._pattern = cut(columns, 0, 0)
        return columns

    def _extend(
        self, columns: dict[str, Any], planned: Planned, decoded: _Decoded, k: int, low: int, high: int
    ) -> None:
        """Add the columns that were asked for beside those of the records."""
        if not (self._options.positions or self._options.valid):
            return
        rows = _rows(decoded, low, high)
        if planned.records is not None and self._options.positions:
            columns["_position"] = planned.records.positions[rows]
            if self._mixed:
                columns["_source"] = planned.records.sources[rows]
        if self._options.valid:
            columns["_valid"] = rows - planned.stride.edges[k] < planned.stride.valid[k]

    def _transformed(self, planned: Planned, decoded: _Decoded, low: int, high: int) -> list[Any]:
        options, given = self._options, decoded.content[low:high]
        values: list[Any] = []
        try:
            if options.transform is not None:
                for value in given:
                    values.append(options.transform(value))  # noqa: PERF401 - their number says which one failed
                return values
            assert options.random_transform is not None  # noqa: S101 - for the type checker
            assert planned.records is not None  # noqa: S101 - a stream with a random transform asks for them
            # Keyed by the record, not by who delivers it; a dataset that began again is another cycle of its
            # own.
            rows = _rows(decoded, low, high)
            who = zip(*(column[rows].tolist() for column in planned.records), strict=True)
            for value, (position, source, cycle) in zip(given, who, strict=True):
                rng = record_generator(options.seed, self._epoch, position, source=source, cycle=cycle)
                values.append(options.random_transform(value, rng))
        except Exception as error:
            number = int(_rows(decoded, low, high)[len(values)])
            url, shard, row = address(planned, decoded.data, number)
            error.add_note(f"in a transform, for row {row} of shard {shard} ({url})")
            raise
        return values

    def _decode(self, planned: Planned) -> _Decoded:
        """Gather and decode all rows of a stride together.

        Raises:
            FormatError, SchemaError, StorageError: with the address of the record, where it is not to be
                skipped.
        """
        data = [window.result() for window in planned.windows]
        buffers, table = locate(planned.draw, data)
        table = table[:, planned.stride.turn]
        kept = None
        if not (table[0] >= 0).all():
            kept = np.flatnonzero(table[0] >= 0)
            table = table[:, kept]
        values, offsets = kernels.gather_from(buffers, *table)
        try:
            return _Decoded(data, kept, table.shape[1], self._content(values, offsets[:-1], offsets[1:]))
        except Exception as error:
            if not is_damage(error):
                raise
            rows = np.arange(table.shape[1]) if kept is None else kept
            if not self._damage.skips:
                found = located(error, planned, data, rows)
                raise found from found.__cause__
        return self._sift(planned, data, rows, values, offsets)

    def _sift(
        self,
        planned: Planned,
        data: list[WindowData],
        rows: NDArray[np.int64],
        values: NDArray[np.uint8],
        offsets: NDArray[np.int64],
    ) -> _Decoded:
        """Find, one by one, the records that cannot be decoded, and leave them out."""
        good = np.ones(len(rows), bool)
        for k in range(len(rows)):
            try:
                self._content(values, offsets[k : k + 1], offsets[k + 1 : k + 2])
            except Exception as error:
                if not is_damage(error):
                    raise
                found = located(error, planned, data, rows[k : k + 1])
                self._damage.note(found, found.shard or "", np.array([found.row or 0]))
                good[k] = False
        content = self._content(values, offsets[:-1][good], offsets[1:][good])
        return _Decoded(data, rows[good], int(good.sum()), content)

    def _content(self, *payloads: NDArray[Any]) -> Any:
        codec = self._codec
        if self._transforms:
            return kernels.slice_records(*payloads) if codec is None else codec.decode_many(payloads)
        return (
            {"payload": kernels.slice_records(*payloads)} if codec is None else codec.decode_batch(payloads)
        )

    def _nothing(self) -> dict[str, Any]:
        """Return the columns of a batch without rows: names, dtypes and trailing shapes as of any other."""
        if self._pattern is None:
            planned = self._template()
            decoded = self._decode(planned)
            if decoded.rows:
                self._columns(planned, decoded, 0, 1)
        return dict(self._pattern or {})


def _rows(decoded: _Decoded, low: int, high: int) -> NDArray[np.int64]:
    """Return the numbers in their stride of rows `low .. high - 1` of what was decoded."""
    return np.arange(low, high) if decoded.kept is None else decoded.kept[low:high]
