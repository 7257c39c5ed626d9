# What _lists.py offers to the other compiled modules: the state of one feature, and how to read it.
from libc.stdint cimport int64_t, uint8_t, uint32_t
from shardio.kernels._compiled._wire cimport Bytes, Trouble

# One wanted feature: where its values go, and what the row at hand holds so far.
ctypedef struct Slot:
    int kind              # wanted: 1 bytes, 2 float, 3 int64; 0 nothing, so nothing is stored
    bint required
    Py_ssize_t count      # values wanted per row (or step), -1 any
    # where values go
    Py_ssize_t limit      # values with a lower number are stored
    int64_t* ints
    uint32_t* words
    int64_t* starts
    int64_t* stops
    Bytes origin          # starts and stops count from here
    # what the row at hand holds so far
    int found             # kind found in this row (or step); 0 none
    Py_ssize_t base       # number of the row's (or step's) first value
    Py_ssize_t used       # number of the next value; counted also where it is not stored
    # what all rows before it hold
    Py_ssize_t total      # values
    uint8_t* present      # by row
    Py_ssize_t missing    # rows without it
    int64_t* offsets      # by row (or step), end of its values; NULL where the count is fixed
    # of a feature list
    bint listed           # this row has it
    Py_ssize_t step       # number of the next step
    Py_ssize_t step_total # steps of all rows before
    Py_ssize_t step_limit # ends of steps with a lower number are stored
    int64_t* steps        # by row, end of its steps
    int problem           # of the row's first step that does not fit: 2 kind, 3 length
    Py_ssize_t problem_step
    Py_ssize_t problem_found

cdef Bytes read_feature(Bytes p, Bytes end, Slot* slot, int depth, Trouble* trouble) noexcept nogil
cdef Bytes read_feature_list(Bytes p, Bytes end, Slot* slot, int depth, Trouble* trouble) noexcept nogil
