# The columns of the index of one shard, as the loops read them that look up its records.  The functions are defined here,
# so that they are compiled into these loops; a module that calls them needs `shardio_crc_begin` once.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy
from shardio.kernels._compiled._crc cimport shardio_crc, shardio_mask
from shardio.kernels._compiled._frame cimport HEAD, Bytes

# The columns of the index of one shard.
ctypedef struct Columns:
    int64_t rows
    Py_ssize_t blocks
    int64_t least                 # bytes of a frame
    const uint32_t* frame_stops   # by row; NULL where those of a block come with it
    const uint64_t* stops         # by block
    const uint64_t* row_stops
    const uint32_t* sizes
    const uint32_t* frame_crcs
    const uint32_t* block_crcs    # of stored bytes; NULL where they are not compared
    unsigned char* compared       # 1 once the block's part of `frame_stops` was right

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

# Whether the ends of a block's frames are those that the head of the index means, and fill the block.
cdef inline bint part_fits(const Columns* columns, Py_ssize_t block, const uint32_t* ends, int64_t rows) noexcept nogil:
    cdef int64_t row, before = 0
    if shardio_crc(0, <Bytes> ends, 4 * rows) != columns.frame_crcs[block]:
        return False
    for row in range(rows):
        if ends[row] < before + columns.least:
            return False
        before = ends[row]
    return before == columns.sizes[block] or not rows

# Whether the index's part of a block is right, and the block is in a shard of so many bytes.
cdef inline bint index_fits(const Columns* columns, Py_ssize_t block, int64_t shard) noexcept nogil:
    cdef int64_t base, first, last
    if columns.compared[block]:
        return True
    base = columns.stops[block - 1] if block else 0
    first = columns.row_stops[block - 1] if block else 0
    last = columns.row_stops[block]
    if first < 0 or last <= first or last > columns.rows or base < 0 or base > shard - <int64_t> columns.sizes[block]:
        return False
    if not part_fits(columns, block, columns.frame_stops + first, last - first):
        return False
    columns.compared[block] = 1
    return True

# Whether a frame, whose head, payload and tail may lie apart, has this length and matches its two checksums.
cdef inline bint frame_parts_fit(Bytes head, Bytes payload, Bytes tail, int64_t length) noexcept nogil:
    cdef uint64_t stored_length
    cdef uint32_t length_crc, stored_crc
    memcpy(&stored_length, head, 8)
    memcpy(&length_crc, head + 8, 4)
    memcpy(&stored_crc, tail, 4)
    return (
        stored_length == <uint64_t> length
        and shardio_mask(shardio_crc(0, <Bytes> &stored_length, 8)) == length_crc
        and shardio_mask(shardio_crc(0, payload, length)) == stored_crc
    )
