# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The columns of one shard's index, held in memory for the loops that look up its records."""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import uint32_t, uint64_t

from shardio.kernels._arguments import as_lookup

COMPILED = cython.compiled


@cython.final
@cython.cclass
class IndexColumns:
    """Pointers to the columns of an index; keeps alive what they point to.

    Args:
        columns: of the index of a shard without compression. They are not copied.
        blocks: how many it has.
        size: bytes of the shard.

    Raises:
        ValueError: the columns have other types, or lengths that do not fit each other.
    """

    def __init__(self, columns, blocks, size):
        compared = bytearray(blocks)
        columns = as_lookup(columns, compared)
        # Typed views, so that what is pointed to has the type that the loops expect.
        frames: cython.const[uint32_t][::1] = columns.frame_stops
        stops: cython.const[uint64_t][::1] = columns.block_stops
        row_stops: cython.const[uint64_t][::1] = columns.block_row_stops
        sizes: cython.const[uint32_t][::1] = columns.block_sizes
        frame_crcs: cython.const[uint32_t][::1] = columns.frame_crcs
        crcs: cython.const[uint32_t][::1]
        block_crcs: cython.const[uint32_t][::1]
        flags: cython.uchar[::1] = compared
        self._held = (columns, compared)
        self.table.rows = frames.shape[0]
        self.table.blocks = stops.shape[0]
        self.table.size = size
        self.table.frame_stops = cython.address(frames[0])
        self.table.stops = cython.address(stops[0])
        self.table.row_stops = cython.address(row_stops[0])
        self.table.sizes = cython.address(sizes[0])
        self.table.frame_crcs = cython.address(frame_crcs[0])
        self.table.compared = cython.address(flags[0])
        if columns.records is not None:
            crcs = columns.records.checksums
            block_crcs = columns.records.block_crcs
            self.table.crcs = cython.address(crcs[0])
            self.table.block_crcs = cython.address(block_crcs[0])
