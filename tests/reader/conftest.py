"""What several files here read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shardio


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to be served, with a dataset in it: `made`, of the numbers below 20."""
    folder = tmp_path_factory.mktemp("served")
    with shardio.DatasetWriter(folder / "made", schema={"n": "int64"}) as out:
        for n in range(20):
            out.write({"n": n}, split="train")
    return folder


@pytest.fixture
def tuning(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what changes the numbers that steer reads, so that small datasets have many runs."""

    def change(**numbers: Any) -> None:
        for name, module in list(sys.modules.items()):
            if name.startswith("shardio.reader.") and hasattr(module, "TUNING"):
                monkeypatch.setattr(module, "TUNING", replace(module.TUNING, **numbers))

    return change
