# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Parse batches of tf.train.Example and SequenceExample into columns.

The arrays are NumPy's.  Where the number of values is not known beforehand, the loop over the rows stops at
the row that does not fit, larger arrays are made with the interpreter lock held, and that row is read again.
"""

from __future__ import annotations

import cython
import numpy as np
from cython.cimports.cpython.bytes import PyBytes_AS_STRING
from cython.cimports.libc.stdint import int32_t, int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memset
from cython.cimports.shardio.kernels._compiled._memory import address_of
from cython.cimports.shardio.kernels._compiled._messages import (
    FULL,
    KIND,
    MISSING,
    REFUSED,
    Bytes,
    RowStatus,
    Side,
    Slot,
    Trouble,
    name_hash,
    read_rows,
)

from shardio.errors import FormatError
from shardio.kernels._arguments import as_bytes
from shardio.kernels._compiled._messages import REASONS
from shardio.kernels._compiled._slices import checked_bounds, gather
from shardio.kernels._features import (
    KINDS,
    Column,
    Mismatch,
    Parsed,
    as_records,
    check_features,
    fill_missing,
)

COMPILED = cython.compiled

_PROBLEMS = ("", "missing", "kind", "length")


@cython.cclass
class _Columns:
    """The arrays of one side and the pointers into them."""

    side: Side
    nowhere: Slot
    features: list
    arrays: list  # by feature: {name of the slot's pointer: array}
    names: bytes
    rows: cython.Py_ssize_t

    def __cinit__(self, features, rows, origin: cython.size_t, lists: cython.bint) -> None:
        self.features = list(features)
        self.rows = rows
        self.side.count = len(self.features)
        self.side.lists = lists
        self.side.nowhere = cython.address(self.nowhere)
        self.nowhere.count = -1
        memset(self.side.guesses, 255, cython.sizeof(self.side.guesses))
        self.side.slots = cython.cast(
            cython.pointer[Slot], calloc(len(self.features) + 1, cython.sizeof(Slot))
        )
        if self.side.slots == cython.NULL:
            raise MemoryError
        self._name()
        self.arrays = [{} for _ in self.features]
        number: cython.Py_ssize_t
        for number in range(self.side.count):
            slot = self.side.slots + number
            feature = self.features[number]
            slot.kind = 1 + KINDS.index(feature.kind)
            slot.required = feature.required
            slot.count = -1 if feature.count is None else feature.count
            slot.origin = cython.cast(Bytes, origin)
            self._allocate(number)

    def __dealloc__(self) -> None:
        free(self.side.slots)
        free(self.side.cuts)
        free(self.side.table)

    @cython.cfunc
    def _name(self) -> object:
        """Make the hash table of names, at most half full."""
        number: cython.Py_ssize_t
        bucket: uint64_t
        place: int64_t = 0
        self.names = b"".join([feature.name for feature in self.features])
        self.side.names = cython.cast(Bytes, PyBytes_AS_STRING(self.names))
        self.side.mask = 1
        while self.side.mask < 2 * cython.cast(uint64_t, self.side.count):
            self.side.mask = 2 * self.side.mask + 1
        self.side.cuts = cython.cast(cython.pointer[int64_t], calloc(self.side.count + 1, 8))
        self.side.table = cython.cast(cython.pointer[int32_t], calloc(self.side.mask + 1, 4))
        if self.side.cuts == cython.NULL or self.side.table == cython.NULL:
            raise MemoryError
        memset(self.side.table, 255, 4 * (self.side.mask + 1))
        for number in range(self.side.count):
            feature = self.features[number]
            bucket = name_hash(self.side.names + place, len(feature.name)) & self.side.mask
            while self.side.table[bucket] >= 0:
                bucket = (bucket + 1) & self.side.mask
            self.side.table[bucket] = number
            place += len(feature.name)
            self.side.cuts[number + 1] = place

    @cython.cfunc
    def _allocate(self, number: cython.Py_ssize_t) -> object:
        """Make the arrays whose size is known; those of values that vary begin empty."""
        slot = self.side.slots + number
        fixed: cython.bint = slot.count >= 0 and not self.side.lists
        arrays: dict = self.arrays[number]
        arrays["present"] = np.zeros(self.rows, np.uint8)
        if self.side.lists:
            arrays["steps"] = np.zeros(self.rows + 1, np.int64)
            arrays["offsets"] = np.zeros(1, np.int64)
        elif not fixed:
            arrays["offsets"] = np.zeros(self.rows + 1, np.int64)
        self._resize(number, self.rows * slot.count if fixed else 0)

    @cython.cfunc
    def _resize(self, number: cython.Py_ssize_t, size: cython.Py_ssize_t) -> object:
        """Give a feature room for `size` values and keep those that it has."""
        slot = self.side.slots + number
        arrays: dict = self.arrays[number]
        dtype = np.uint32 if slot.kind == 2 else np.int64
        for name in ("starts", "stops") if slot.kind == 1 else ("values",):
            larger = np.empty(size, dtype)
            if slot.total and name in arrays:
                larger[: slot.total] = arrays[name][: slot.total]
            arrays[name] = larger
        slot.limit = size
        self._point(number)

    @cython.cfunc
    def _point(self, number: cython.Py_ssize_t) -> object:
        """Aim the slot's pointers at its arrays; an array of no items is never written to."""
        slot = self.side.slots + number
        arrays: dict = self.arrays[number]
        slot.present = cython.cast(cython.pointer[uint8_t], address_of(arrays["present"]))
        if "offsets" in arrays:
            slot.offsets = cython.cast(cython.pointer[int64_t], address_of(arrays["offsets"]))
            slot.step_limit = len(arrays["offsets"])
        if "steps" in arrays:
            slot.steps = cython.cast(cython.pointer[int64_t], address_of(arrays["steps"]))
        if slot.kind == 1:
            slot.starts = cython.cast(cython.pointer[int64_t], address_of(arrays["starts"]))
            slot.stops = cython.cast(cython.pointer[int64_t], address_of(arrays["stops"]))
        elif slot.kind == 2:
            slot.words = cython.cast(cython.pointer[uint32_t], address_of(arrays["values"]))
        else:
            slot.ints = cython.cast(cython.pointer[int64_t], address_of(arrays["values"]))

    @cython.cfunc
    def grow(self, row: cython.Py_ssize_t) -> object:
        """Make room for what did not fit, and for the rows to come as if they were like those before."""
        number: cython.Py_ssize_t
        for number in range(self.side.count):
            slot = self.side.slots + number
            if self.side.lists and slot.step >= slot.step_limit:
                larger = np.zeros(_room(slot.step + 1, slot.step_limit, row, self.rows), np.int64)
                larger[: slot.step_total + 1] = self.arrays[number]["offsets"][: slot.step_total + 1]
                self.arrays[number]["offsets"] = larger
                self._point(number)
            if (self.side.lists or slot.count < 0) and slot.used > slot.limit:
                self._resize(number, _room(slot.used, slot.limit, row, self.rows))

    @cython.cfunc
    def columns(self, source) -> dict:
        return {
            feature.name: self._column(number, feature, source)
            for number, feature in enumerate(self.features)
        }

    @cython.cfunc
    def _column(self, number: cython.Py_ssize_t, feature, source) -> object:
        slot = self.side.slots + number
        arrays: dict = self.arrays[number]
        fields: dict = {"kind": feature.kind, "present": arrays["present"].view(np.bool_)}
        total: cython.Py_ssize_t = slot.total
        if self.side.lists:
            fields["steps"] = arrays["steps"]
        elif slot.count >= 0:
            total = self.rows * slot.count
        if slot.count < 0:
            fields["offsets"] = (
                arrays["offsets"][: slot.step_total + 1] if self.side.lists else arrays["offsets"]
            )
        if slot.kind == 1:
            fields["source"] = source
        for name in ("starts", "stops") if slot.kind == 1 else ("values",):
            array = arrays[name][:total]
            if slot.kind == 2:
                array = array.view(np.float32)
            if slot.count >= 0:
                array = array.reshape(slot.step_total if self.side.lists else self.rows, slot.count)
            fields[name] = array
        column = Column(**fields)
        return fill_missing(feature, column, gather) if slot.missing else column


