"""An S3 server in this process (moto), and buckets on it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import pathlib
import runpy
from typing import TYPE_CHECKING, Any

from tests.servers.processes import PYTHON, held_port, running

if TYPE_CHECKING:
    from collections.abc import Iterator

# An S3 server as a program, which takes its port.
PROGRAM = pathlib.Path(__file__).parents[2] / "examples" / "s3_server.py"
_numbers = itertools.count()
CREDENTIALS = {"key": "testing", "secret": "testing"}


def options_for(endpoint: str, **more: Any) -> dict[str, Any]:
    """Return storage_options, in fsspec's terms, for an S3 server at `endpoint`."""
    region = {"region_name": "us-east-1"}
    return {**CREDENTIALS, "endpoint_url": endpoint, "client_kwargs": region, **more}


@contextlib.contextmanager
def moto() -> Iterator[str]:
    """Run moto's S3 on a free port of the loopback; yield its endpoint.

    All such servers of a process share what they hold: never reset one.
    """
    from moto.server import ThreadedMotoServer

    _answer_one_at_a_time()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@functools.cache
def _answer_one_at_a_time() -> None:
    runpy.run_path(str(PROGRAM))["answer_one_at_a_time"]()


def make_bucket(endpoint: str, name: str | None = None) -> str:
    """Create a bucket of a new name and return the name."""
    name = name or f"bucket-{next(_numbers)}"
    with _client(endpoint) as client:
        client.create_bucket(Bucket=name)
    return name


def remove_bucket(endpoint: str, name: str) -> None:
    """Remove a bucket with all that is in it, if there is one."""
    with _client(endpoint) as client:
        if name not in [each["Name"] for each in client.list_buckets()["Buckets"]]:
            return
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=name):
            for each in page.get("Contents", ()):
                client.delete_object(Bucket=name, Key=each["Key"])
        client.delete_bucket(Bucket=name)


def _client(endpoint: str) -> Any:
    import boto3

    return contextlib.closing(
        boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
            region_name="us-east-1",
        )
    )


@contextlib.contextmanager
def ministack() -> Iterator[str]:
    """Run ministack, an S3 server of another make, as a program of its own; yield its endpoint."""
    with held_port() as port:
        env = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "SERVICES": "s3", "LOG_LEVEL": "ERROR"}
        env["PATH"] = os.environ["PATH"]
        with running([str(PYTHON / "ministack")], port, env=env):
            yield f"http://127.0.0.1:{port}"
