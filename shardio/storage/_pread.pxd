# What POSIX has for reads that are to come; macOS has nothing of the kind.
from libc.stdint cimport int64_t

cdef extern from *:
    """
    #include <fcntl.h>
    #include <stdint.h>
    static void shardio_will_need(int descriptor, int64_t start, int64_t length) {
    #ifdef POSIX_FADV_WILLNEED
        posix_fadvise(descriptor, start, length, POSIX_FADV_WILLNEED);
    #endif
    }
    """
    void shardio_will_need(int descriptor, int64_t start, int64_t length) noexcept nogil