@cython.cfunc
def _room(
    needed: cython.Py_ssize_t, size: cython.Py_ssize_t, row: cython.Py_ssize_t, rows: cython.Py_ssize_t
) -> object:
    like_before: cython.double = 1.1 * needed * rows / (row + 1)
    return max(
        16, needed, size + size // 2, min(cython.cast(cython.Py_ssize_t, like_before), 8 * needed + 65536)
    )


def parse_examples(records, features):
    """Parse tf.train.Example records into columns.

    Duplicated keys, merged submessages, unknown fields, packed and unpacked values mean what they mean to
    protobuf's own parser, and what it refuses is refused.

    Args:
        records: payloads, or `Records(buffer, starts, stops)`, which are parsed in place.
        features: what to look for; other features are checked and left out.

    Returns:
        One column per feature, in their order; or the first row that does not fit the description.

    Raises:
        FormatError: a record is not a message; names the first such row, unless an earlier row does not fit.
        IndexError: bounds leave the buffer.
        ValueError: the description contradicts itself.
    """
    check_features(features)
    return _parse(records, features, (), False)


def parse_sequence_examples(records, context, lists):
    """Parse tf.train.SequenceExample records into columns; see `parse_examples`.

    Args:
        records: as there.
        context: features of the record.
        lists: features with one entry per step; `count` is values per step.  A step without a kind has none.
    """
    check_features(context)
    check_features(lists, lists=True)
    return _parse(records, context, lists, True)


