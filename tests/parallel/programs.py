"""Drivers as programs of their own, which the tests kill."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def driver(**options) -> Iterator[subprocess.Popen]:
    """Run `tests/parallel/driver.py` while the block lasts; what it prints is read from its stdout."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.parallel.driver", json.dumps(options)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finished(process: subprocess.Popen) -> list:
    """Wait for a driver to end well; return version, reused tasks and records by split."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("report ")]
    return json.loads(line.removeprefix("report "))


def wait_until(condition: Callable[[], object], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


def workers_of(process: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def wait_until_gone(processes: list[psutil.Process]) -> None:
    wait_until(
        lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in processes)
    )
