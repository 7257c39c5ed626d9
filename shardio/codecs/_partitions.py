"""Partitions of ragged features: the rows of a record's values, told by other features of the record.

What TensorFlow's `tf.io.RaggedFeature` does with `validate=True`, and each record is checked by itself:
TensorFlow compares totals of the batch alone, so that a record whose partition is too short gives its last
values to the record after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shardio.codecs._columns import RaggedColumn
from shardio.errors import SchemaError

# Empty rows that one call may hold: a small record can claim any number of them by one row number.
_MAX_ROWS = 1 << 24


@dataclass(frozen=True, slots=True)
class _ByFeature:
    """A partition that is an int64 feature of the record.

    Attributes:
        key: the name of that feature.
    """

    key: str

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not self.key:
            raise ValueError(f"{type(self).__name__}: key {self.key!r}; it is the name of an int64 feature")


class RowSplits(_ByFeature):
    """Row i is `[splits[i], splits[i + 1])`; the first is 0 and the last the number of values."""


class RowLengths(_ByFeature):
    """Row i has `lengths[i]` values."""


class RowStarts(_ByFeature):
    """Row i begins at `starts[i]`, the first at 0, and ends where the next begins."""


class RowLimits(_ByFeature):
    """Row i ends before `limits[i]`, the last at the number of values; the next row begins there."""


class ValueRowIds(_ByFeature):
    """Value i is in row `ids[i]`; they do not decrease, and rows that are passed over are empty."""


@dataclass(frozen=True, slots=True)
class UniformRowLength:
    """All rows have the same number of values.

    Attributes:
        length: that number, at least 1.
    """

    length: int

    def __post_init__(self) -> None:
        """Refuse lengths that tell nothing of the number of rows."""
        if isinstance(self.length, bool) or not isinstance(self.length, int) or self.length < 1:
            raise ValueError(f"UniformRowLength: length {self.length!r}; it is an int of at least 1")


Partition: TypeAlias = RowSplits | RowLengths | RowStarts | RowLimits | ValueRowIds | UniformRowLength


def partitioned(
    name: str,
    column: RaggedColumn,
    partitions: Sequence[Partition],
    columns: Mapping[str, RaggedColumn],
    steps: npt.NDArray[np.int64] | None = None,
    steps_of: Mapping[str, npt.NDArray[np.int64]] | None = None,
) -> RaggedColumn:
    """Cut the values of each item into rows, of several levels where there are several partitions.

    Args:
        name: of the feature, for errors.
        column: the values of n items: records, or all steps of a feature list.
        partitions: from the outermost level to the innermost.
        columns: the features that partitions name, n items each.
        steps: of a feature list int64[records + 1], the steps of each record.
        steps_of: the same of each feature list that a partition names.

    Raises:
        SchemaError: a partition does not fit its values; `row` is the record's number.
    """
    for partition in reversed(partitions):
        if isinstance(partition, UniformRowLength):
            wrong = np.flatnonzero(column.lengths % partition.length)
            if wrong.size:
                count, expected = int(column.lengths[wrong[0]]), f"a multiple of {partition.length} values"
                raise _misfit(name, partition, int(wrong[0]), steps, expected, count)
            column = _uniform(column, partition.length)
            continue
        if steps is not None and steps_of is not None:
            _check_steps(name, partition, steps, steps_of[partition.key])
        rows: list[npt.NDArray[np.int64]] = []
        total = 0
        for item, (count, numbers) in enumerate(
            zip(column.lengths.tolist(), columns[partition.key], strict=True)
        ):
            lengths = _row_lengths(partition, numbers, count)
            total += len(numbers) if lengths is None else len(lengths)
            if lengths is None or total > _MAX_ROWS + len(column.values):
                expected = f"rows of {count} values together, and at most {_MAX_ROWS} empty ones in a call"
                raise _misfit(name, partition, item, steps, expected, f"{numbers[:8].tolist()}")
            rows.append(lengths)
        inner, outer = (
            _offsets(np.concatenate([np.zeros(0, np.int64), *rows])),
            _offsets(list(map(len, rows))),
        )
        column = RaggedColumn(RaggedColumn(column.values, inner), outer)
    return column


def _offsets(lengths: npt.ArrayLike) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def _misfit(
    name: str,
    partition: Partition,
    item: int,
    steps: npt.NDArray[np.int64] | None,
    expected: str,
    found: object,
) -> SchemaError:
    row, at = item, ""
    if steps is not None:
        row = int(np.searchsorted(steps, item, side="right")) - 1
        at = f", step {item - int(steps[row])}"
    kind = type(partition).__name__
    what = f"feature {name!r}{at}: its values do not fit {kind}({getattr(partition, 'key', None)!r})"
    if isinstance(partition, UniformRowLength):
        what = f"feature {name!r}{at}: its values do not fit {kind}({partition.length})"
    return SchemaError(what, row=row, expected=expected, found=found)


def _check_steps(
    name: str, partition: _ByFeature, steps: npt.NDArray[np.int64], others: npt.NDArray[np.int64]
) -> None:
    different = np.flatnonzero(np.diff(steps) != np.diff(others))
    if different.size:
        row = int(different[0])
        raise SchemaError(
            f"feature lists {name!r} and {partition.key!r} differ in their steps",
            row=row,
            expected=f"{steps[row + 1] - steps[row]} steps of {partition.key!r}",
            found=int(others[row + 1] - others[row]),
        )


def _uniform(column: RaggedColumn, length: int) -> RaggedColumn:
    values = column.values
    if isinstance(values, RaggedColumn):
        values = RaggedColumn(values, np.arange(0, len(values) + 1, length, dtype=np.int64))
    else:
        values = values.reshape(-1, length, *values.shape[1:])
    return RaggedColumn(values, column.offsets // length)


def _row_lengths(
    partition: _ByFeature, numbers: npt.NDArray[np.int64], count: int
) -> npt.NDArray[np.int64] | None:
    """Return the lengths of the rows of an item with `count` values; None where they do not fit."""
    most = _MAX_ROWS + count if isinstance(partition, ValueRowIds) else count
    # Within these bounds nothing overflows that fits into memory.
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) <= most:
        return None
    if isinstance(partition, RowLengths):
        return numbers if int(numbers.sum()) == count else None
    if isinstance(partition, ValueRowIds):
        ascending = len(numbers) == count and not (np.diff(numbers) < 0).any()
        return np.bincount(numbers).astype(np.int64) if ascending else None
    first, last = [0] * isinstance(partition, RowLimits), [count] * isinstance(partition, RowStarts)
    edges = np.concatenate([first, numbers, last]).astype(np.int64)
    if not len(edges):
        return edges if not count else None
    lengths = np.diff(edges)
    fits = edges[0] == 0 and edges[-1] == count and not (lengths < 0).any()
    return lengths if fits else None
