"""Batches of Examples: from the kernel's columns to the columns and values of a schema."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio import kernels
from shardio.codecs._collate import collate, each, lacks
from shardio.codecs._columns import Column, RaggedColumn
from shardio.codecs._layout import MOST_ELEMENTS, ExampleLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from shardio.errors import SchemaError

__all__ = ["BatchLayout"]


class BatchLayout(ExampleLayout):
    """A layout that reads whole columns.  Errors name the row: of a feature list the step of all steps."""

    def column(self, columns: Mapping[bytes, kernels.Column]) -> Column:
        """Return the feature's column of a batch; of a feature list, of all its steps."""
        column = columns[self.key]
        nothing = self._rows_of_nothing(column)
        if self.feature.dtype is None:
            return collate(self.name, self.feature, self.rows(columns))
        if self._fixed:
            if nothing and not self.feature.has_default:
                raise lacks(self.name, nothing[0])
            return self._stack(column)
        ragged = self._ragged(columns)
        if nothing and self._own and self.feature.has_default:
            rows = list(ragged)
            for row in nothing:
                rows[row] = self.feature.default
            return collate(self.name, self.feature, rows)
        return ragged

    def rows(self, columns: Mapping[bytes, kernels.Column]) -> list[Any]:
        """Return the feature's values record by record (step by step), each one independent of the others."""
        column = columns[self.key]
        if self.feature.dtype is None:
            values = self._item_rows(column)
        elif self._fixed:
            stacked = self._stack(column)
            values = list(stacked) if not self.feature.shape else [row.copy() for row in stacked]
        else:
            values = [row.copy() for row in self._ragged(columns)]
        for row in self._rows_of_nothing(column):
            values[row] = self._default()
        return values

    def _rows_of_nothing(self, column: kernels.Column) -> list[int]:
        """Return the records that lack the feature; a step of a feature list is always there."""
        if self._listed or not self.feature.optional or bool(column.present.all()):
            return []
        return np.flatnonzero(~column.present).tolist()

    def _item_rows(self, column: kernels.Column) -> list[Any]:
        """Return the value of every row, a list of values where there is a dimension."""
        starts, stops = _spans(column)
        items: list[Any] = kernels.slice_records(column.source, starts.ravel(), stops.ravel())
        bounds = self._bounds(column)
        if self._decode is not None:
            lengths = np.diff(bounds)
            rows = np.repeat(np.arange(lengths.size), lengths).tolist()
            items = each(self.name, self._decode, items, rows, frozenset(self._rows_of_nothing(column)))
        if not self.feature.shape:
            return items
        places = bounds.tolist()
        return [items[start:stop] for start, stop in pairwise(places)]

    def _bounds(self, column: kernels.Column) -> npt.NDArray[np.int64]:
        """Return where the values of each row begin and end."""
        if column.offsets is not None:
            return column.offsets
        starts, _ = _spans(column)
        return np.arange(len(starts) + 1, dtype=np.int64) * self._elements

    def _stack(self, column: kernels.Column) -> npt.NDArray[Any]:
        """Return numbers of fixed shape as one array [n, *shape] of its own memory."""
        shape = tuple(size or 0 for size in self.feature.shape)
        if self._own:
            values = column.values
            assert values is not None  # noqa: S101 - the kernel was asked for numbers
            return values.reshape(len(values), *shape)
        dtype = self._dtype()
        size = self._elements * dtype.itemsize
        starts, stops = (side.ravel() for side in _spans(column))
        _raise_first(stops - starts != size, lambda row: self.wrong_size(int(stops[row] - starts[row])))
        out = np.empty((starts.size, size), np.uint8)
        kernels.gather_fixed(column.source, starts, size, out)
        self._check_bools(out, np.arange(starts.size + 1) * size)
        return out.view(dtype).reshape(starts.size, *shape)

    def _ragged(self, columns: Mapping[bytes, kernels.Column]) -> RaggedColumn:
        column = columns[self.key]
        if self._own:
            assert column.values is not None  # noqa: S101 - the kernel was asked for numbers
            assert column.offsets is not None  # noqa: S101 - of a varying count
            values, offsets = column.values, column.offsets
        else:
            values, offsets = self._gathered(column)
        counts = np.diff(offsets)
        if self.shape_key is not None:
            sizes = columns[self.shape_key].values
            assert sizes is not None  # noqa: S101 - the kernel was asked for int64
            self._check_shapes(sizes, counts)
            return RaggedColumn(values, offsets, sizes)
        item = 1 if self._own else self._dtype().itemsize
        _raise_first(counts % self._elements != 0, lambda row: self.wrong_size(int(counts[row]) * item))
        shape = self.feature.shape
        if shape[0] is None:
            return RaggedColumn(
                values.reshape(-1, *[size or 0 for size in shape[1:]]), offsets // self._elements
            )
        sizes = np.array([[size or 0 for size in shape]], np.int64).repeat(counts.size, axis=0)
        sizes[:, shape.index(None)] = counts // self._elements
        return RaggedColumn(values, offsets, sizes)

    def _gathered(self, column: kernels.Column) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        dtype = self._dtype()
        starts, stops = (side.ravel() for side in _spans(column))
        wrong = (stops - starts) % dtype.itemsize != 0
        _raise_first(wrong, lambda row: self.wrong_size(int(stops[row] - starts[row])))
        raw, offsets = kernels.gather(column.source, starts, stops)
        self._check_bools(raw, offsets)
        return raw.view(dtype), offsets // dtype.itemsize

    def _check_shapes(self, sizes: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
        wrong = (sizes < 0).any(axis=1)
        for place, size in enumerate(self.feature.shape):
            if size is not None:
                wrong |= sizes[:, place] != size
        # In floats, which do not wrap round.
        wrong |= np.prod(sizes, axis=1, dtype=np.float64) != counts
        wrong |= np.prod(np.maximum(sizes, 1), axis=1, dtype=np.float64) > MOST_ELEMENTS
        _raise_first(wrong, lambda row: self.wrong_shape(int(counts[row]), sizes[row].tolist()))

    def _check_bools(self, raw: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64]) -> None:
        if self.feature.type == "bool" and raw.size and int(raw.max()) > 1:
            error = self.no_bool(int(raw.max()))
            error.row = int(np.searchsorted(bounds, int(np.argmax(raw.ravel() > 1)), "right")) - 1
            raise error


def _raise_first(wrong: npt.NDArray[np.bool_], make: Callable[[int], SchemaError]) -> None:
    if bool(wrong.any()):
        row = int(np.argmax(wrong))
        error = make(row)
        error.row = row
        raise error


def _spans(column: kernels.Column) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    assert column.starts is not None  # noqa: S101 - a column of bytes has spans
    assert column.stops is not None  # noqa: S101
    return column.starts, column.stops
