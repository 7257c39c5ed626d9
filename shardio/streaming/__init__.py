"""Streams: order, reading, read-ahead and batching together; batches out, state in and out.

Which records a batch holds is `shardio.order`'s arithmetic; here blocks are fetched ahead, checked and
decoded off the consumer's path, held within a bound, and cut into batches of NumPy columns.  No shared
memory, no lock file.
"""

from __future__ import annotations

from shardio.order import Plan as Plan
from shardio.streaming._components import (
    Mix as Mix,
    agree as agree,
    in_all as in_all,
    mix as mix,
    of_parts as of_parts,
    parts_of as parts_of,
    prepare as prepare,
)
from shardio.streaming._options import (
    StreamOptions as StreamOptions,
    method_with_stream_options as method_with_stream_options,
)
from shardio.streaming._reports import (
    AuditedRecord as AuditedRecord,
    BenchReport as BenchReport,
    BenchStage as BenchStage,
    PlanReport as PlanReport,
    audit as audit,
    bench as bench,
    plan_report as plan_report,
)
from shardio.streaming._stats import LoaderStats as LoaderStats, StreamStats as StreamStats
from shardio.streaming._stream import Stream as Stream, StreamLoader as StreamLoader, stream as stream
