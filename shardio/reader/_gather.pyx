# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# The loops over bytes that bring the rows of batches together; they release the GIL.
#
# An *entry* says where the payload of a row is: its address in memory or its place in a file, its length, and the
# CRC-32C of what was written to scratch. A *way* says how it is copied from there.

import numpy as np

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from shardio.kernels._compiled._columns cimport Columns, block_of, frame_parts_fit, index_fits
from shardio.kernels._compiled._crc cimport shardio_crc, shardio_crc_begin
from shardio.kernels._compiled._frame cimport FRAME, HEAD, TAIL, Bytes
from shardio.kernels._compiled._memory cimport raise_trim_threshold
from shardio.kernels._compiled._prefetch cimport SHARDIO_PREFETCH

cdef extern from "_read.h" nogil:
    int shardio_open(const char* path)
    void shardio_close(int file)
    int64_t shardio_read(int file, void* target, int64_t size, int64_t start, int* code)
    int64_t shardio_read_frame(
        int file, void* head, void* payload, int64_t length, void* tail, int64_t start, int* code
    )
    bint SHARDIO_READS

# glibc gives each thread an arena of its own, up to eight per core. Each arena keeps what its threads have freed, and
# the threads of the next pass use other ones, so that a process would grow for dozens of epochs. An environment that
# configures malloc takes precedence; a process that has many arenas already keeps them.
cdef extern from *:
    """
    #ifdef __GLIBC__
    #include <malloc.h>
    #include <stdlib.h>
    static void shardio_limit_arenas(void) {
        if (!getenv("MALLOC_ARENA_MAX") && !getenv("GLIBC_TUNABLES")) (void)mallopt(M_ARENA_MAX, 2);
    }
    #else
    static void shardio_limit_arenas(void) {}
    #endif
    """
    void shardio_limit_arenas()

shardio_crc_begin()
shardio_limit_arenas()

cdef struct Entry:
    uint64_t payload
    uint32_t length
    uint32_t crc

ENTRY = np.dtype([("payload", "<u8"), ("length", "<u4"), ("crc", "<u4")])
SKIPPED = 0xFFFFFFFF  # the length of a row that is left out because of damage
READS_FILES = SHARDIO_READS  # whether rows can be read past a map

# How a row is copied: as it is; with its frame compared; from `SHARD` on read from the file of that shard. Below
# 0 it is read from a scratch file, of the descriptor -1 - way.
cdef enum: COPIED, COMPARED, SHARD
cdef Py_ssize_t AHEAD = 6
cdef uint32_t LARGE = 1 << 16  # bytes of a record that is copied without the interpreter's lock
# What a loop may meet. A file that was cut, or cannot be read, must not be looked into through a map.
cdef enum: RIGHT, WRONG, SHORT, FAILED
cdef int64_t trim_threshold = 0


# Copy payloads, and fill their entries; return how many bytes were copied.
#
# Args:
#     data: that the payloads are in.
#     starts, stops: int64 [rows], where each is.
#     table: address of the entries.
#     target: address of the memory that payloads are copied to, one after another.
#     place: where the first payload will be found: `target`, or its place in a scratch file.
#     checksums: compute those of payloads, for a scratch file.
def copy_rows(const unsigned char[::1] data, const int64_t[:] starts, const int64_t[:] stops, uint64_t table,
              uint64_t target, uint64_t place, bint checksums):
    cdef Entry* entries = <Entry*> table
    cdef Py_ssize_t row
    cdef int64_t size, done = 0
    with nogil:
        for row in range(starts.shape[0]):
            size = stops[row] - starts[row]
            memcpy(<unsigned char*> target + done, &data[0] + starts[row], size)
            entries[row].payload, entries[row].length = place + done, size
            entries[row].crc = shardio_crc(0, <Bytes> target + done, size) if checksums else 0
            done += size
    return done


