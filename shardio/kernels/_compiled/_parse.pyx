# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# Parse batches of tf.train.Example and SequenceExample into columns.
#
# The arrays are NumPy's.  Where the number of values is not known beforehand, the loop over the rows stops at
# the row that does not fit, larger arrays are made with the interpreter lock held, and that row is read again.

import numpy as np
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from shardio.kernels._compiled._memory cimport address_of
from shardio.kernels._compiled._messages cimport (
    FULL, KIND, MISSING, REFUSED, Bytes, RowStatus, Side, Slot, Trouble, name_hash, read_rows
)

from shardio.errors import FormatError
from shardio.kernels._arguments import as_bytes
from shardio.kernels._compiled._messages import REASONS
from shardio.kernels._compiled._slices import gather
from shardio.kernels._features import (
    KINDS,
    Column,
    Mismatch,
    Parsed,
    as_records,
    check_features,
    fill_missing,
)

_PROBLEMS = ("", "missing", "kind", "length")


# The arrays of one side and the pointers into them.
cdef class _Columns:
    cdef Side side
    cdef Slot nowhere
    cdef list features
    cdef list arrays  # by feature: {name of the slot's pointer: array}
    cdef bytes names
    cdef Py_ssize_t rows

    def __cinit__(self, features, rows, size_t origin, bint lists):
        self.features = list(features)
        self.rows = rows
        self.side.count = len(self.features)
        self.side.lists = lists
        self.side.nowhere = &self.nowhere
        self.nowhere.count = -1
        memset(self.side.guesses, 255, sizeof(self.side.guesses))
        self.side.slots = <Slot*> (calloc(len(self.features) + 1, sizeof(Slot)))
        if self.side.slots == NULL:
            raise MemoryError
        self._name()
        self.arrays = [{} for _ in self.features]
        cdef Py_ssize_t number
        for number in range(self.side.count):
            slot = self.side.slots + number
            feature = self.features[number]
            slot.kind = 1 + KINDS.index(feature.kind)
            slot.required = feature.required
            slot.count = -1 if feature.count is None else feature.count
            slot.origin = <Bytes> origin
            self._allocate(number)

    def __dealloc__(self):
        free(self.side.slots)
        free(self.side.cuts)
        free(self.side.table)

    # Make the hash table of names, at most half full.
    cdef _name(self):
        cdef Py_ssize_t number
        cdef uint64_t bucket
        cdef int64_t place = 0
        self.names = b"".join([feature.name for feature in self.features])
        self.side.names = <Bytes> PyBytes_AS_STRING(self.names)
        self.side.mask = 1
        while self.side.mask < 2 * <uint64_t> self.side.count:
            self.side.mask = 2 * self.side.mask + 1
        self.side.cuts = <int64_t*> calloc(self.side.count + 1, 8)
        self.side.table = <int32_t*> calloc(self.side.mask + 1, 4)
        if self.side.cuts == NULL or self.side.table == NULL:
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

    # Make the arrays whose size is known; those of values that vary begin empty.
    cdef _allocate(self, Py_ssize_t number):
        slot = self.side.slots + number
        cdef bint fixed = slot.count >= 0 and not self.side.lists
        cdef dict arrays = self.arrays[number]
        arrays["present"] = np.zeros(self.rows, np.uint8)
        if self.side.lists:
            arrays["steps"] = np.zeros(self.rows + 1, np.int64)
            arrays["offsets"] = np.zeros(1, np.int64)
        elif not fixed:
            arrays["offsets"] = np.zeros(self.rows + 1, np.int64)
        self._resize(number, self.rows * slot.count if fixed else 0)

    # Give a feature room for `size` values and keep those that it has.
    cdef _resize(self, Py_ssize_t number, Py_ssize_t size):
        slot = self.side.slots + number
        cdef dict arrays = self.arrays[number]
        dtype = np.uint32 if slot.kind == 2 else np.int64
        for name in ("starts", "stops") if slot.kind == 1 else ("values",):
            larger = np.empty(size, dtype)
            if slot.total and name in arrays:
                larger[: slot.total] = arrays[name][: slot.total]
            arrays[name] = larger
        slot.limit = size
        self._point(number)

    # Aim the slot's pointers at its arrays; an array of no items is never written to.
    cdef _point(self, Py_ssize_t number):
        slot = self.side.slots + number
        cdef dict arrays = self.arrays[number]
        slot.present = <uint8_t*> address_of(arrays["present"])
        if "offsets" in arrays:
            slot.offsets = <int64_t*> address_of(arrays["offsets"])
            slot.step_limit = len(arrays["offsets"])
        if "steps" in arrays:
            slot.steps = <int64_t*> address_of(arrays["steps"])
        if slot.kind == 1:
            slot.starts = <int64_t*> address_of(arrays["starts"])
            slot.stops = <int64_t*> address_of(arrays["stops"])
        elif slot.kind == 2:
            slot.words = <uint32_t*> address_of(arrays["values"])
        else:
            slot.ints = <int64_t*> address_of(arrays["values"])

    # Make room for what did not fit, and for the rows to come as if they were like those before.
    cdef grow(self, Py_ssize_t row):
        cdef Py_ssize_t number
        for number in range(self.side.count):
            slot = self.side.slots + number
            if self.side.lists and slot.step >= slot.step_limit:
                larger = np.zeros(_room(slot.step + 1, slot.step_limit, row, self.rows), np.int64)
                larger[: slot.step_total + 1] = self.arrays[number]["offsets"][: slot.step_total + 1]
                self.arrays[number]["offsets"] = larger
                self._point(number)
            if (self.side.lists or slot.count < 0) and slot.used > slot.limit:
                self._resize(number, _room(slot.used, slot.limit, row, self.rows))

    cdef dict columns(self, source):
        return {
            feature.name: self._column(number, feature, source)
            for number, feature in enumerate(self.features)
        }

    cdef _column(self, Py_ssize_t number, feature, source):
        slot = self.side.slots + number
        cdef dict arrays = self.arrays[number]
        cdef dict fields = {"kind": feature.kind, "present": arrays["present"].view(np.bool_)}
        cdef Py_ssize_t total = slot.total
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


