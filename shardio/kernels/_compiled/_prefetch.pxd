# What _prefetch.h offers, in the form in which Cython reads C declarations.
cdef extern from "_prefetch.h" nogil:
    void SHARDIO_PREFETCH(const void *place)
