"""Columns: what a batch of one feature's values becomes, and columns of values of differing size.

The values of a ragged column are one after another, with the offsets at which each row begins and ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from shardio import kernels
from shardio.arguments import integer
from shardio.errors import CorruptRecordError, FormatError, SchemaError
from shardio.metadata import Feature

_MOST_VALUES = np.iinfo(np.int32).max
_NUMBERS = (bool, int, float, np.number, np.bool_)


class VariableLength(NamedTuple):
    """Sequences as the variable-length kernels of attention take them: one after another, without padding.

    A tuple, so `values, cu_seqlens, max_seqlen = column.varlen()` works, and loaders of torch pin and move
    its tensors.

    Attributes:
        values: of all sequences, array or tensor [total, ...].
        cu_seqlens: int32[n + 1]; sequence i is `values[cu_seqlens[i]:cu_seqlens[i + 1]]`.
        max_seqlen: length of the longest one.
    """

    values: Any
    cu_seqlens: Any
    max_seqlen: int

    def to(self, *args: Any, **kwargs: Any) -> VariableLength:
        """Move tensors: arguments are those of `torch.Tensor.to`; a dtype is that of the values."""
        values = self.values.to(*args, **kwargs)
        cu_seqlens = self.cu_seqlens.to(values.device, non_blocking=kwargs.get("non_blocking", False))
        return VariableLength(values, cu_seqlens, self.max_seqlen)


@dataclass(frozen=True, eq=False, slots=True)
class RaggedColumn:
    """Rows of differing length; a sequence of its rows.

    From torch's loaders it comes as a `shardio.torch.RaggedTensor`, which has the same methods and tensors
    inside; `shardio.torch.tensors` makes one of this.

    Attributes:
        values: all rows one after another: an array [total, ...], a list, or a RaggedColumn (steps of steps).
        offsets: int64[n + 1], the first 0; row i is `values[offsets[i]:offsets[i + 1]]`.
        shapes: int64[n, dimensions], where more than the first size differs: then `values` is flat and row i
            has `shapes[i]`; else None.

    Examples:
        >>> column = RaggedColumn(np.array([1, 2, 3]), np.array([0, 2, 2, 3]))
        >>> [row.tolist() for row in column]
        [[1, 2], [], [3]]
        >>> column.pad(multiple=4, value=-1).tolist()
        [[1, 2, -1, -1], [-1, -1, -1, -1], [3, -1, -1, -1]]
        >>> column.varlen()
        VariableLength(values=array([1, 2, 3]), cu_seqlens=array([0, 2, 2, 3], dtype=int32), max_seqlen=2)
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
            raise IndexError(f"row {index} of a column of {len(self)} rows")
        part = self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]
        return part if self.shapes is None else part.reshape(self.shapes[row].tolist())

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    def _rows(self, start: int, stop: int, step: int) -> Self:
        if step != 1:
            raise ValueError(f"a ragged column is sliced in steps of 1, not {step}")
        offsets = self.offsets[start : max(start, stop) + 1]
        values = self.values[int(offsets[0]) : int(offsets[-1])]
        shapes = None if self.shapes is None else self.shapes[start : max(start, stop)]
        return type(self)(values, offsets - offsets[0], shapes)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """int64[n], the lengths of the rows."""
        return self.offsets[1:] - self.offsets[:-1]

    def pad(self, to: int | None = None, *, multiple: int | None = None, value: Any = 0) -> Any:
        """Return the rows as one array [n, width, ...], short ones filled up at their end.

        Args:
            to: the width; by default the length of the longest row.
            multiple: round the width up to a multiple of this.
            value: what fills.

        Raises:
            ValueError: a row is longer than `to` (nothing is cut), or the dtype cannot hold `value`.
            TypeError: the values are text or bytes, or more than the first size of a row differs.

        See also `mask`, which says what is a value and what filling, and `lengths`.
        """
        self._check_flat("padded")
        mask = self.mask(to, multiple=multiple)
        out = self._full((*mask.shape, *self.values.shape[1:]), value)
        out[mask] = self.values
        return out

    def mask(self, to: int | None = None, *, multiple: int | None = None) -> Any:
        """Return bool [n, width]: True where `pad` with the same `to` and `multiple` has a value.

        Raises:
            ValueError: a row is longer than `to`.
        """
        lengths = self._checked_lengths()
        width = self._width(to, multiple)
        return self._arange(width)[None, :] < lengths[:, None]

    def varlen(self) -> VariableLength:
        """Return values, `cu_seqlens` and `max_seqlen` for kernels of attention; the values are not copied.

        On an accelerator, finding the longest row waits for it: take `varlen()` before `to(device)`.

        Raises:
            ValueError: there are 2**31 values or more.
            TypeError: the values are text or bytes, or more than the first size of a row differs.
        """
        self._check_flat("taken as sequences")
        self._checked_lengths()
        if len(self.values) > _MOST_VALUES:
            message = f"{len(self.values)} values are too many for int32 cu_seqlens: take smaller batches"
            raise ValueError(message)
        return VariableLength(self.values, self._int32(self.offsets), self._longest())

    def position_ids(self) -> Any:
        """Return int64 [total]: the place of each value in its row, counted from 0."""
        lengths = self._checked_lengths()
        first = self._repeat(self.offsets[:-1], lengths)
        return self._arange(len(first)) - first

    def segment_ids(self) -> Any:
        """Return int64 [total]: the number of the row that each value belongs to, counted from 1."""
        return self._repeat(self._arange(len(self)) + 1, self._checked_lengths())

    def _longest(self) -> int:
        return int(self.lengths.max()) if len(self) else 0

    def _width(self, to: int | None, multiple: int | None) -> int:
        longest = self._longest()
        if to is None:
            width = longest
        elif (width := integer("to", to)) < longest:
            row = int(self.lengths.argmax())
            raise ValueError(
                f"row {row} has {longest} values, more than to={width}: nothing is cut; give a larger to=, "
                "or leave out what is longer, with filter or when the dataset is written"
            )
        if multiple is None:
            return width
        if (step := integer("multiple", multiple)) < 1:
            raise ValueError(f"multiple={multiple} must be 1 or more")
        return -(-width // step) * step

    def _check_flat(self, what: str) -> None:
        """Refuse rows that are not simply runs of numbers."""
        if self.shapes is not None:
            raise TypeError(f"rows of which more than the first size differs cannot be {what}")
        if isinstance(self.values, list | RaggedColumn):
            found = "lists" if isinstance(self.values, RaggedColumn) else "text or bytes"
            raise TypeError(f"rows of {found} cannot be {what}, only rows of numbers")

    def _checked_lengths(self) -> Any:
        lengths = self.lengths
        if len(self) and int(lengths.min()) < 0:
            row = int(lengths.argmin())
            raise ValueError(
                f"row {row} of this column has a negative length, {int(lengths[row])}: offsets must ascend"
            )
        return lengths

    # What NumPy and torch call differently; `shardio.torch.RaggedTensor` has its own.

    def _arange(self, stop: int) -> Any:
        return np.arange(stop)

    def _repeat(self, values: Any, counts: Any) -> Any:
        return np.repeat(values, counts)

    def _int32(self, values: Any) -> Any:
        return values.astype(np.int32)

    def _full(self, shape: tuple[int, ...], value: Any) -> Any:
        dtype = self.values.dtype
        try:
            with np.errstate(over="ignore"):
                one = np.full((), value, dtype)[()]
            kept = bool(one == value or one != one)  # noqa: PLR0124 - NaN
            kept = kept or (dtype.kind in "fc" and bool(np.isfinite(one)))
        except (OverflowError, ValueError, TypeError):
            kept = False
        if not kept:
            raise ValueError(
                f"value={value!r} does not fit {dtype}: make the values of another dtype first, "
                'RaggedColumn(column.values.astype("int64"), column.offsets)'
            )
        return np.full(shape, value, dtype)

    @classmethod
    def of_rows(
        cls, rows: Sequence[Any], dtype: np.dtype[Any], shape: tuple[int | None, ...] = (None,)
    ) -> Self:
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


ColumnValues: TypeAlias = "npt.NDArray[Any] | list[Any] | RaggedColumn"


def collate(name: str, feature: Feature, values: Sequence[Any]) -> ColumnValues:
    """Bring the values that records hold into the column that `decode_batch` gives.

    Numbers of fixed shape stack to one array [n, *shape]. Those of varying shape become a `RaggedColumn`,
    where a missing value is an empty row. Tensors that are alike stack, too. All else is a list.

    Raises:
        SchemaError: a value of fixed shape is None; an array has no place for that.
    """
    if feature.dtype is None:
        alike = feature.rules.arrays and len(values) and values[0] is not None and are_alike(values)
        return np.stack(values) if alike else list(values)
    if not feature.unknown_dimensions:
        lacking = next((row for row, value in enumerate(values) if value is None), None)
        if lacking is not None:
            raise lacks(name, lacking)
        shape = tuple(size or 0 for size in feature.shape)
        return np.array(values, feature.dtype) if len(values) else np.empty((0, *shape), feature.dtype)
    empty = np.empty(tuple(size or 0 for size in feature.shape), feature.dtype)
    rows = [empty if value is None else value for value in values]
    return RaggedColumn.of_rows(rows, feature.dtype, feature.shape)


def lacks(name: str, row: int) -> SchemaError:
    """Return the error for a record that lacks an optional feature whose column has no place for nothing."""
    advice = (
        'give the feature a default in the schema, e.g. Feature("float32", default=0.0), '
        "or choose the other features with features=[...]"
    )
    return SchemaError(
        f"feature {name!r} is missing in a record, and its column is an array", row=row, advice=advice
    )


def stack_numbers(
    name: str,
    feature: Feature,
    source: Any,
    starts: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
    *,
    in_place: bool = False,
) -> npt.NDArray[Any]:
    """Return the numbers of a fixed shape that lie in a buffer as one array [n, *shape].

    Args:
        name, feature: whose numbers they are.
        source: the buffer.
        starts, stops: half-open ranges of bytes in it, one a row.
        in_place: return a view where they are one after another in a writable array of the caller's.

    Raises:
        SchemaError: a row has another size, or a byte is not a bool.
    """
    dtype, shape = np.dtype(feature.dtype), tuple(size or 0 for size in feature.shape)
    size = math.prod(shape) * dtype.itemsize
    wrong = np.flatnonzero(stops - starts != size)
    if wrong.size:
        row, expected = int(wrong[0]), f"{feature.short}, {size} bytes"
        what, found = f"feature {name!r} has the wrong size", int(stops[row] - starts[row])
        raise SchemaError(what, row=row, expected=expected, found=found)
    own = in_place and isinstance(source, np.ndarray) and source.flags.writeable and source.dtype == np.uint8
    if own and starts.size and not starts[0] and not (np.diff(starts) != size).any():
        out: npt.NDArray[Any] = source[: starts.size * size].reshape(starts.size, size)
    else:
        out = np.empty((starts.size, size), np.uint8)
        kernels.gather_fixed(source, starts, size, out)
    check_bools(name, feature, out, np.arange(starts.size + 1) * size)
    return out.view(dtype).reshape(starts.size, *shape)


def check_bools(
    name: str, feature: Feature, raw: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64]
) -> None:
    """Raise SchemaError where a byte of a feature of bools is neither 0 nor 1; `bounds` are of its rows."""
    if feature.type == "bool" and raw.size and int(raw.max()) > 1:
        row = int(np.searchsorted(bounds, int(np.argmax(raw.ravel() > 1)), "right")) - 1
        what = f"feature {name!r} holds a byte that is not a bool"
        raise SchemaError(what, row=row, expected="0 or 1", found=int(raw.max()))


