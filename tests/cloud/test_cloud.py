"""`make cloud-test`, tried on a server in this process: a law that fails here would fail anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import s3

ROOT = Path(__file__).parents[2]
# The laws of stores and of races are held on this server by tests/storage and tests/promises already.
CHOSEN = "collected or goes_on or (Fsspec and creates_once)"


@pytest.mark.slow
def test_laws_hold_and_nothing_is_left():
    program = "import json, sys; from tests.cloud.__main__ import run; print(json.dumps(run(*sys.argv[1:])))"
    with s3.moto() as endpoint:
        url = f"s3://{s3.make_bucket(endpoint)}"
        keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
        where = {"AWS_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": "us-east-1", **keys}
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
    assert report["passed"] == 3
