# What _crc.h offers, in the form in which Cython reads C declarations.
cdef extern from "_crc.h" nogil:
    unsigned int shardio_crc(int kind, const unsigned char *start, size_t size)
    unsigned int shardio_mask(unsigned int crc)
    int shardio_crc_begin()
    void shardio_crc_use(int instruction, int wide)
    unsigned int shardio_join(unsigned int a, unsigned int b, unsigned long long size)
    unsigned int shardio_crc_on(int kind, unsigned int crc, const unsigned char *start, size_t size)
    unsigned int shardio_payload_on(unsigned int before, const unsigned char *start, size_t size, unsigned int crc)
