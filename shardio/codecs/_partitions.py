"""Partitions of ragged features: the rows of a record's values, told by other features of the record.

What TensorFlow's `tf.io.RaggedFeature` does with `validate=True`, and each record is checked by itself:
TensorFlow compares totals of the batch alone, so that a record whose partition is too short gives its last
values to the record after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

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


class _Misfit(Exception):  # noqa: N818 - never leaves this file
    """A partition does not fit the values of one item."""

    def __init__(self, item: int, expected: str, found: object) -> None:
        self.item = item
        self.expected = expected
        self.found = found


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
        if steps is not None and steps_of is not None and not isinstance(partition, UniformRowLength):
            _check_steps(name, partition, steps, steps_of[partition.key])
        try:
            if isinstance(partition, UniformRowLength):
                column = _uniform(column, partition.length)
            else:
                column = _by_feature(column, partition, columns[partition.key])
        except _Misfit as misfit:
            row, at = misfit.item, ""
            if steps is not None:
                row = int(np.searchsorted(steps, misfit.item, side="right")) - 1
                at = f", step {misfit.item - int(steps[row])}"
            message = f"feature {name!r}{at}: its values do not fit {_shown(partition)}"
            raise SchemaError(message, row=row, expected=misfit.expected, found=misfit.found) from None
    return column


def _shown(partition: Partition) -> str:
    if isinstance(partition, UniformRowLength):
        return f"UniformRowLength({partition.length})"
    return f"{type(partition).__name__}({partition.key!r})"


def _check_steps(
    name: str, partition: _ByFeature, steps: npt.NDArray[np.int64], others: npt.NDArray[np.int64]
) -> None:
    different = np.flatnonzero(np.diff(steps) != np.diff(others))
    if different.size:
        row = int(different[0])
        message = f"feature lists {name!r} and {partition.key!r} differ in their steps"
        raise SchemaError(
            message,
            row=row,
            expected=f"{steps[row + 1] - steps[row]} steps of {partition.key!r}",
            found=int(others[row + 1] - others[row]),
        )


def _uniform(column: RaggedColumn, length: int) -> RaggedColumn:
    odd = np.flatnonzero(column.lengths % length)
    if odd.size:
        item = int(odd[0])
        raise _Misfit(item, f"a multiple of {length} values", int(column.lengths[item]))
    values = column.values
    if isinstance(values, RaggedColumn):
        values = RaggedColumn(values, np.arange(0, len(values) + 1, length, dtype=np.int64))
    else:
        values = values.reshape(-1, length, *values.shape[1:])
    return RaggedColumn(values, column.offsets // length)


def _by_feature(column: RaggedColumn, partition: Partition, given: RaggedColumn) -> RaggedColumn:
    """Return the rows of all items, grouped by item."""
    counts = column.lengths
    if isinstance(partition, ValueRowIds):
        lengths, offsets = _of_row_ids(counts, given)
    else:
        lengths, offsets = _row_lengths(counts, partition, given)
    inner = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=inner[1:])
    return RaggedColumn(RaggedColumn(column.values, inner), offsets)


def _row_lengths(
    counts: npt.NDArray[np.int64], partition: Partition, given: RaggedColumn
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the length of each row, and the rows of each item as offsets."""
    numbers, offsets = given.values, given.offsets
    owner = np.repeat(np.arange(counts.size), given.lengths)
    first = np.zeros(numbers.size, np.bool_)
    first[offsets[:-1][given.lengths > 0]] = True
    last = np.zeros(numbers.size, np.bool_)
    last[offsets[1:][given.lengths > 0] - 1] = True
    limits = counts[owner]
    # Within these bounds nothing overflows that fits into memory.
    _refuse(owner, (numbers < 0) | (numbers > limits), numbers, limits, "numbers from 0 to {limit}")
    if isinstance(partition, RowLengths):
        sums = np.zeros(numbers.size + 1, np.int64)
        np.cumsum(numbers, out=sums[1:])
        totals = sums[offsets[1:]] - sums[offsets[:-1]]
        wrong = np.flatnonzero(totals != counts)
        if wrong.size:
            item = int(wrong[0])
            raise _Misfit(item, f"lengths of {counts[item]} values together", int(totals[item]))
        return numbers, offsets
    # No number at all tells of no row, which fits no values alone.
    bare = np.flatnonzero((given.lengths == 0) & (counts > 0))
    if bare.size:
        raise _Misfit(int(bare[0]), f"rows of {counts[bare[0]]} values", "none")
    before = np.where(first, 0, np.roll(numbers, 1))
    after = np.where(last, limits, np.roll(numbers, -1))
    _refuse(owner, numbers < before, numbers, limits, "numbers that do not decrease")
    if isinstance(partition, RowStarts):
        _refuse(owner, first & (numbers != 0), numbers, limits, "0 as the first")
        return after - numbers, offsets
    _refuse(owner, last & (numbers != limits), numbers, limits, "{limit} as the last")
    lengths = numbers - before
    if isinstance(partition, RowLimits):
        return lengths, offsets
    _refuse(owner, first & (numbers != 0), numbers, limits, "0 as the first")
    rows = np.zeros_like(offsets)
    np.cumsum(np.maximum(given.lengths - 1, 0), out=rows[1:])
    return lengths[~first], rows


def _of_row_ids(
    counts: npt.NDArray[np.int64], given: RaggedColumn
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    wrong = np.flatnonzero(given.lengths != counts)
    if wrong.size:
        item = int(wrong[0])
        raise _Misfit(item, f"a row number for each of {counts[item]} values", int(given.lengths[item]))
    ids, offsets = given.values, given.offsets
    owner = np.repeat(np.arange(counts.size), counts)
    most = np.full(ids.size, _MAX_ROWS + ids.size - 1)
    _refuse(owner, (ids < 0) | (ids > most), ids, most, "row numbers from 0 to {limit}")
    falls = np.zeros(ids.size, np.bool_)
    falls[1:] = (ids[1:] < ids[:-1]) & (owner[1:] == owner[:-1])
    _refuse(owner, falls, ids, most, "row numbers that do not decrease")
    rows = np.zeros_like(offsets)
    filled = counts > 0
    rows[1:][filled] = ids[offsets[1:][filled] - 1] + 1
    np.cumsum(rows, out=rows)
    beyond = np.flatnonzero(rows > _MAX_ROWS + ids.size)
    if beyond.size:
        expected = f"at most {_MAX_ROWS} empty rows in a call"
        raise _Misfit(int(beyond[0]) - 1, expected, f"{rows[beyond[0]]} rows of {ids.size} values")
    return np.bincount(ids + rows[:-1][owner], minlength=int(rows[-1])).astype(np.int64), rows


def _refuse(
    owner: npt.NDArray[Any],
    wrong: npt.NDArray[Any],
    numbers: npt.NDArray[np.int64],
    limits: npt.NDArray[np.int64],
    expected: str,
) -> None:
    places = np.flatnonzero(wrong)
    if places.size:
        place = int(places[0])
        said = expected.replace("{limit}", str(limits[place]))
        raise _Misfit(int(owner[place]), said, int(numbers[place]))
