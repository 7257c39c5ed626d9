"""The same write on the engine that is there: processes, Dask, Ray or MPI.

python examples/engines_write.py processes URL
python examples/engines_write.py dask URL
python examples/engines_write.py ray URL
mpiexec -n 4 python -m mpi4py.futures examples/engines_write.py mpi URL
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import shardio

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

SCHEMA = {"id": "int64", "square": "int64"}


def squares(start: int) -> Iterator[dict[str, int]]:
    """Yield a hundred records; a worker calls this once for each item."""
    for number in range(start, start + 100):
        yield {"id": number, "square": number * number}


@contextlib.contextmanager
def executor_of(engine: str) -> Iterator[Executor | None]:
    """Yield the executor of an engine; None is a pool of processes."""
    if engine == "processes":
        yield None
    elif engine == "dask":
        from distributed import Client

        with Client() as client:  # Client("tcp://scheduler:8786") for a cluster that runs
            yield client.get_executor()
    elif engine == "ray":
        from shardio.parallel import RayExecutor

        with RayExecutor() as executor:  # in the Ray of ray.init(...), else in a new one
            yield executor
    elif engine == "mpi":
        from mpi4py.futures import MPIPoolExecutor

        with MPIPoolExecutor() as executor:
            yield executor
    else:
        raise SystemExit(__doc__)


def main(engine: str, url: str) -> None:
    """Write 10,000 records."""
    with executor_of(engine) as executor:
        report = shardio.write_dataset(
            url,
            range(0, 10_000, 100),
            squares,
            schema=SCHEMA,
            executor=executor,
            session="squares",
            progress=True,
        )
    print(
        f"version {report.version}: {report.records}, {report.tasks} tasks, {report.reused} of an earlier run"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
