"""The script that the documentation gives for job arrays runs, resumes and commits; so do those around it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

import shardio

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "array_job.py"
PAGE = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"^```bash\n(#!.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
(SBATCH,) = (script for script in SCRIPTS if "--array" in script)


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


@pytest.mark.parametrize("text", re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
def test_kubernetes_takes_the_manifests(text) -> None:
    for manifest in yaml.safe_load_all(text):
        kubernetes_validate.validate(manifest, "1.31", strict=True)


@pytest.mark.parametrize("script", SCRIPTS)
def test_shellcheck_finds_nothing_in_the_batch_scripts(script, tmp_path) -> None:
    (tmp_path / "birds.sh").write_text(script, encoding="utf-8")
    program = Path(sys.executable).with_name("shellcheck")
    found = subprocess.run([program, tmp_path / "birds.sh"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


def _command(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.mark.slow
def test_a_task_that_gets_term_is_requeued_and_continues(tmp_path) -> None:
    """The batch script as it is printed, with `srun` and `scontrol` that do what SLURM's do to one task."""
    (tmp_path / "bin").mkdir()
    url, began = tmp_path / "ds", tmp_path / "began"
    _command(tmp_path / "bin" / "srun", 'exec "$@"')
    _command(tmp_path / "bin" / "scontrol", f'echo "$@" >> {tmp_path}/queue')
    _command(tmp_path / "bin" / "python", f'exec {sys.executable} "$@"')
    # The task waits half-way in its first run, until it is told to end: in short sleeps, because one that
    # begins when a signal has just come is not ended by it.
    job = SCRIPT.read_text(encoding="utf-8").replace(
        "            out.write(record)",
        "            out.write(record)\n"
        f"            if record['id'] == 700 and not pathlib.Path({str(began)!r}).exists():\n"
        "                while out.written['train'] < 348: time.sleep(0.01)\n"
        f"                pathlib.Path({str(began)!r}).touch(); [time.sleep(0.1) for _ in range(1000)]",
    )
    job = job.replace("import shardio\n", "import pathlib, time\nimport shardio\n", 1)
    job = job.replace("commit=False)", "commit=False, shard_bytes=4000, block_bytes=1000)")
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "array_job.py").write_text(job, encoding="utf-8")
    script = SBATCH.replace("url=s3://bucket/birds", f"url={url}").replace(" 512 &", " 2 1000 &")
    (tmp_path / "birds.sh").write_text(script, encoding="utf-8")
    paths = f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": paths, "PYTHONPATH": str(ROOT), "SLURM_ARRAY_JOB_ID": "42"}

    def start(task: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "birds.sh"], cwd=tmp_path, env={**env, "SLURM_ARRAY_TASK_ID": str(task)},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    first = start(0)
    while not began.exists():
        assert first.poll() is None
        time.sleep(0.02)
    first.send_signal(signal.SIGTERM)
    assert first.wait(600) == 0
    first.stdout.close()
    assert (tmp_path / "queue").read_text(encoding="utf-8") == "requeue 42_0\n"
    again = start(0).communicate()[0]
    found = re.fullmatch(r"task 0: 500 records, (\d+) of them by an earlier run\n", again)
    assert found is not None
    assert int(found[1]) == 348, "what was stored before TERM is kept"
    start(1).communicate()
    shardio.commit(url, session="birds-1", tasks=2)
    assert sorted(int(value["id"]) for value in shardio.open(url)) == list(range(1000))
    assert shardio.verify(url).ok
