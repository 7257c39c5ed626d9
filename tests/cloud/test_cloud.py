"""`make cloud-test`, tried on the servers that there are here: a law that fails here would fail anywhere."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import azure, gcs, s3

ROOT = Path(__file__).parents[2]
Place = tuple[str, dict[str, str], str]  # a URL, what says where it is, the one engine that reads there


@contextlib.contextmanager
def on_s3(_folder: Path) -> Iterator[Place]:
    with s3.moto() as endpoint:
        keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
        where = {"AWS_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": "us-east-1", **keys}
        yield f"s3://{s3.make_bucket(endpoint)}", where, ""


@contextlib.contextmanager
def on_gcs(_folder: Path) -> Iterator[Place]:
    with gcs.gcs_emulator() as endpoint:
        options = {f"FSSPEC_GS_{name.upper()}": value for name, value in gcs.options_for(endpoint).items()}
        yield f"gs://{gcs.BUCKET}", options, "fsspec"


@contextlib.contextmanager
def on_azure(folder: Path) -> Iterator[Place]:
    with azure.azurite(folder) as endpoint:
        options = azure.options_for(endpoint)
        where = {"AZURE_STORAGE_CONNECTION_STRING": options["connection_string"]}
        yield f"az://{azure.make_container(endpoint)}", where, ""


@pytest.mark.slow
@pytest.mark.timeout(1200)  # the laws, each within its own time
@pytest.mark.parametrize("place", [on_s3, on_gcs, on_azure])
def test_all_laws_hold_and_nothing_is_left(place, tmp_path):
    program = "import json, sys; from tests.cloud.__main__ import run; print(json.dumps(run(*sys.argv[1:])))"
    with place(tmp_path / "server") as (url, where, engine):
        done = subprocess.run(
            [sys.executable, "-c", program, url, engine],
            cwd=ROOT, env={**os.environ, **where}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "All that is written is below" in done.stdout
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["left behind"] == []
    failed = {name: law["why"] for name, law in report["laws"].items() if law["outcome"] != "passed"}
    assert not failed, failed
    assert report["passed"] > 50
