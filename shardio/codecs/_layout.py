"""How the values of a schema are in an Example, one or a batch: the rules of docs/encodings.md, both ways.

int64, float32, bytes and text use the lists that Examples have; every other dtype is one bytes value, its
elements little-endian in C order; where more than one size of the shape is unknown the int64 feature
`<name>/shape` is beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from shardio import kernels
from shardio.codecs._columns import (
    ColumnValues,
    RaggedColumn,
    check_bools,
    collate,
    each,
    lacks,
    stack_numbers,
)
from shardio.codecs._direct import direct
from shardio.codecs._example import value_of
from shardio.errors import SchemaError
from shardio.metadata import Feature, shape_fits

# Beyond this NumPy refuses even an empty array.
MOST_ELEMENTS = 1 << 40


class ExampleLayout:
    """One feature of a schema, or one step of a feature list, in an Example.

    Errors of columns name the row: of a feature list the step of all steps.

    Args:
        name: of the feature.
        feature: its type, shape and default.
        listed: whether this is a step of a feature list.

    Attributes:
        wanted: what a kernel must look for.
        names: of the entries of an Example that hold the feature.
    """

    def __init__(self, name: str, feature: Feature, *, listed: bool = False) -> None:
        self.name = name
        self.feature = feature
        # What a record calls it, which is not always what its readers do.
        self.stored = feature.stored_name or name
        self.key = self.stored.encode()
        self.shape_key = f"{self.stored}/shape".encode() if feature.unknown_dimensions > 1 else None
        self._listed = listed
        self._own = feature.rules.example != "bytes"
        self._decode = feature.rules.decode
        self._fixed = not feature.unknown_dimensions
        self._elements = math.prod(size or 1 for size in feature.shape)
        self._dtype = cast("np.dtype[Any]", feature.dtype)  # asked only of numbers
        self._sizes = tuple(size or 0 for size in feature.shape)
        self._direct = direct(feature)
        self.wanted = self._requests()
        self.names = tuple(wanted.name.decode() for wanted in self.wanted)

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

    def _requests(self) -> list[kernels.FeatureRequest]:
        feature = self.feature
        kind: kernels.Kind = feature.rules.example
        count: int | None = 1
        if self._own or feature.dtype is None:
            count = self._elements if self._fixed else None
        required = not feature.optional
        stored: Any = feature.stored_default
        default: Any = None
        if stored is not None and count is not None and not self._listed:
            default = (
                stored if isinstance(stored, list) else stored.ravel() if self._own else [stored.tobytes()]
            )
        elif not (required or self._listed or self._own) and self._fixed and feature.dtype is not None:
            # A row of nothing is as long as the others, so that the column is one gather.
            default = [bytes(self._elements * self._dtype.itemsize)]
        asked = [kernels.FeatureRequest(self.key, kind, count, required, default)]
        if self.shape_key is not None:
            # A list of varying length has no default in a kernel: such a row is empty until it is filled.
            sizes = np.shape(stored) if stored is not None and not self._own else self._sizes
            default = None if required or self._listed else np.array(sizes, np.int64)
            asked.append(
                kernels.FeatureRequest(self.shape_key, "int64", len(feature.shape), required, default)
            )
        return asked

    def value(self, entries: Any) -> Any:
        """Return the value of one record from the map of its features, where all is as it should be.

        A column of one record costs several times as much.

        Raises:
            ValueError, AttributeError, ShardioError: it is not; columns say where, and what.
        """
        found: Any = value_of(entries[self.stored]) if self.stored in entries else None
        if found is None and self.feature.optional:
            return self.feature.default
        if self.feature.dtype is None:
            if type(found) is not list or self.wanted[0].count not in (None, len(found)):
                raise ValueError(self.name)
            items = found if self._decode is None else list(map(self._decode, found))
            return items if self.feature.shape else items[0]
        if not self._own:
            (raw,) = found
            if type(raw) is not bytes or (self.feature.type == "bool" and raw.translate(None, b"\x00\x01")):
                raise ValueError(self.name)
            found = np.frombuffer(bytearray(raw), self._dtype)
        shape: Any = [-1 if size is None else size for size in self.feature.shape]
        if self.shape_key is not None:
            sizes: Any = value_of(entries[self.names[1]]) if self.names[1] in entries else None
            shape = sizes.tolist()
            if sizes.dtype != np.int64 or not shape_fits(self.feature.shape, shape) or min(shape) < 1:
                raise ValueError(self.name)
        if found.dtype != self._dtype:
            raise ValueError(self.name)
        return found.reshape(shape)[()]

    def column(self, columns: Mapping[bytes, kernels.Column]) -> ColumnValues:
        """Return the feature's column of a batch; of a feature list, of all its steps."""
        column = columns[self.key]
        missing = self._missing_rows(column)
        if self.feature.dtype is None:
            return collate(self.name, self.feature, self.rows(columns))
        if self._fixed:
            if missing and not self.feature.has_default:
                raise lacks(self.name, missing[0])
            return self._stack(column)
        ragged = self._ragged(columns)
        if missing and self._own and self.feature.has_default:
            rows = list(ragged)
            for row in missing:
                rows[row] = self.feature.default
            return collate(self.name, self.feature, rows)
        return ragged

    def rows(self, columns: Mapping[bytes, kernels.Column]) -> list[Any]:
        """Return the feature's values record by record (step by step), each one independent of the others."""
        column = columns[self.key]
        if self.feature.dtype is None:
            values = self._item_rows(column)
        elif not self.feature.shape:
            values = list(self._stack(column))
        else:
            values = [row.copy() for row in (self._stack(column) if self._fixed else self._ragged(columns))]
        for row in self._missing_rows(column):
            values[row] = self.feature.default
        return values

    def _missing_rows(self, column: kernels.Column) -> list[int]:
        """Return the records that lack the feature; a step of a feature list is always there."""
        if self._listed or not self.feature.optional or bool(column.present.all()):
            return []
        return np.flatnonzero(~column.present).tolist()

    def _item_rows(self, column: kernels.Column) -> list[Any]:
        """Return the value of every row, a list of values where there is a dimension."""
        starts, stops = _spans(column)
        items: list[Any] = kernels.slice_records(column.source, starts, stops)
        bounds = column.offsets
        if bounds is None:
            bounds = np.arange(0, len(items) + 1, self._elements, dtype=np.int64)
        if self._decode is not None:
            rows = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds)).tolist()
            items = each(self.name, self._decode, items, rows, frozenset(self._missing_rows(column)))
        if not self.feature.shape:
            return items
        return [items[start:stop] for start, stop in pairwise(bounds.tolist())]

    def _stack(self, column: kernels.Column) -> npt.NDArray[Any]:
        """Return numbers of fixed shape as one array [n, *shape] of its own memory."""
        if self._own:
            values = cast("npt.NDArray[Any]", column.values)
            return values.reshape(len(values), *self._sizes)
        return stack_numbers(self.name, self.feature, column.source, *_spans(column))

    def _ragged(self, columns: Mapping[bytes, kernels.Column]) -> RaggedColumn:
        column, item = columns[self.key], 1 if self._own else self._dtype.itemsize
        values, offsets = cast("Any", column.values), cast("Any", column.offsets)
        if not self._own:
            starts, stops = _spans(column)
            self._refuse_size((stops - starts) % item != 0, stops - starts)
            raw, offsets = kernels.gather(column.source, starts, stops)
            check_bools(self.name, self.feature, raw, offsets)
            values, offsets = raw.view(self._dtype), offsets // item
        counts = np.diff(offsets)
        if self.shape_key is not None:
            sizes = cast("npt.NDArray[np.int64]", columns[self.shape_key].values)
            self._check_shapes(sizes, counts)
            return RaggedColumn(values, offsets, sizes)
        self._refuse_size(counts % self._elements != 0, counts * item)
        if self.feature.shape[0] is None:
            return RaggedColumn(values.reshape(-1, *self._sizes[1:]), offsets // self._elements)
        sizes = np.array([self._sizes], np.int64).repeat(counts.size, axis=0)
        sizes[:, self.feature.shape.index(None)] = counts // self._elements
        return RaggedColumn(values, offsets, sizes)

    def _refuse_size(self, wrong: npt.NDArray[np.bool_], sizes: npt.NDArray[np.int64]) -> None:
        """Refuse values of the wrong number of bytes; of numbers, where they have a list of their own."""
        if wrong.any():
            row = int(np.argmax(wrong))
            item = self._elements * self._dtype.itemsize
            more = "" if self._own else f", a multiple of {item} bytes"
            what = f"feature {self.name!r} has the wrong size"
            raise SchemaError(what, row=row, expected=self.feature.short + more, found=int(sizes[row]))

    def _check_shapes(self, sizes: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
        wrong = (sizes < 0).any(axis=1)
        for place, size in enumerate(self.feature.shape):
            if size is not None:
                wrong |= sizes[:, place] != size
        # In floats, which do not wrap round.
        wrong |= np.prod(sizes, axis=1, dtype=np.float64) != counts
        wrong |= np.prod(np.maximum(sizes, 1), axis=1, dtype=np.float64) > MOST_ELEMENTS
        if wrong.any():
            row = int(np.argmax(wrong))
            raise SchemaError(
                f"feature {self.name!r} does not fit the shape stored beside it",
                row=row,
                expected=f"{self.feature.short}, {int(counts[row])} elements",
                found=f"shape {sizes[row].tolist()}",
            )


def _spans(column: kernels.Column) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where each bytes value of a column begins and ends."""
    return cast("Any", column.starts).ravel(), cast("Any", column.stops).ravel()
