"""Worker processes that start from nothing: what they need travels by pickle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shardio
from shardio.torch import StreamingDataLoader, StreamingDataset
from tests.streaming.datasets import flat, plan, write


def augment(value, rng):
    return {"n": value["n"], "r": rng.random()}


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_the_batches_are_those_of_threads(tmp_path, method):
    url = write(tmp_path / "d", [70, 5, 125], compression="zstd")
    ds = shardio.open(url)[10:190]
    options = {"global_batch": 6, "plan": plan(workers=2), "remainder": "keep", "random_transform": augment}
    here = StreamingDataLoader(StreamingDataset(ds, **options))
    there = StreamingDataLoader(
        StreamingDataset(ds, **options),
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context=method,
    )
    head = iter(here)
    for _ in range(5):
        next(head)
    state = here.state_dict()
    head.close()
    here.load_state_dict(state)
    there.load_state_dict(state)
    seen = []
    for _ in range(2):  # the rest of one epoch, and the next one
        for mine, theirs in zip(here, there, strict=True):
            for name in ("n", "r"):
                assert mine[name].numpy().tobytes() == theirs[name].numpy().tobytes()
            seen.append(theirs["n"].tolist())
    assert there.state_dict() == here.state_dict()
    there.close()
    assert len(seen) == 25 + 30
    assert np.unique(flat(seen[25:])).tolist() == list(range(10, 190))


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("method", ["fork", "threads", "forkserver", "spawn"])
def test_a_program_that_ends_says_nothing(tmp_path, method):
    """No traceback of torch's or multiprocessing's, in the program or in its worker processes."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONWARNINGS": "ignore"}
    command = [
        sys.executable,
        Path(__file__).with_name("endings.py"),
        str(write(tmp_path / "d", [40])),
        method,
    ]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "4\n", "")
