# A TFRecord frame, as the loops that read and write them see it.
ctypedef const unsigned char* Bytes

# Bytes before the payload, behind it, and both.
cdef enum:
    HEAD = 12
    TAIL = 4
    FRAME = HEAD + TAIL
