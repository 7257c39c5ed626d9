"""One task of a job array: writes its share of the records, and continues where it was when it is run again.

python examples/array_job.py s3://bucket/birds run7 TASK TASKS [RECORDS]
shardio commit s3://bucket/birds --session run7 --tasks TASKS
"""

from __future__ import annotations

import itertools
import signal
import sys
from typing import TYPE_CHECKING

import shardio

if TYPE_CHECKING:
    from collections.abc import Iterator


def records(task: int, tasks: int, total: int) -> Iterator[dict[str, object]]:
    """Yield the records of one task; the same ones in the same order each time."""
    for number in range(task, total, tasks):
        yield {"id": number, "text": f"record {number}"}


def main(url: str, session: str, task: int, tasks: int, total: int = 10_000) -> None:
    """Write one task of a session."""
    # What a scheduler sends before it takes the machine: leave the block below, so that its spool is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    schema = {"id": "int64", "text": "text"}
    with shardio.DatasetWriter(url, schema=schema, session=session, task=task, commit=False) as out:
        safe = out.written["train"]  # of earlier runs of this task
        for record in itertools.islice(records(task, tasks, total), safe, None):
            out.write(record)
    print(f"task {task}: {out.written['train']} records, {safe} of them by an earlier run")


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
