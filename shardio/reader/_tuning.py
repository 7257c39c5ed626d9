"""The numbers that steer reads, in one place, with the reasons for them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadTuning:
    """How shards are opened and read.

    Attributes:
        frames_bytes: of `frame_stop` that come with the head of an index, by one request: 16,384 records.
        frames_times: as many times more where all of a shard are read, if those of all shards are at most
            `all_frames_bytes`, which are held.
        all_frames_bytes: see there.
        heads: of indexes that iteration fetches together.
        run_bytes: stored bytes that iteration fetches together: large enough for a bucket's latency and for
            NumPy's, small enough to hold several.
        mapped_run_bytes: the same of mapped shards, so that blocks, and the records that are cut from them,
            stay in the cache of one core.
        run_rows: of one run.
        run_decoded_bytes: of one run: what compresses well, or was made to, must not fill the memory.
        ahead: runs under way ahead of the consumer: 16 MiB hide 20 ms at 800 MB/s.  It begins with one, so
            that taking a single record does not cost as much as many.
        lookup_bytes: of blocks that a lookup of many records holds at once.
        positions: of an irregular selection that are read together.
        gap: bytes between two records that cost less than another request, whose head and whose answer's head
            take more.
        gap_share: beyond that, one byte may be fetched besides for so many that are wanted.
        piece_bytes: stored bytes of one request, of a stream that is decoded.
        cursors: decoders that are kept where they are, of one stream.
        walk_bytes, walk_rows: of a run of blocks that verification fetches together.
        walk_ahead: such runs under way ahead of the one that is checked.
    """

    frames_bytes: int = 64 << 10
    frames_times: int = 128
    all_frames_bytes: int = 16 << 20
    heads: int = 32
    run_bytes: int = 1 << 20
    mapped_run_bytes: int = 1 << 19
    run_rows: int = 1 << 14
    run_decoded_bytes: int = 16 << 20
    ahead: int = 16
    lookup_bytes: int = 64 << 20
    positions: int = 1 << 10
    gap: int = 512
    gap_share: int = 5
    piece_bytes: int = 4 << 20
    cursors: int = 4
    walk_bytes: int = 16 << 20
    walk_rows: int = 1 << 20
    walk_ahead: int = 2


TUNING = ReadTuning()
