# What POSIX has for reads that are to come; macOS has nothing of the kind.
from libc.stdint cimport int64_t

cdef extern from *:
    """
    #include <fcntl.h>
    #include <stdint.h>
    #include <sys/uio.h>
    static void shardio_will_need(int descriptor, int64_t start, int64_t length) {
    #ifdef POSIX_FADV_WILLNEED
        posix_fadvise(descriptor, start, length, POSIX_FADV_WILLNEED);
    #endif
    }
    """
    void shardio_will_need(int descriptor, int64_t start, int64_t length) noexcept nogil

    ctypedef struct Part "struct iovec":
        void* base "iov_base"
        size_t length "iov_len"
    Py_ssize_t read_parts "preadv" (int descriptor, const Part* parts, int count, int64_t start) nogil
