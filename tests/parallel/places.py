"""Where writes are killed: local folders, an S3 server of its own process, a Dask cluster of two workers."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import shardio
from shardio.errors import NotFoundError
from tests.servers.processes import held_port, running
from tests.servers.s3 import PROGRAM, make_bucket, options_for


@contextlib.contextmanager
def moto_program() -> Iterator[str]:
    """Run moto's S3 as a program, so that processes which are forked here inherit nothing of it."""
    with held_port() as port:
        # It writes a line for each request, and stops when they are not read.
        quiet = f"exec {sys.executable} {PROGRAM} {port} > /dev/null 2>&1"
        with running(["/bin/sh", "-c", quiet], port, env=dict(os.environ)):
            yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def dask_cluster() -> Iterator[Any]:
    """Run two worker processes that come back when they are killed."""
    import dask
    from distributed import LocalCluster

    # Without a dashboard it would still listen at one port, which another test may have.
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1, "distributed.nanny.environ": {}}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50
        ) as cluster,
    ):
        yield cluster


class Place:
    """Datasets in one kind of place."""

    def __init__(self, tmp_path: Path, endpoint: str | None) -> None:
        self._tmp_path = tmp_path
        self.options = None if endpoint is None else {"storage_options": options_for(endpoint)}
        self._bucket = None if endpoint is None else make_bucket(endpoint)

    def url(self) -> str:
        """Return a place where nothing is yet."""
        name = secrets.token_hex(4)
        return str(self._tmp_path / name) if self._bucket is None else f"s3://{self._bucket}/{name}"

    @property
    def storage(self) -> dict[str, Any]:
        return self.options or {}

    def numbers(self, url: str) -> list[int] | None:
        """Return what is seen there, None for no dataset."""
        try:
            return [int(value["n"]) for value in shardio.open(url, **self.storage)]
        except NotFoundError:
            return None
