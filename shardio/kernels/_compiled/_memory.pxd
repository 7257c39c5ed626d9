# Memory that loops on bare pointers may touch.  Both do in a fraction of a microsecond what takes NumPy several, which a
# lookup of one record would feel.  They are defined here, so that they are compiled into what calls them.
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport int64_t

# The address of a C-contiguous array; it holds while the caller keeps the array and its size.
cdef inline size_t address_of(object array) except? 0:
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
    cdef size_t address = <size_t> view.buf
    PyBuffer_Release(&view)
    return address

# Let malloc keep memory of that size, and about as much again, when it is freed.  What malloc gave in one piece and got
# back it keeps at hand from then on. Otherwise the memory of a batch goes back to the system with it, and the next batch
# has pages cleared again. By Python's name for malloc: compilers leave out a pair of C's own that does nothing.
cdef inline void raise_trim_threshold(int64_t size) noexcept:
    PyMem_RawFree(PyMem_RawMalloc(size))
