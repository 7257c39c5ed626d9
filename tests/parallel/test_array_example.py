"""The script that the documentation gives for job arrays runs, resumes and commits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import shardio

SCRIPT = Path(__file__).parents[2] / "examples" / "array_job.py"


@pytest.mark.slow
def test_the_script_for_job_arrays(tmp_path) -> None:
    url = str(tmp_path / "ds")
    for task in (1, 0, 2, 0):
        out = subprocess.run(
            [sys.executable, SCRIPT, url, "birds-1", str(task), "3", "100"],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
    assert out == "task 0: 34 records, 34 of them by an earlier run\n"
    shardio.commit(url, session="birds-1", tasks=3)
    assert sorted(int(value["id"]) for value in shardio.open(url)) == list(range(100))