# Copy the entries of rows of open chunks.
#
# Args:
#     tables: int64 [chunks, 3]: address of a chunk's entries, its rows, and how these are copied.
#     chunks, rows: int64 [n], the chunk of each row, and its number there.
#     places: int64 [n], which of the entries it has.
#     entries, ways: are filled.
#
# Raises:
#     IndexError: a chunk is not open, or has no such row.
def find_in_chunks(const int64_t[:, ::1] tables, const int64_t[::1] chunks, const int64_t[::1] rows,
                   const int64_t[::1] places, entries, int[::1] ways):
    cdef Entry* out = <Entry*> <uint64_t> entries.ctypes.data
    cdef Py_ssize_t k, count = chunks.shape[0]
    cdef int64_t wrong = -1
    with nogil:
        for k in range(count):
            if k + AHEAD < count:
                SHARDIO_PREFETCH(<Entry*> tables[chunks[k + AHEAD], 0] + rows[k + AHEAD])
            if rows[k] < 0 or rows[k] >= tables[chunks[k], 1]:
                wrong = k
                break
            out[places[k]] = (<Entry*> tables[chunks[k], 0] + rows[k])[0]
            ways[places[k]] = tables[chunks[k], 2]
    if wrong >= 0:
        raise IndexError(f"row {rows[wrong]} of chunk {chunks[wrong]} is not open")


cdef struct Shard:
    Columns index
    Bytes data              # NULL where the file could not be mapped
    int64_t size
    const char* path        # NULL where rows are not read past the map
    bint verify


# Blocks have about as many rows each.
cdef inline Py_ssize_t _block_of(const Shard* shard, int64_t row) noexcept nogil:
    cdef Py_ssize_t block = row * shard.index.blocks // shard.index.rows
    if <int64_t> shard.index.row_stops[block] > row and (
        not block or <int64_t> shard.index.row_stops[block - 1] <= row
    ):
        return block
    return block_of(&shard.index, row, 0)


# Find where a payload is in its shard, and its length; False where the index is not right, or has no such row.
cdef inline bint _find_entry(const Shard* shard, int64_t row, Entry* entry) noexcept nogil:
    cdef Py_ssize_t block
    cdef int64_t start, stop
    if row < 0 or row >= shard.index.rows:
        return False
    block = _block_of(shard, row)
    if block >= shard.index.blocks or not index_fits(&shard.index, block, shard.size):
        return False
    # A map may change under our feet, and then hold anything.
    start = stop = shard.index.stops[block - 1] if block else 0
    if start < 0 or start > shard.size:
        return False
    if row > (<int64_t> shard.index.row_stops[block - 1] if block else 0):
        start += shard.index.frame_stops[row - 1]
    stop += shard.index.frame_stops[row]
    entry.payload, entry.length = start + HEAD, stop - start - FRAME
    return stop - start >= FRAME and stop <= shard.size


# Copy a payload out of a map; it is compared where it was copied to.
cdef int _look(Bytes payload, unsigned char* target, int64_t length, bint verify) noexcept nogil:
    memcpy(target, payload, length)
    if verify and not frame_parts_fit(payload - HEAD, target, payload + length, length):
        return WRONG
    return RIGHT


# Read a payload from the file of its shard, past the map; what is not right may be so in the map.
cdef int _read_frame(
    const Shard* shard, int file, const Entry* entry, unsigned char* target, int64_t* read, int* code
) noexcept nogil:
    cdef unsigned char[FRAME] around
    if file < 0:  # it lost its name, or there is no descriptor left
        if shard.data == NULL:
            return FAILED
        return _look(shard.data + entry.payload, target, entry.length, shard.verify)
    read[0] = shardio_read_frame(
        file, around, target, entry.length, around + HEAD, entry.payload - HEAD, code
    )
    if code[0]:
        return FAILED
    if read[0] < FRAME + <int64_t> entry.length:
        return SHORT
    if not shard.verify or frame_parts_fit(around, target, around + HEAD, entry.length):
        return RIGHT
    if shard.data == NULL:
        return WRONG
    return _look(shard.data + entry.payload, target, entry.length, True)


# Return a payload; None where its frame is not right, or cannot be read.
cdef _take(const Shard* shard, int file, const Entry* entry):
    cdef int problem, code = 0
    cdef int64_t read = 0
    payload = PyBytes_FromStringAndSize(NULL, entry.length)
    cdef unsigned char* target = <unsigned char*> PyBytes_AS_STRING(payload)
    if shard.path == NULL and entry.length <= LARGE:
        problem = _look(shard.data + entry.payload, target, entry.length, shard.verify)
    else:
        with nogil:
            if shard.path == NULL:
                problem = _look(shard.data + entry.payload, target, entry.length, shard.verify)
            else:
                problem = _read_frame(shard, file, entry, target, &read, &code)
    return payload if problem == RIGHT else None


