"""What several files here read."""

from __future__ import annotations

from pathlib import Path

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
