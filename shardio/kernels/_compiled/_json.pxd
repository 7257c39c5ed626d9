# What _json.h offers, in the form in which Cython reads C declarations.
cdef extern from "_json.h" nogil:
    int shardio_is_json(const unsigned char *line, size_t size)