@cython.cfunc
def _parse(records, features, lists, sequence: cython.bint):
    starts: cython.const[int64_t][::1]
    stops: cython.const[int64_t][::1]
    buffer, starts, stops = as_records(records, checked_bounds)
    data: cython.const[cython.uchar][::1] = as_bytes(buffer)
    first: Bytes = cython.address(data[0]) if data.shape[0] else cython.NULL
    rows: cython.Py_ssize_t = starts.shape[0]
    context: _Columns = _Columns(features, rows, cython.cast(cython.size_t, first), False)
    series: _Columns = _Columns(lists, rows, cython.cast(cython.size_t, first), True)
    second: cython.pointer[Side] = cython.address(series.side) if sequence else cython.NULL
    status: RowStatus = RowStatus(0, False, 0, 0, -1)
    trouble: Trouble = Trouble(0, cython.NULL)
    row: cython.Py_ssize_t = 0
    while True:
        status.reason = 0
        with cython.nogil:
            row = read_rows(
                first,
                starts,
                stops,
                row,
                cython.address(context.side),
                second,
                cython.address(status),
                cython.address(trouble),
            )
        if status.reason != FULL:
            break
        context.grow(row)
        series.grow(row)
    if status.reason == REFUSED:
        what = "tf.train.SequenceExample" if sequence else "tf.train.Example"
        at = trouble.place - first - starts[row]
        advice = "check that the records are what the schema says, and verify the shard"
        raise FormatError(
            f"the record is not a {what}: {REASONS[trouble.reason]} (byte {at})", row=row, advice=advice
        )
    if status.reason:
        wanted = (lists if status.lists else features)[status.number]
        return Parsed({}, {}, _mismatch(row, wanted, status))
    return Parsed(context.columns(buffer), series.columns(buffer))


@cython.cfunc
def _mismatch(row: cython.Py_ssize_t, wanted, status: RowStatus):
    problem = _PROBLEMS[status.reason]
    if status.reason == MISSING:
        return Mismatch(row, wanted.name, problem)
    step = status.step if status.lists else None
    if status.reason == KIND:
        return Mismatch(row, wanted.name, problem, wanted.kind, KINDS[status.found - 1], step)
    return Mismatch(row, wanted.name, problem, wanted.count, status.found, step)