# Where the frames of an uncompressed TFRecord shard are.
#
# Args:
#     mapped: its bytes, or None.
#     size: how many they are.
#     head: of its index.
#     frames: uint32 [rows], where each frame ends in its block.
#     verify: compare both checksums of a frame with its bytes.
#     path: of the file, ending with a zero byte, to read rows past the map; None to look into it.
#
# Attributes:
#     address: what `find_in_shards` and `gather` take; holds as long as this.
cdef class ShardFrames:

    cdef Shard shard
    cdef object held

    def __init__(self, mapped, size, head, frames, *, verify, path):
        cdef const unsigned char[::1] data
        cdef const uint64_t[::1] wide = head.block_stop
        cdef const uint32_t[::1] column = head.block_decoded_bytes
        cdef unsigned char[::1] flags
        cdef Shard* shard = &self.shard
        compared = np.zeros(head.blocks, np.uint8)
        self.held = mapped, head, frames, compared, path
        shard.size, shard.verify = size, verify
        if mapped is not None and size:
            data = mapped
            shard.data = &data[0]
        if path is not None:
            shard.path = <const char*> path
        shard.index.rows, shard.index.blocks, shard.index.least = head.rows, head.blocks, FRAME
        flags = compared
        shard.index.stops, shard.index.sizes, shard.index.compared = &wide[0], &column[0], &flags[0]
        wide = head.block_row_stop
        shard.index.row_stops = &wide[0]
        column = head.block_frames_crc32c
        shard.index.frame_crcs = &column[0]
        column = frames
        shard.index.frame_stops = &column[0]

    @property
    def address(self):
        return <uint64_t> &self.shard

    # Return one payload; None where its frame or the index is not right, or the file cannot be read.
    def record(self, int64_t row):
        cdef Entry entry
        if not _find_entry(&self.shard, row, &entry):
            return None
        cdef int file = shardio_open(self.shard.path) if self.shard.path != NULL else -1
        payload = _take(&self.shard, file, &entry)
        shardio_close(file)
        return payload

    # Return some payloads, in the order given; None where `record` returns None for any.
    def records(self, const int64_t[::1] rows):
        cdef const Shard* shard = &self.shard
        cdef Py_ssize_t k, count = rows.shape[0]
        memory = PyBytes_FromStringAndSize(NULL, count * sizeof(Entry))
        cdef Entry* entries = <Entry*> PyBytes_AS_STRING(memory)
        cdef bint right = True
        with nogil:
            for k in range(count):
                if k + AHEAD < count:
                    SHARDIO_PREFETCH(shard.index.frame_stops + rows[k + AHEAD])
                right = right and _find_entry(shard, rows[k], &entries[k])
        if not right:
            return None
        cdef int file = shardio_open(shard.path) if shard.path != NULL else -1
        payloads = []
        for k in range(count):
            if k + AHEAD < count and shard.path == NULL:
                SHARDIO_PREFETCH(shard.data + entries[k + AHEAD].payload)
                SHARDIO_PREFETCH(shard.data + entries[k + AHEAD].payload + 64)
            payload = _take(shard, file, &entries[k])
            if payload is None:
                payloads = None
                break
            payloads.append(payload)
        shardio_close(file)
        return payloads

    # Return where the frames of rows start and stop in the shard, int64 [2, rows]; None where the index is not right.
    def bounds(self, const int64_t[::1] rows):
        cdef Entry entry
        cdef Py_ssize_t k
        found = np.empty((2, rows.shape[0]), np.int64)
        cdef int64_t[:, ::1] out = found
        for k in range(rows.shape[0]):
            if not _find_entry(&self.shard, rows[k], &entry):
                return None
            out[0, k] = entry.payload - HEAD
            out[1, k] = entry.payload + entry.length + TAIL
        return found


# Find rows of shards; return which of them the index of its shard is not right for, or -1.
#
# Args:
#     shards: uint64, their addresses.
#     numbers: int64 [n], the number of each row's shard among these.
#     rows, places, entries, ways: as in `find_in_chunks`.
def find_in_shards(const uint64_t[::1] shards, const int64_t[::1] numbers, const int64_t[::1] rows,
                   const int64_t[::1] places, entries, int[::1] ways):
    cdef Entry* out = <Entry*> <uint64_t> entries.ctypes.data
    cdef Py_ssize_t k, count = numbers.shape[0]
    cdef int64_t wrong = -1
    cdef const Shard* shard
    with nogil:
        for k in range(count):
            if k + AHEAD < count:
                shard = <const Shard*> shards[numbers[k + AHEAD]]
                SHARDIO_PREFETCH(shard.index.frame_stops + rows[k + AHEAD])
            shard = <const Shard*> shards[numbers[k]]
            if not _find_entry(shard, rows[k], &out[places[k]]):
                wrong = k
                break
            if shard.path == NULL:
                out[places[k]].payload += <uint64_t> shard.data
                ways[places[k]] = COMPARED if shard.verify else COPIED
            else:
                ways[places[k]] = SHARD + numbers[k]
    return wrong


