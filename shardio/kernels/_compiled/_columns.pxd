# The columns of the index of one shard, as the loops read them that look up its records.  The functions are defined here,
# so that they are compiled into these loops; a module that calls them needs `shardio_crc_begin` once.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy
from shardio.kernels._compiled._crc cimport shardio_crc, shardio_mask

ctypedef const unsigned char* Bytes

# The columns of the index of one shard of TFRECORD frames without compression.
ctypedef struct Columns:
    int64_t rows
    Py_ssize_t blocks
    int64_t size                  # bytes of the shard
    const uint32_t* frame_stops   # by row
    const uint32_t* crcs          # by row, masked; NULL where the index has none
    const uint64_t* stops         # by block
    const uint64_t* row_stops
    const uint32_t* sizes
    const uint32_t* frame_crcs
    const uint32_t* block_crcs    # of `crcs`
    unsigned char* compared       # 1 once `index_fits` was true

# The block that a row is in, not before `low`; the number of blocks where it is in none.
cdef inline Py_ssize_t block_of(const Columns* columns, int64_t row, Py_ssize_t low) noexcept nogil:
    cdef Py_ssize_t high = columns.blocks
    cdef Py_ssize_t middle
    if low < high and columns.row_stops[low] > <uint64_t> row:
        return low
    while low < high:
        middle = (low + high) // 2
        if columns.row_stops[middle] > <uint64_t> row:
            high = middle
        else:
            low = middle + 1
    return low

# Whether the index's part of a block is what its head means, and says of frames that they fill the block.
cdef inline bint index_fits(const Columns* columns, Py_ssize_t block) noexcept nogil:
    cdef int64_t base, first, last, size, row, before = 0
    if columns.compared[block]:
        return True
    base = columns.stops[block - 1] if block else 0
    first = columns.row_stops[block - 1] if block else 0
    last = columns.row_stops[block]
    size = columns.sizes[block]
    if first < 0 or last <= first or last > columns.rows or base < 0 or base > columns.size - size:
        return False
    if shardio_crc(0, <Bytes> (columns.frame_stops + first), 4 * (last - first)) != columns.frame_crcs[block]:
        return False
    if columns.crcs != NULL:
        if shardio_crc(0, <Bytes> (columns.crcs + first), 4 * (last - first)) != columns.block_crcs[block]:
            return False
    for row in range(first, last):
        if columns.frame_stops[row] < before + 16:
            return False
        before = columns.frame_stops[row]
    if before != size:
        return False
    columns.compared[block] = 1
    return True

# Whether a frame is right whose head, payload and tail may lie apart, and the payload the one that the index means.
cdef inline bint frame_parts_fit(Bytes head, Bytes payload, Bytes tail, int64_t length, uint32_t crc) noexcept nogil:
    cdef uint64_t stored_length
    cdef uint32_t length_crc, stored_crc
    memcpy(&stored_length, head, 8)
    memcpy(&length_crc, head + 8, 4)
    memcpy(&stored_crc, tail, 4)
    return (
        stored_length == <uint64_t> length
        and stored_crc == crc
        and shardio_mask(shardio_crc(0, <Bytes> &stored_length, 8)) == length_crc
        and shardio_mask(shardio_crc(0, payload, length)) == crc
    )

cdef inline bint frame_fits(Bytes frame, Bytes payload, int64_t length, uint32_t crc) noexcept nogil:
    return frame_parts_fit(frame, payload, frame + 12 + length, length, crc)
