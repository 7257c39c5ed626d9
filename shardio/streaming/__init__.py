"""Streams: order, reading, read-ahead and batching together; batches out, state in and out.

Which records a batch holds is `shardio.order`'s arithmetic; here blocks are fetched ahead, checked and
decoded off the consumer's path, held within a bound, and cut into batches of NumPy columns.  No shared
memory, no lock file.
"""

from __future__ import annotations

from shardio.order import Permutation, Plan
from shardio.streaming._audit import AuditedRecord, audit
from shardio.streaming._front import stream
from shardio.streaming._mix import Mix, mix
from shardio.streaming._options import StreamOptions, global_batch_of
from shardio.streaming._orphans import end_with_parent, worker_folder
from shardio.streaming._planning import plan_report
from shardio.streaming._stream import Stream

__all__ = [
    "AuditedRecord",
    "Mix",
    "Permutation",
    "Plan",
    "Stream",
    "StreamOptions",
    "audit",
    "end_with_parent",
    "global_batch_of",
    "mix",
    "plan_report",
    "stream",
    "worker_folder",
]
