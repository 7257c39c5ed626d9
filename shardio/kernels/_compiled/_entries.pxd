# What _entries.py offers to _encode.py: one row of all features.
from libc.stdint cimport int64_t, uint8_t

ctypedef unsigned char* Place

# One feature of all rows.
ctypedef struct Source:
    int kind              # 0 none, 1 bytes, 2 float, 3 int64
    char* name
    Py_ssize_t name_size
    int64_t* first        # by row, number of the first value and the one after the last
    int64_t* last
    uint8_t* present      # by row
    int64_t* ints
    char* floats
    char* data            # what spans are of
    int64_t* starts
    int64_t* stops
    int64_t* sizes        # by row, what the values take; -1 where the row lacks the feature

cdef Py_ssize_t field_size(Py_ssize_t size) noexcept nogil
cdef Py_ssize_t measure_row(Source* sources, Py_ssize_t count, Py_ssize_t row) noexcept nogil
cdef Place put_row(Place out, Source* sources, Py_ssize_t count, Py_ssize_t row, Py_ssize_t body) noexcept nogil
