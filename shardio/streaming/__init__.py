"""Streams: order, reading, read-ahead and batching together; batches out, state in and out.

Which records a batch holds is `shardio.order`'s arithmetic; here blocks are fetched ahead, checked and
decoded off the consumer's path, held within a bound, and cut into batches of NumPy columns.  No shared
memory, no lock file.
"""

from __future__ import annotations

from shardio.order import Permutation, Plan
from shardio.streaming._agreement import check_same, differences, in_all, terms_of
from shardio.streaming._bench import BenchReport, BenchStage, bench
from shardio.streaming._components import Mix, mix, of_parts, parts_of, prepare
from shardio.streaming._options import StreamOptions, method_with_stream_options
from shardio.streaming._reports import AuditedRecord, audit, plan_report
from shardio.streaming._stats import LoaderStats, StreamStats
from shardio.streaming._stream import Stream, StreamLoader, stream

__all__ = [
    "AuditedRecord",
    "BenchReport",
    "BenchStage",
    "LoaderStats",
    "Mix",
    "Permutation",
    "Plan",
    "Stream",
    "StreamLoader",
    "StreamOptions",
    "StreamStats",
    "audit",
    "bench",
    "check_same",
    "differences",
    "in_all",
    "method_with_stream_options",
    "mix",
    "of_parts",
    "parts_of",
    "plan_report",
    "prepare",
    "stream",
    "terms_of",
]
