# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The loop over the rows of a batch: read a record, judge it by the description, keep it or stop.

A row is kept whole or not at all.  The loop stops at the first that is refused, does not fit the description,
or does not fit into the arrays; that last one is read again when they are larger.
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import int64_t
from cython.cimports.shardio.kernels._compiled._lists import Slot
from cython.cimports.shardio.kernels._compiled._messages import Side, read_record
from cython.cimports.shardio.kernels._compiled._rows import RowStatus
from cython.cimports.shardio.kernels._compiled._wire import Bytes, Trouble

MISSING = cython.declare(cython.int, 1)
KIND = cython.declare(cython.int, 2)
LENGTH = cython.declare(cython.int, 3)
FULL = cython.declare(cython.int, 4)
REFUSED = cython.declare(cython.int, 5)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _begin_row(side: cython.pointer[Side], row: cython.Py_ssize_t) -> cython.void:
    number: cython.Py_ssize_t
    slot: cython.pointer[Slot]
    for number in range(side.count):
        slot = side.slots + number
        slot.found = 0
        if slot.count >= 0 and not side.lists:
            slot.total = row * slot.count
            slot.limit = slot.total + slot.count
        slot.base = slot.used = slot.total
        slot.step = slot.step_total
        slot.listed = False
        slot.problem = 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _check_row(side: cython.pointer[Side], status: cython.pointer[RowStatus]) -> cython.void:
    """Find the first feature that does not fit its description, else one that did not fit into its arrays."""
    number: cython.Py_ssize_t
    slot: cython.pointer[Slot]
    reason: cython.int
    for number in range(side.count):
        slot = side.slots + number
        reason = 0
        if side.lists:
            if not slot.listed:
                reason = MISSING if slot.required else 0
            elif slot.problem:
                reason = slot.problem
                status.found = slot.problem_found
                status.step = slot.problem_step
            elif slot.step >= slot.step_limit or slot.used > slot.limit:
                status.reason = FULL
        elif slot.found == 0:
            reason = MISSING if slot.required else 0
        elif slot.found != slot.kind:
            reason = KIND
            status.found = slot.found
        elif slot.count >= 0:
            if slot.used - slot.base != slot.count:
                reason = LENGTH
                status.found = slot.used - slot.base
        elif slot.used > slot.limit:
            status.reason = FULL
        if reason:
            status.reason = reason
            status.lists = side.lists
            status.number = number
            return


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _end_row(side: cython.pointer[Side], row: cython.Py_ssize_t) -> cython.void:
    number: cython.Py_ssize_t
    slot: cython.pointer[Slot]
    for number in range(side.count):
        slot = side.slots + number
        if side.lists:
            slot.present[row] = slot.listed
            slot.total = slot.used
            slot.step_total = slot.step
            slot.steps[row + 1] = slot.step
        else:
            slot.present[row] = slot.found != 0
            slot.missing += slot.found == 0
            slot.total = slot.used
            if slot.offsets != cython.NULL:
                slot.offsets[row + 1] = slot.used


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def read_rows(
    data: Bytes,
    starts: cython.const[int64_t][::1],
    stops: cython.const[int64_t][::1],
    row: cython.Py_ssize_t,
    features: cython.pointer[Side],
    lists: cython.pointer[Side],
    status: cython.pointer[RowStatus],
    trouble: cython.pointer[Trouble],
) -> cython.Py_ssize_t:
    """Read rows from `row` on; return the row that the status is about, or the number of rows."""
    while row < starts.shape[0]:
        _begin_row(features, row)
        if lists != cython.NULL:
            _begin_row(lists, row)
        if not read_record(data + starts[row], data + stops[row], features, lists, trouble):
            status.reason = REFUSED
            return row
        _check_row(features, status)
        if lists != cython.NULL and (status.reason == 0 or status.reason == FULL):
            _check_row(lists, status)
        if status.reason:
            return row
        _end_row(features, row)
        if lists != cython.NULL:
            _end_row(lists, row)
        row += 1
    return row
