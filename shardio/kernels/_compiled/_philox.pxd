# What _philox.h offers, in the form in which Cython reads C declarations.
cdef extern from "_philox.h" nogil:
    void shardio_shuffle(unsigned long long k0, unsigned long long k1, unsigned long long start, long long count, unsigned int *out)
    unsigned long long shardio_permuted(unsigned long long x, const unsigned long long *words, int bits, unsigned long long high, unsigned long long n)
    unsigned long long shardio_place(unsigned long long x, const unsigned long long *words, int bits, unsigned long long high, unsigned long long n)
    void shardio_permuted_four(long long *x, const unsigned long long *words, int bits, unsigned long long high, unsigned long long n)
