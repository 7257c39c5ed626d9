"""A driver as a program of its own, to be killed: `python -m tests.parallel.driver '{"url": ...}'`."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import sys

import shardio
from tests.parallel import jobs


def main(options: dict) -> None:
    with contextlib.ExitStack() as stack:
        executor = None
        if "dask" in options:
            from distributed import Client

            executor = stack.enter_context(Client(options["dask"])).get_executor()

        def show(progress) -> None:
            print("progress", progress.done, flush=True)
            if progress.done >= options.get("held_at", math.inf):
                signal.pause()  # until it is killed

        report = shardio.write_dataset(
            options["url"],
            options["items"] if "items" in options else range(options["count"]),
            getattr(jobs, options.get("function", "slow")),
            schema=jobs.SCHEMA,
            session=options.get("session"),
            tasks=options.get("tasks"),
            mode=options.get("mode", "create"),
            shuffle="shuffle" in options,
            seed=options.get("shuffle", 0),
            spool_dir=options.get("spool_dir"),
            executor=executor,
            storage_options=options.get("storage_options"),
            progress=show,
        )
        print("report", json.dumps([report.version, report.reused, report.records]), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
