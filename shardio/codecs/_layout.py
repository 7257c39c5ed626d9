"""How the values of a schema are in an Example, one or a batch: the rules of docs/encodings.md, both ways.

int64, float32, bytes and text use the lists that Examples have; every other dtype is one bytes value, its
elements little-endian in C order; where more than one size of the shape is unknown the int64 feature
`<name>/shape` is beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from shardio import kernels
from shardio.codecs._columns import ColumnValues, RaggedColumn, collate, each, item_decoder, lacks
from shardio.codecs._direct import direct
from shardio.errors import SchemaError
from shardio.metadata import Feature

# Beyond this NumPy refuses even an empty array.
MOST_ELEMENTS = 1 << 40


class ExampleLayout:
    """One feature of a schema, or one step of a feature list, in an Example.

    Args:
        name: of the feature.
        feature: its type, shape and default.
        listed: whether this is a step of a feature list.
    """

    def __init__(self, name: str, feature: Feature, *, listed: bool = False) -> None:
        self.name = name
        self.feature = feature
        # What a record calls it, which is not always what its readers do.
        self.stored = feature.stored_name or name
        self.key = self.stored.encode()
        self.shape_key = f"{self.stored}/shape".encode() if feature.unknown_dimensions > 1 else None
        self._listed = listed
        self._own = feature.type in ("int64", "float32")
        self._decode = item_decoder(feature)
        self._fixed = not feature.unknown_dimensions
        self._elements = math.prod(size or 1 for size in feature.shape)
        self._direct = direct(feature)
        self._wanted = self._describe()
        self.names = tuple(wanted.name.decode() for wanted in self._wanted)

    def __reduce__(self) -> tuple[Any, ...]:
        # Made again where it arrives: functions that belong to a feature do not travel.
        return partial(type(self), listed=self._listed), (self.name, self.feature)

    def encode(self, value: Any, entries: dict[str, Any]) -> None:
        """Add the value to the entries of an Example as they are stored; SchemaError when it does not fit."""
        take = self._direct.get(type(value))
        stored = None if take is None else take(value)
        if stored is None:
            stored = self.feature.fit(value, self.name)
        if self.shape_key is not None:
            entries[f"{self.stored}/shape"] = np.array(np.shape(stored), np.int64)
        entries[self.stored] = stored if self._own or type(stored) is not np.ndarray else stored.tobytes()

    def wanted(self) -> list[kernels.FeatureRequest]:
        """Return what a kernel must look for."""
        return self._wanted

    def _describe(self) -> list[kernels.FeatureRequest]:
        feature = self.feature
        kind: kernels.Kind = "bytes"
        count: int | None = 1
        if self._own:
            kind = "int64" if feature.type == "int64" else "float"
        if self._own or feature.dtype is None:
            count = self._elements if self._fixed else None
        required = not feature.optional
        stored = feature.stored_default
        default: Any = None
        if stored is not None and count is not None and not self._listed:
            default = (
                stored if isinstance(stored, list) else stored.ravel() if self._own else [stored.tobytes()]
            )
        elif not (required or self._listed or self._own) and self._fixed and feature.dtype is not None:
            # A row of nothing is as long as the others, so that the column is one gather.
            default = [bytes(self._elements * self._dtype().itemsize)]
        asked = [kernels.FeatureRequest(self.key, kind, count, required, default)]
        if self.shape_key is not None:
            # A list of varying length has no default in a kernel: such a row is empty until it is filled.
            there = isinstance(stored, np.ndarray) and not self._own
            sizes = np.shape(np.asarray(stored)) if there else [size or 0 for size in feature.shape]
            default = None if required or self._listed else np.array(sizes, np.int64)
            asked.append(
                kernels.FeatureRequest(self.shape_key, "int64", len(feature.shape), required, default)
            )
        return asked

    def value(self, found: Mapping[str, Any]) -> Any:
        """Return the value of one record from its raw values by name, None where a feature has no kind.

        Raises:
            SchemaError: the record does not fit.
            FormatError: an item is damaged.
        """
        raw: Any = found.get(self.stored)
        if raw is None:
            if self.feature.optional and not self._listed:
                return self._default()
            if not self._listed:
                raise kernels.Mismatch(0, self.key, "missing").error()
            # A step without a kind has no values; it is there.
            raw = [] if not self._own else np.empty(0, self._dtype())
        self._check_raw(self._wanted[0], raw)
        if self.feature.dtype is None:
            items = raw if self._decode is None else each(self.name, self._decode, raw, [0] * len(raw))
            return items if self.feature.shape else items[0]
        if not self._own:
            raw = self._from_bytes(raw[0])
        shape = self._shape(raw.size, found)
        return raw.reshape(shape) if shape else raw[0]

    def _check_raw(self, wanted: kernels.FeatureRequest, raw: Any) -> None:
        kind = "bytes" if isinstance(raw, list) else "int64" if raw.dtype == np.int64 else "float"
        if kind != wanted.kind:
            raise kernels.Mismatch(0, wanted.name, "kind", wanted.kind, kind).error()
        if wanted.count is not None and len(raw) != wanted.count:
            raise kernels.Mismatch(0, wanted.name, "length", wanted.count, len(raw)).error()

    def _from_bytes(self, raw: bytes) -> npt.NDArray[Any]:
        dtype = self._dtype()
        size = self._elements * dtype.itemsize
        if len(raw) != size if self._fixed else len(raw) % dtype.itemsize:
            raise self.wrong_size(len(raw))
        if self.feature.type == "bool" and raw.translate(None, b"\x00\x01"):
            raise self.no_bool(max(raw))
        return np.frombuffer(bytearray(raw), dtype)

    def _shape(self, size: int, found: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the array's shape: the fixed one, the stored one, or one worked out from its size."""
        if self._fixed:
            return tuple(size or 0 for size in self.feature.shape)
        if self.shape_key is None:
            if size % self._elements:
                raise self.wrong_size(size * self._dtype().itemsize if not self._own else size)
            return tuple(size // self._elements if known is None else known for known in self.feature.shape)
        sizes = found.get(self.shape_key.decode())
        if sizes is None:
            raise kernels.Mismatch(0, self.shape_key, "missing").error()
        self._check_raw(self._wanted[1], sizes)
        shape = tuple(sizes.tolist())
        right = all(known in (None, have) for known, have in zip(self.feature.shape, shape, strict=True))
        huge = math.prod(max(1, have) for have in shape) > MOST_ELEMENTS
        if not right or min(shape) < 0 or math.prod(shape) != size or huge:
            raise self.wrong_shape(size, list(shape))
        return shape

    def wrong_size(self, found: int) -> SchemaError:
        """Return the error for a value of so many bytes (numbers, where they have a list of their own)."""
        expected = self.feature.short
        if not self._own:
            size = self._elements * self._dtype().itemsize
            expected += f", {size} bytes" if self._fixed else f", a multiple of {size} bytes"
        return SchemaError(f"feature {self.name!r} has the wrong size", expected=expected, found=found)

    def wrong_shape(self, size: int, found: list[int]) -> SchemaError:
        """Return the error for a stored shape that does not fit the feature or the number of elements."""
        what = f"feature {self.name!r} does not fit the shape stored beside it"
        return SchemaError(what, expected=f"{self.feature.short}, {size} elements", found=f"shape {found}")

    def no_bool(self, found: int) -> SchemaError:
        """Return the error for a byte of a bool that is neither 0 nor 1."""
        return SchemaError(
            f"feature {self.name!r} holds a byte that is not a bool", expected="0 or 1", found=found
        )

    def _default(self) -> Any:
        return self.feature.default

    def _dtype(self) -> np.dtype[Any]:
        dtype = self.feature.dtype
        assert dtype is not None  # noqa: S101 - only asked of numbers
        return dtype


class BatchLayout(ExampleLayout):
    """A layout that reads whole columns.  Errors name the row: of a feature list the step of all steps."""

    def column(self, columns: Mapping[bytes, kernels.Column]) -> ColumnValues:
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