cdef _room(Py_ssize_t needed, Py_ssize_t size, Py_ssize_t row, Py_ssize_t rows):
    cdef double like_before = 1.1 * needed * rows / (row + 1)
    return max(
        16, needed, size + size // 2, min(<Py_ssize_t> like_before, 8 * needed + 65536)
    )


# Parse tf.train.Example records into columns.
#
# Duplicated keys, merged submessages, unknown fields, packed and unpacked values mean what they mean to
# protobuf's own parser, and what it refuses is refused.
#
# Args:
#     records: payloads, or `Records(buffer, starts, stops)`, which are parsed in place.
#     features: what to look for; other features are checked and left out.
#
# Returns:
#     One column per feature, in their order; or the first row that does not fit the description.
#
# Raises:
#     FormatError: a record is not a message; names the first such row, unless an earlier row does not fit.
#     IndexError: bounds leave the buffer.
#     ValueError: the description contradicts itself.
def parse_examples(records, features):
    check_features(features)
    return _parse(records, features, (), False)


# Parse tf.train.SequenceExample records into columns; see `parse_examples`.
#
# Args:
#     records: as there.
#     context: features of the record.
#     lists: features with one entry per step; `count` is values per step.  A step without a kind has none.
def parse_sequence_examples(records, context, lists):
    check_features(context)
    check_features(lists, lists=True)
    return _parse(records, context, lists, True)


cdef _parse(records, features, lists, bint sequence):
    cdef const int64_t[::1] starts
    cdef const int64_t[::1] stops
    buffer, starts, stops = as_records(records)
    cdef const unsigned char[::1] data = as_bytes(buffer)
    cdef Bytes first = &data[0] if data.shape[0] else NULL
    cdef Py_ssize_t rows = starts.shape[0]
    cdef _Columns context = _Columns(features, rows, <size_t> first, False)
    cdef _Columns series = _Columns(lists, rows, <size_t> first, True)
    cdef Side* second = &series.side if sequence else NULL
    cdef RowStatus status = RowStatus(0, False, 0, 0, -1)
    cdef Trouble trouble = Trouble(0, NULL)
    cdef Py_ssize_t row = 0
    while True:
        status.reason = 0
        with nogil:
            row = read_rows(
                first,
                starts,
                stops,
                row,
                &context.side,
                second,
                &status,
                &trouble,
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


cdef _mismatch(Py_ssize_t row, wanted, RowStatus status):
    problem = _PROBLEMS[status.reason]
    if status.reason == MISSING:
        return Mismatch(row, wanted.name, problem)
    step = status.step if status.lists else None
    if status.reason == KIND:
        return Mismatch(row, wanted.name, problem, wanted.kind, KINDS[status.found - 1], step)
    return Mismatch(row, wanted.name, problem, wanted.count, status.found, step)
