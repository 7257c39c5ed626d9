"""What is said where nothing was, or can be, compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_an_import_without_the_compiled_modules_says_what_to_do() -> None:
    code = "import importlib.util as u; u.find_spec = lambda name: None; import shardio.kernels"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: shardio's compiled modules are missing: ")
    assert "pip install" in last
    assert "C compiler" in last


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="the sources of the build are not here")
def test_a_build_without_a_compiler_says_what_to_install(tmp_path: Path) -> None:
    build = [sys.executable, "setup.py", "-q", "build_ext", "--force"]
    build += ["--build-temp", str(tmp_path / "temp"), "--build-lib", str(tmp_path / "lib")]
    environment = os.environ | {"CC": str(tmp_path / "no-compiler")}
    done = subprocess.run(build, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("Building shardio from source needs a C compiler and the headers of Python")
    assert "no-compiler" in last
    assert not list(tmp_path.rglob("*.so"))
