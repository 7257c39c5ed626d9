"""The numbers that steer streams, in one place, with the reasons for them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamTuning:
    """How a pass plans, fetches and builds; what follows from a number is a multiple of it where it is used.

    Attributes:
        group_rows: of a group of steps: enough that NumPy's overhead is small, few enough that the first
            batches come soon.
        group_rows_by_value: where each row costs a call of the caller's function, or an image, that overhead
            is small anyway.
        group_bytes: of a group.
        most_steps: of a group, and groups ahead.
        ahead_bytes: planned ahead, which evens out how long requests take; up to four times as much from a
            store that is far.
        bytes_per_second: of requests that are under way, which is what two processors take; half of what is
            ahead is under way, the other half is built.
        task_bytes: of the chunks that one call opens.
        run_bytes: stored bytes of a chunk of several windows from a bucket: the blocks at both its ends are a
            thirtieth of that.
        built_bytes: of groups that are built, or wait to be taken, if they are more than two.
        large_step_bytes: chunks and batches of two steps this large would take more than a process may hold.
        first_rows: records of the first batch that one call opens from a bucket.
        first_bytes: decoded bytes of a dataset in a bucket up to which the first batch waits for its windows,
            which takes fewer requests than to open its records alone.
        read_row_bytes: from this mean of a record on, those of mapped shards are read past the map: looking
            into a page for the first time costs more.
        mapped_bytes: of mapped shards that are gathered before their pages are given back.
        mapped_blocks: of the mapped shards that are kept open, by their indexes, which are mapped, too.
        io_threads: that fetch from a network, where most of the time is waiting: each has a group under way.
            Four times as many at most.
        ending_seconds: threads end with the record, block or request that they are at; one that hangs is left
            behind. A tenth of that for Ctrl-C, which must not seem to do nothing.
    """

    group_rows: int = 4096
    group_rows_by_value: int = 256
    group_bytes: int = 8 << 20
    most_steps: int = 64
    ahead_bytes: int = 32 << 20
    bytes_per_second: int = 600 << 20
    task_bytes: int = 4 << 20
    run_bytes: int = 2 << 20
    built_bytes: int = 256 << 20
    large_step_bytes: int = 128 << 20
    first_rows: int = 64
    first_bytes: int = 160 << 20
    read_row_bytes: int = 4096
    mapped_bytes: int = 64 << 20
    mapped_blocks: int = 4 << 20
    io_threads: int = 4
    ending_seconds: float = 5.0


TUNING = StreamTuning()
