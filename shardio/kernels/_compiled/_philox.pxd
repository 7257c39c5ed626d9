# What _philox.h offers, in the form in which Cython reads C declarations.
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from "_philox.h" nogil:
    void shardio_shuffle(uint64_t k0, uint64_t k1, uint64_t start, int64_t count, uint32_t *out)
    uint64_t shardio_permuted(uint64_t x, const uint64_t *words, int bits, uint64_t high, uint64_t n)
    uint64_t shardio_place(uint64_t x, const uint64_t *words, int bits, uint64_t high, uint64_t n)
    void shardio_permuted_four(int64_t *x, const uint64_t *words, int bits, uint64_t high, uint64_t n)
