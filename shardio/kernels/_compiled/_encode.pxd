# The C types of _encode.pyx.
from libc.stdint cimport int64_t

ctypedef unsigned char* Place

# One feature of a record.
ctypedef struct Source:
    int kind             # 0 none, 1 bytes, 2 float, 3 int64
    char* name
    Py_ssize_t name_size
    Py_ssize_t count     # of its numbers; of bytes, and of what is packed, their length
    Py_ssize_t size      # what its values take
    char* data           # floats, bytes, or what is packed
    int64_t* ints
    bint packed          # whether `data` has the values as they are written
    int64_t value        # what `ints` or `data` point to where it is one number
    float single
