"""The pages of docs/training run as they are: killed in mid-epoch and resumed, each epoch is seen once."""

from __future__ import annotations

import numpy as np
import pytest

import shardio
from tests.streaming.datasets import flat
from tests.suites.once import made_once
from tests.torch.trainers import run_all

EPOCHS, STEPS = 3, 10
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
ALONE = {**QUIET, "devices": 1}
TRAINER = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "logging_strategy": "no"}
DDP = {**QUIET, "devices": 2, "strategy": "ddp"}
# By name: page, processes, options, how it resumes from a folder, and the steps of the latest checkpoint, one
# of 3, 6, 9, 13, 16 where each epoch counts its own.
KILLED = {
    "lightning": ("Lightning", 1, ALONE, {"ckpt_path": "step=15.ckpt"}, 15),
    "lightning, two processes": ("Lightning", 2, DDP, {"ckpt_path": "step=15.ckpt"}, 15),
    "transformers": ("Trainer", 1, TRAINER, {"resume_from_checkpoint": "checkpoint-15"}, 15),
    "accelerate": ("accelerate", 1, {}, {"resume": True}, 16),
    "accelerate, two processes": ("accelerate", 2, {}, {"resume": True}, 16),
    "torchdata": ("torchdata", 1, {}, {"resume": True}, 16),
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


def jobs_of(url, place):
    """Return all jobs: each of `KILLED` killed, then resumed, and some more."""
    jobs = []
    for name, (page, world_size, fit, resume, _) in KILLED.items():
        folder = place / f"{name}.checkpoints"
        folder.mkdir()
        given = {"page": page, "url": url, "world_size": world_size}
        given["folder"] = str(folder / "state.pt" if page == "torchdata" else folder)
        there = {key: value if value is True else str(folder / value) for key, value in resume.items()}
        jobs.append({**given, "name": name, "kill": 18, "fit": fit})
        jobs.append({**given, "name": f"{name}, resumed", "fit": {**fit, **there}})
    given = {"url": url, "folder": str(place / "other")}
    left = {**ALONE, "limit_train_batches": 4, "enable_checkpointing": True}
    jobs.append({**given, "name": "lightning, left early", "page": "Lightning", "fit": left})
    jobs.append({**given, "name": "skip", "work": "skip_first", "skip": 4, "world_size": 2})
    for workers in (0, 2):
        fit = {**ALONE, "enable_checkpointing": False}
        plain = {"work": "plain_evaluation", "workers": workers, "fit": fit}
        jobs.append({**given, **plain, "name": f"evaluated, {workers} workers"})
    return [{**job, "out": str(place / job["name"])} for job in jobs]


@pytest.fixture(scope="module")
def seen(url, tmp_path_factory):
    place = tmp_path_factory.mktemp("jobs")
    return made_once(tmp_path_factory, "training", lambda: run_all(jobs_of(url, place)))


def together(shares):
    """Return the global batches of the steps that all ranks have."""
    return [flat(share[step] for share in shares) for step in range(min(map(len, shares)))]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", KILLED)
def test_killed_in_mid_epoch_and_resumed(seen, expected, name):
    """On two processes, too: the very global batches that one would have seen."""
    saved = KILLED[name][-1]
    before, after = together(seen[name]), together(seen[f"{name}, resumed"])
    assert before == expected[: len(before)]
    assert len(before) >= saved
    assert after == expected[saved:]
    epochs = [sorted(flat((before[:saved] + after)[e * STEPS :][:STEPS])) for e in range(EPOCHS)]
    assert epochs == [list(range(100))] * EPOCHS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lightning_leaves_epochs_early(seen, expected):
    """`limit_train_batches`: the next epoch has batches of its own, not the same first ones again."""
    found = together(seen["lightning, left early"])
    assert found == [batch for epoch in range(EPOCHS) for batch in expected[epoch * STEPS :][:4]]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_accelerate_skips_first_batches_on_two_processes(seen, expected):
    shares = seen["skip"]
    assert [len(share) for share in shares] == [STEPS - 4 + STEPS] * 2
    assert together(shares) == expected[STEPS + 4 :]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("workers", [0, 2])
def test_another_loader_in_lightning_may_evaluate(seen, workers):
    """Two epochs of evaluation in a fit, then validate, test and predict: each sees every record once."""
    (share,) = seen[f"evaluated, {workers} workers"]
    for n in range(5):
        assert sorted(flat(share[n * STEPS : (n + 1) * STEPS])) == list(range(100))
    assert len(share) == 5 * STEPS
