# The C types of _encode.py: what is written, and its functions but those that are inlined.
from libc.stdint cimport int64_t, uint8_t

ctypedef unsigned char* Place

# One feature of all rows.
ctypedef struct Source:
    int kind             # 0 none, 1 bytes, 2 float, 3 int64
    char* name
    Py_ssize_t name_size
    int64_t* first       # by row, number of the first value and the one after the last
    int64_t* last
    uint8_t* present     # by row
    int64_t* ints
    char* floats
    char* data           # what spans are of
    int64_t* starts
    int64_t* stops
    int64_t* sizes       # by row, what the values take; -1 where the row lacks the feature
    bint packed          # whether `floats` has the values as written, and first and last count bytes

# One value of one record in the form of a column of one row.
ctypedef struct Single:
    int64_t first
    int64_t last
    int64_t size
    int64_t start
    int64_t stop
    int64_t value
    float single
    uint8_t present

cdef Py_ssize_t field_size(Py_ssize_t size) noexcept nogil
cdef Py_ssize_t _values_size(Source* source, Py_ssize_t row) noexcept nogil
cdef Place _put_values(Place out, Source* source, Py_ssize_t row) noexcept nogil
cdef Place _put_entry(Place out, Source* source, Py_ssize_t row, Py_ssize_t size) noexcept nogil
cdef Py_ssize_t measure_row(Source* sources, Py_ssize_t count, Py_ssize_t row) noexcept nogil
cdef Place put_row(Place out, Source* sources, Py_ssize_t count, Py_ssize_t row, Py_ssize_t body) noexcept nogil
cdef void _measure(Source* sources, Py_ssize_t count, int64_t[::1] offsets, int64_t[::1] bodies) noexcept nogil
cdef void _write(Source* sources, Py_ssize_t count, int64_t[::1] bodies, Place out) noexcept nogil
