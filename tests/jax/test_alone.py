"""What runs JAX runs in a process of its own: whatever forks that process afterwards could hang forever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
def test_in_a_process_of_its_own() -> None:
    """The tests of in_jax.py, among them the page docs/training/jax.md."""
    options = ["-q", "-p", "no:cacheprovider", "--override-ini=timeout=600"]
    command = [sys.executable, "-m", "pytest", *options, str(HERE / "in_jax.py")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
