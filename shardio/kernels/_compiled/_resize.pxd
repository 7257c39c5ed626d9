# What _resize.h offers, in the form in which Cython reads C declarations.
cdef extern from "_resize.h" nogil:
    int shardio_resize(
        const unsigned char *source, size_t stride, int height, int width, int channels,
        unsigned char *out, int out_height, int out_width, const float *box, int kind, int flip)
