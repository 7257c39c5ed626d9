"""The pages of docs/training run as they stand: killed in mid-epoch and resumed, each epoch is seen once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shardio
from tests.streaming.datasets import flat

ROOT = Path(__file__).parents[2]
EPOCHS, STEPS = 3, 10
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
LIGHTNING = {"fit": {**QUIET, "devices": 1}, "resume": {"ckpt_path": "step=15.ckpt"}}
TRANSFORMERS = {
    "fit": {"report_to": [], "use_cpu": True, "disable_tqdm": True, "logging_strategy": "no"},
    "resume": {"resume_from_checkpoint": "checkpoint-15"},
}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    place = tmp_path_factory.mktemp("training") / "d"
    with shardio.DatasetWriter(place, schema={"x": "float32[4]", "label": "int64"}, block_bytes=256) as out:
        for n in range(100):
            out.write({"x": np.full(4, n, np.float32), "label": n % 10})
    return str(place)


@pytest.fixture(scope="module")
def expected(url):
    stream = shardio.stream(shardio.open(url), global_batch=10, seed=0)
    return [batch["x"][:, 0].astype(int).tolist() for _ in range(EPOCHS) for batch in stream]


def run(page, url, folder, out, *, kill=None, world_size=1, launcher=None, **fit):
    task = {"page": page, "url": url, "folder": str(folder), "out": str(out), "kill": kill, "fit": fit}
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, "-m", "tests.torch.trainers", json.dumps(task)]
    if launcher is not None:
        command[1:2] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}", "-m"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=280
    )
    if kill is None:
        assert done.returncode == 0, done.stderr[-3000:]
    shares = []
    for rank in range(world_size):
        lines = Path(f"{out}-{rank}").read_text(encoding="utf-8").splitlines()
        shares.append([json.loads(line) for line in lines])
    steps = min(map(len, shares))
    return [flat(share[step] for share in shares) for step in range(steps)]


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    ("page", "options", "saved"),
    [
        ("lightning", LIGHTNING, 15),
        ("transformers", TRANSFORMERS, 15),
        ("accelerate", {"fit": {}, "resume": {"resume": True}}, 16),
        ("torchdata", {"fit": {}, "resume": {"resume": True}}, 16),
    ],
)
def test_killed_in_mid_epoch_and_resumed(url, expected, tmp_path, page, options, saved):
    """`saved`: the steps of the latest checkpoint; where it counts them in each epoch, 3, 6, 9, 13, 16."""
    folder = tmp_path / "checkpoints"
    target = folder / "state.pt" if page == "torchdata" else folder
    folder.mkdir()
    before = run(page, url, target, tmp_path / "first", kill=18, **options["fit"])
    assert before == expected[: len(before)]
    assert len(before) >= saved
    resume = {
        name: value if value is True else str(folder / value) for name, value in options["resume"].items()
    }
    after = run(page, url, target, tmp_path / "second", **options["fit"], **resume)
    assert after == expected[saved:]
    epochs = [sorted(flat((before[:saved] + after)[e * STEPS :][:STEPS])) for e in range(EPOCHS)]
    assert epochs == [list(range(100))] * EPOCHS


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    ("page", "options", "saved"),
    [
        (
            "lightning",
            {**LIGHTNING, "fit": {**QUIET, "devices": 2, "strategy": "ddp"}},
            15,
        ),
        ("accelerate", {"fit": {}, "resume": {"resume": True}}, 16),
    ],
)
def test_two_processes_of_which_one_is_killed(url, expected, tmp_path, page, options, saved):
    """Over gloo; resumed on one process, which sees the very global batches that two would have seen."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    given = {"world_size": 2, "launcher": "torchrun"}
    before = run(page, url, folder, tmp_path / "first", kill=18, **given, **options["fit"])
    assert before == expected[: len(before)]
    assert len(before) >= saved
    resume = {
        name: value if value is True else str(folder / value) for name, value in options["resume"].items()
    }
    after = run(page, url, folder, tmp_path / "second", **given, **options["fit"], **resume)
    assert after == expected[saved:]
