"""`make cloud-test`, tried on a server in this process: a law that fails here would fail anywhere."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import s3

ROOT = Path(__file__).parents[2]
Place = tuple[str, dict[str, str]]  # a URL, and what says where it is
# The laws of stores are held on these servers by tests/storage already.
CHOSEN = "not TestStore or (Fsspec and creates_once)"


@contextlib.contextmanager
def on_s3(_folder: Path) -> Iterator[Place]:
    with s3.moto() as endpoint:
        keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
        where = {"AWS_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": "us-east-1", **keys}
        yield f"s3://{s3.make_bucket(endpoint)}", where


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", [on_s3])
def test_all_laws_hold_and_nothing_is_left(place, tmp_path):
    program = "import json, sys; from tests.cloud.__main__ import run; print(json.dumps(run(*sys.argv[1:])))"
    with place(tmp_path / "server") as (url, where):
        done = subprocess.run(
            [sys.executable, "-c", program, url, CHOSEN],
            cwd=ROOT, env={**os.environ, **where}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "All that is written is below" in done.stdout
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["left behind"] == []
    failed = {name: law["why"] for name, law in report["laws"].items() if law["outcome"] != "passed"}
    assert not failed, failed
    assert report["passed"] == 8
