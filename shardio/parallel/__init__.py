"""Writing from many processes: items in, one new version out, whatever dies in between.

Items are cut into tasks; each task writes its own shards under one session and leaves a receipt; the driver
commits once.  Works on any `concurrent.futures.Executor` (processes, Dask, MPI), on Ray by `RayExecutor`.
"""

from __future__ import annotations

from shardio.parallel._driver import Progress as Progress
from shardio.parallel._jobs import (
    check_workers as check_workers,
    cut_jobs as cut_jobs,
    run as run,
    sliced as sliced,
)
from shardio.parallel._parent_watch import end_with_parent as end_with_parent, worker_folder as worker_folder
from shardio.parallel._ray import RayExecutor as RayExecutor
from shardio.parallel._session import (
    RunOptions as RunOptions,
    write_session as write_session,
)
from shardio.parallel._sidecars import SidecarPlan as SidecarPlan, run_build as run_build
from shardio.parallel._task import (
    Encoded as Encoded,
    Note as Note,
    TaskItems as TaskItems,
    items_digest as items_digest,
)
from shardio.parallel._write import (
    WriteOptions as WriteOptions,
    check_shuffle as check_shuffle,
    write_dataset as write_dataset,
)
from shardio.parallel._write_session import WriteReport as WriteReport, WriteSession as WriteSession
