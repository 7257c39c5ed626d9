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
    /* Whether the system has a byte of a file at hand; 0 also where it does not tell. */
    static int shardio_is_cached(int descriptor, int64_t start) {
    #ifdef RWF_NOWAIT
        char byte;
        struct iovec part = {&byte, 1};
        return preadv2(descriptor, &part, 1, start, RWF_NOWAIT) == 1;
    #else
        return 0;
    #endif
    }
    """
    bint shardio_is_cached(int descriptor, int64_t start) noexcept nogil
    void shardio_will_need(int descriptor, int64_t start, int64_t length) noexcept nogil

    ctypedef struct Part "struct iovec":
        void* base "iov_base"
        size_t length "iov_len"
    Py_ssize_t read_parts "preadv" (int descriptor, const Part* parts, int count, int64_t start) nogil
