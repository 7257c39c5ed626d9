# What _messages.py offers to _parse.py: one record at a time, into the slots of the wanted features.
from libc.stdint cimport int32_t, int64_t, uint64_t
from shardio.kernels._compiled._lists cimport Slot
from shardio.kernels._compiled._wire cimport Bytes, Trouble

# The wanted features of one map, found by name.
ctypedef struct Side:
    Slot* slots
    Py_ssize_t count
    Bytes names                 # one after another
    int64_t* cuts               # name i is names[cuts[i]:cuts[i + 1]]
    int32_t* table              # open hash table of slot numbers, -1 free
    uint64_t mask               # its size less one
    int32_t guesses[64]         # slot of the n-th entry of the row before, -1 unknown
    Slot* nowhere               # takes what is not wanted
    bint lists                  # whether the values are FeatureLists

cdef uint64_t name_hash(Bytes p, Py_ssize_t size) noexcept nogil
cdef bint read_record(Bytes p, Bytes end, Side* features, Side* lists, Trouble* trouble) noexcept nogil
