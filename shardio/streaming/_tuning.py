"""The numbers that steer streams, in one place, with the reasons for them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamTuning:
    """How a pass plans, fetches and builds; what follows from a number is a multiple of it where it is used.

    Attributes:
        group_rows: of a group of steps: enough that NumPy's overhead is small, few enough that the first
            batches come soon. Windows that hold no records are found together for four groups: each of their
            rows takes 32 bytes.
        group_rows_by_value: where each row costs a call of the caller's function, or an image, that overhead
            is small anyway.
        group_bytes: of a group. Twice as much where windows hold nothing, which costs half as much Python.
        most_steps: of a group, and groups ahead.
        ahead_bytes: planned ahead, which evens out how long requests take: of local files half, twice where
            windows hold nothing, and up to four times as much from a store that is far.
        bytes_per_second: of requests that are under way, which is what two processors take; half of what is
            ahead is under way, the other half is built.
        planned_together: groups of rows that are fetched in parts: Python and NumPy cost a third less.
        built_bytes: of groups that are built, or wait to be taken, if they are more than two.
        large_step_bytes: windows and batches of two steps this large would take more than a process may hold.
        read_bytes: of windows of local files that are not mapped, which are read together by threads side by
            side; what is mapped or fetched comes by the group, which is how it is needed.
        part_row_bytes: windows of records this large are held in parts, of local files twice: what finds the
            rows of a part costs more than smaller ones take.
        early_share: of what windows may hold, what neighbours that come with them may; a third in a scratch
            file.
        first_rows: records of the first batch that one call fetches from a bucket, all at once.
        template_rows: of which a batch without records is the pattern.
        unread_row_bytes: from this mean of a record on, reading each when it is delivered costs no more than
            windows do.
        io_threads: that fetch from a network, where most of the time is waiting: each has a group under way.
            Four times as many at most.
        ending_seconds: threads end with the record, block or request that they are at; one that hangs is left
            behind. A tenth of that for Ctrl-C, which must not seem to do nothing.
        batch_memory: bytes of batches that are gone, which are kept for the next ones.
        many_pieces: shards of windows from which on each is opened when a row of it is wanted, for a
            millisecond each: ten thousand small ones would be opened before the first batch, which has rows
            of a few hundred.
        least_memory: memory for windows comes in multiples of this, at least, so that it fits again.
        huge_page: of the processor; memory of two is worth them.
    """

    group_rows: int = 4096
    group_rows_by_value: int = 256
    group_bytes: int = 8 << 20
    most_steps: int = 64
    ahead_bytes: int = 32 << 20
    bytes_per_second: int = 600 << 20
    planned_together: int = 2
    built_bytes: int = 256 << 20
    large_step_bytes: int = 128 << 20
    read_bytes: int = 2 << 20
    part_row_bytes: int = 512
    early_share: float = 3 / 16
    first_rows: int = 64
    template_rows: int = 16
    unread_row_bytes: int = 4096
    io_threads: int = 4
    ending_seconds: float = 5.0
    batch_memory: int = 64 << 20
    many_pieces: int = 64
    least_memory: int = 64 << 10
    huge_page: int = 2 << 20


TUNING = StreamTuning()
