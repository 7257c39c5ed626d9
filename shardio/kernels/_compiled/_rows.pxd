# What _rows.py offers to _parse.py.
from libc.stdint cimport int64_t
from shardio.kernels._compiled._messages cimport Side
from shardio.kernels._compiled._wire cimport Bytes, Trouble

ctypedef struct RowStatus:
    int reason         # 0 right, 1 missing, 2 kind, 3 length, 4 does not fit into the arrays, 5 refused
    bint lists         # which side
    Py_ssize_t number  # which feature
    Py_ssize_t found   # kind or number of values
    Py_ssize_t step

cdef Py_ssize_t read_rows(
    Bytes data, const int64_t[::1] starts, const int64_t[::1] stops, Py_ssize_t row, Side* features, Side* lists,
    RowStatus* status, Trouble* trouble
) noexcept nogil
