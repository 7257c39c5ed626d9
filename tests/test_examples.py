"""Every example in a docstring runs and gives what it says."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import shardio

FOLDER = Path(shardio.__file__).parent
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _modules() -> list[str]:
    """Return every module of the package with an example in it."""
    paths = [path for path in sorted(FOLDER.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]
    names = [("shardio", *path.relative_to(FOLDER).with_suffix("").parts) for path in paths]
    return [".".join(part for part in name if part != "__init__") for name in names]


@pytest.mark.parametrize("name", _modules())
def test_examples(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name.startswith("shardio.jax"):
        # JAX has threads, which no fork of the process of the tests survives.
        tested = f"doctest.testmod(m, optionflags={FLAGS})"
        code = f"import doctest, {name} as m; r = {tested}; assert r.attempted and not r.failed"
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=FLAGS)
    assert result.attempted > 0
    assert result.failed == 0
