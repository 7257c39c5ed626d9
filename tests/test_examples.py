"""Every example in a docstring runs and gives what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import shardio

FOLDER = Path(shardio.__file__).parent
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _modules() -> list[str]:
    """Return every module of the package with an example in it; tests/jax runs those of `shardio.jax`."""
    paths = [path for path in sorted(FOLDER.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]
    names = [("shardio", *path.relative_to(FOLDER).with_suffix("").parts) for path in paths]
    names = [name for name in names if name[1] != "jax"]
    return [".".join(part for part in name if part != "__init__") for name in names]


@pytest.mark.parametrize("name", _modules())
def test_examples(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=FLAGS)
    assert result.attempted > 0
    assert result.failed == 0
