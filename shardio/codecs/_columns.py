"""Columns of values of differing size: values one after another, and where each row begins and ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

__all__ = ["Column", "RaggedColumn", "VarLenColumn"]


@dataclass(frozen=True, eq=False, slots=True)
class RaggedColumn:
    """Rows of differing length; a sequence of its rows.

    Attributes:
        values: all rows one after another: an array [total, ...], a list, or a RaggedColumn (steps of steps).
        offsets: int64[n + 1], the first 0; row i is `values[offsets[i]:offsets[i + 1]]`.
        shapes: int64[n, dimensions], where more than the first size differs: then `values` is flat and row i
            has `shapes[i]`; else None.

    Examples:
        >>> column = RaggedColumn(np.array([1, 2, 3]), np.array([0, 2, 2, 3]))
        >>> [row.tolist() for row in column]
        [[1, 2], [], [3]]
    """

    values: Any
    offsets: npt.NDArray[np.int64]
    shapes: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int | slice) -> Any:
        """Return row `index` as a view (a list where values are a list), or the rows of a slice of step 1."""
        if isinstance(index, slice):
            return self._rows(*index.indices(len(self)))
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            message = f"row {index} of a column of {len(self)} rows"
            raise IndexError(message)
        part = self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]
        return part if self.shapes is None else part.reshape(self.shapes[row].tolist())

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    def _rows(self, start: int, stop: int, step: int) -> RaggedColumn:
        if step != 1:
            message = f"a ragged column is sliced in steps of 1, not {step}"
            raise ValueError(message)
        offsets = self.offsets[start : max(start, stop) + 1]
        values = self.values[int(offsets[0]) : int(offsets[-1])]
        shapes = None if self.shapes is None else self.shapes[start : max(start, stop)]
        return RaggedColumn(values, offsets - offsets[0], shapes)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """int64[n], the lengths of the rows."""
        return np.diff(self.offsets)

    @classmethod
    def of_rows(
        cls, rows: Sequence[Any], dtype: np.dtype[Any], shape: tuple[int | None, ...]
    ) -> RaggedColumn:
        """Lay arrays of one dtype, whose shapes fit `shape`, one after another."""
        leading = shape[0] is None and shape.count(None) == 1
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) if leading else row.size for row in rows], out=offsets[1:])
        inner = tuple(size or 0 for size in shape[1:]) if leading else ()
        flat = [np.asarray(row, dtype).reshape(-1, *inner) for row in rows]
        values = np.concatenate(flat) if flat else np.empty((0, *inner), dtype)
        if leading:
            return cls(values, offsets)
        return cls(values, offsets, np.array([row.shape for row in rows], np.int64).reshape(-1, len(shape)))


@dataclass(frozen=True, eq=False, slots=True)
class VarLenColumn:
    """A sparse column, as `tf.io.VarLenFeature` and `tf.io.SparseFeature` give it.

    Attributes:
        values: the values of all rows: int64, float32, or an object array of bytes.
        indices: int64[k, 2] (row, place); of feature lists int64[k, 3] (row, step, place); of `Sparse` (row,
            then a place for each dimension).
        shape: int64[2] or int64[3]: rows, most steps, most values; of `Sparse` rows and its sizes.
    """

    values: npt.NDArray[Any]
    indices: npt.NDArray[np.int64]
    shape: npt.NDArray[np.int64]


Column: TypeAlias = "npt.NDArray[Any] | list[Any] | RaggedColumn"