cdef int _read_scratch(int file, const Entry* entry, unsigned char* target, int* code) noexcept nogil:
    cdef int64_t size = shardio_read(file, target, entry.length, entry.payload, code)
    if size < <int64_t> entry.length or shardio_crc(0, target, entry.length) != entry.crc:
        return WRONG
    return RIGHT


# Copy payloads; return the first that is not right, and what is wrong with it, or -1.
cdef int64_t _copy(
    const Entry* entries, const int[::1] ways, const uint64_t[::1] targets, const uint64_t[::1] shards,
    const int64_t[::1] order, int* problem, int64_t* read, int* code
) noexcept nogil:
    cdef Py_ssize_t k, at, ahead, count = order.shape[0]
    cdef int way, opened = -1, file = -1
    cdef unsigned char* target
    problem[0] = RIGHT
    for k in range(count):
        if k + AHEAD < count:
            ahead = order[k + AHEAD]
            if COPIED <= ways[ahead] < SHARD:
                SHARDIO_PREFETCH(<Bytes> entries[ahead].payload)
                SHARDIO_PREFETCH(<Bytes> entries[ahead].payload + 64)
        at = order[k]
        way, target = ways[at], <unsigned char*> targets[at]
        if way < COPIED:
            problem[0] = _read_scratch(-1 - way, &entries[at], target, code)
        elif way < SHARD:
            problem[0] = _look(<Bytes> entries[at].payload, target, entries[at].length, way == COMPARED)
        else:
            # Rows come by shard, so that one file is open at a time.
            if way != opened:
                shardio_close(file)
                file, opened = shardio_open((<const Shard*> shards[way - SHARD]).path), way
            problem[0] = _read_frame(
                <const Shard*> shards[way - SHARD], file, &entries[at], target, read, code
            )
        if problem[0] != RIGHT:
            break
    shardio_close(file)
    return at if problem[0] != RIGHT else -1


# Bring the payloads of rows together.
#
# Args:
#     entries, ways: of the rows.
#     shards: those of `find_in_shards`; empty where there are none.
#     as_bytes: each as an object of its own.
#
# Returns:
#     A list of bytes, or uint8 with all payloads; int64 [rows + 1], where each begins and the last one ends; and
#     None, or of the first row that is wrong its number, whether its file ends too early, the bytes read, errno.
def gather(entries, const int[::1] ways, const uint64_t[::1] shards, *, bint as_bytes):
    global trim_threshold
    cdef Py_ssize_t count = len(entries), k
    cdef int64_t wrong, read = 0
    cdef int problem = 0, code = 0
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(entries["length"], out=offsets[1:])
    # Of several groups at a time; malloc keeps no more than this.
    cdef int64_t total = offsets[count], most = (32 << 20) - (64 << 10)
    cdef const Entry* first = <const Entry*> <uint64_t> entries.ctypes.data
    if (1 << 20) <= total <= most and min(4 * total, most) > trim_threshold:
        trim_threshold = min(4 * total, most)
        raise_trim_threshold(trim_threshold)
    addresses = np.empty(count, np.uint64)
    cdef uint64_t[::1] targets = addresses
    if as_bytes:
        content = [PyBytes_FromStringAndSize(NULL, first[k].length) for k in range(count)]
        for k in range(count):
            targets[k] = <uint64_t> PyBytes_AS_STRING(content[k])
    else:
        content = np.empty(total, np.uint8)
        np.add(offsets[:count], content.ctypes.data if total else 0, out=addresses, casting="unsafe")
    order = np.arange(count) if not len(shards) else np.argsort(ways, kind="stable")
    cdef const int64_t[::1] by_file = order
    with nogil:
        wrong = _copy(first, ways, targets, shards, by_file, &problem, &read, &code)
    return content, offsets, None if wrong < 0 else (wrong, problem == SHORT, read, code)
