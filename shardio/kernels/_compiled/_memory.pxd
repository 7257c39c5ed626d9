# What _memory.py offers to the other compiled modules.
from libc.stdint cimport int64_t

cdef size_t address_of(object array) except? 0
cdef void keep_at_hand(int64_t size) noexcept
cdef bint lie_inside(const int64_t[::1] starts, const int64_t[::1] stops, Py_ssize_t size) noexcept nogil
