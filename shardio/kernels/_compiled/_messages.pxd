# What _messages.pyx offers to _parse.pyx: a batch of records into the slots of the wanted features.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

ctypedef const unsigned char* Bytes

# Indexes into REASONS of _messages.pyx.
cdef enum: CUT = 1, LONG, TAG, TYPE, GROUP, DEEP, NOT_UTF8, NOT_FLOATS, TOO_LARGE

ctypedef struct Trouble:
    int reason   # 0 none, else one of the above
    Bytes place  # where it was noticed

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

# Features that are missing, of another kind, of another length; values that do not fit into the arrays; no message.
cdef enum: MISSING = 1, KIND, LENGTH, FULL, REFUSED

ctypedef struct RowStatus:
    int reason         # 0 right, else one of the above
    bint lists         # which side
    Py_ssize_t number  # which feature
    Py_ssize_t found   # kind or number of values
    Py_ssize_t step

cdef uint64_t name_hash(Bytes p, Py_ssize_t size) noexcept nogil
cdef Py_ssize_t read_rows(
    Bytes data, const int64_t[::1] starts, const int64_t[::1] stops, Py_ssize_t row, Side* features, Side* lists,
    RowStatus* status, Trouble* trouble
) noexcept nogil