def each(
    name: str,
    decode: Callable[[bytes], Any],
    items: Sequence[bytes],
    rows: Sequence[int],
    missing: frozenset[int] = frozenset(),
) -> list[Any]:
    """Decode the items of a feature; what is in missing rows becomes None.

    Args:
        name: of the feature, for the error.
        decode: makes a value of an item.
        items: stored bytes.
        rows: for each item the row that it belongs to, for the error.
        missing: rows whose items are not values.

    Raises:
        FormatError, SchemaError: an item is not what the schema says; names the feature and the row within
            the call.
    """
    values: list[Any] = []
    try:
        if missing:
            values.extend(
                None if row in missing else decode(item) for item, row in zip(items, rows, strict=True)
            )
        else:
            values.extend(map(decode, items))
    except (FormatError, SchemaError) as error:
        error.what = f"feature {name!r}: {error.what}"
        raise error.located(row=rows[len(values)]) from error.__cause__
    except (ValueError, RecursionError) as error:
        what = f"feature {name!r} is damaged ({type(error).__name__}: {error})"
        raise CorruptRecordError(
            what, row=rows[len(values)], advice="`shardio verify --decode` lists all such records"
        ) from error
    return values


def stack(values: list[Any]) -> dict[str, Any]:
    """Bring the values that a function returned into columns.

    Arrays of one shape and dtype become one array [n, ...], numbers an array [n], everything else a list.
    What is not a mapping becomes the one column `"value"`.

    Raises:
        ValueError: the values do not have the same names.
    """
    if not values:
        return {}
    if not all(isinstance(value, dict) for value in values):
        return {"value": _column(values)}
    return {name: _column([value[name] for value in values]) for name in common_names(values)}


def common_names(values: Sequence[dict[Any, Any]]) -> Sequence[Any]:
    """Return the names that all values have.

    Raises:
        ValueError: the values do not have the same names.
    """
    names = values[0].keys()
    for value in values:
        if value.keys() != names:
            raise ValueError(
                "a function of records must return the same names for every record: "
                f"{sorted(map(str, names))}, then {sorted(map(str, value))}"
            )
    return list(names)


def _column(values: list[Any]) -> Any:
    if isinstance(values[0], np.ndarray):
        return np.stack(values) if are_alike(values) else values
    if all(isinstance(value, _NUMBERS) for value in values):
        return np.array(values)
    return values


def are_alike(values: Sequence[Any]) -> bool:
    """Tell whether values are arrays of one shape and dtype."""
    shape, dtype = values[0].shape, values[0].dtype
    return all(
        isinstance(value, np.ndarray) and value.shape == shape and value.dtype == dtype for value in values
    )
