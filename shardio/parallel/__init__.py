"""Writing from many processes: items in, one new version out, whatever dies in between.

Items are cut into tasks; each task writes its own shards under one session and leaves a receipt; the driver
commits once.  Works on any `concurrent.futures.Executor` (processes, Dask, MPI), on Ray by `RayExecutor`.
"""

from __future__ import annotations

from shardio.parallel._driver import Progress
from shardio.parallel._jobs import InlineExecutor, JobRunner, LostJob, check_workers
from shardio.parallel._parent_watch import end_with_parent, worker_folder
from shardio.parallel._ray import RayExecutor
from shardio.parallel._session import RunOptions, WriteReport, merged_before, write_session
from shardio.parallel._task import Encoded, Note
from shardio.parallel._write import check_shuffle, write_dataset

__all__ = [
    "Encoded",
    "InlineExecutor",
    "JobRunner",
    "LostJob",
    "Note",
    "Progress",
    "RayExecutor",
    "RunOptions",
    "WriteReport",
    "check_shuffle",
    "check_workers",
    "end_with_parent",
    "merged_before",
    "worker_folder",
    "write_dataset",
    "write_session",
]
