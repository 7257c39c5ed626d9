"""docs/training/transformers.md in the real trainers: killed in mid-epoch, resumed, samples counted."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardio
from tests.streaming.datasets import flat
from tests.suites.once import made_once
from tests.torch.trainers import run_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]
STEPS = 26  # of 10 samples; an epoch has 10
FIT = {"max_steps": STEPS, "save_steps": 4, "report_to": [], "use_cpu": True, "disable_tqdm": True,
       "logging_strategy": "no", "save_only_model": False}  # fmt: skip
ONE, TWO = ({**FIT, "per_device_train_batch_size": size} for size in (10, 5))
ACCUMULATED = {**FIT, "per_device_train_batch_size": 5, "gradient_accumulation_steps": 2}


def jobs_of(url: str, folder: Path) -> list[dict]:
    """Return SFTTrainer killed on two processes and resumed on one, in two ways; and accelerate's loaders."""
    sft = {"url": url, "work": "fine_tune", "folder": str(folder / "sft")}
    half = {"url": url, "work": "fine_tune", "folder": str(folder / "accumulated")}
    loader = {"url": url, "work": "stateful", "folder": str(folder / "state"), "world_size": 2}
    jobs = [
        {**sft, "name": "sft", "world_size": 2, "kill": 15, "fit": TWO},
        {**sft, "name": "sft, resumed", "fit": ONE},
        {**half, "name": "accumulated", "kill": 2 * 14 + 1, "fit": ACCUMULATED},
        {**half, "name": "accumulated, resumed", "world_size": 2, "fit": TWO},
        {**loader, "name": "accelerate", "how": "state", "kill": 8},
        {**loader, "name": "accelerate, resumed", "how": "state", "resume": True},
        {**loader, "name": "accelerate, skipped", "how": "skip", "skip": 6},
    ]
    return [{**job, "out": str(folder / job["name"]), "seconds": 400} for job in jobs]


def run_jobs(folder: Path) -> dict[str, list[list[list[int]]]]:
    """Return what each rank saw, by job."""
    url = str(folder / "texts")
    with shardio.DatasetWriter(url, {"text": "text", "n": "int64"}, block_bytes=256) as out:
        for n in range(100):
            out.write({"text": f"{n} 1 2 3", "n": n})
    seen = run_all(jobs_of(url, folder))
    seen["expected"] = [
        batch["n"].tolist()
        for stream in [shardio.stream(shardio.open(url), global_batch=10, seed=0, scratch=False)]
        for _ in range(3)
        for batch in stream
    ]
    return seen


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return made_once(tmp_path_factory, "trl", lambda: run_jobs(tmp_path_factory.mktemp("trl")))


def steps_of(shares: list[list[list[int]]]) -> list[list[int]]:
    """Return the samples of the steps that all ranks have, in numerical order."""
    return [sorted(flat(step)) for step in zip(*shares, strict=False)]


def in_order(steps: list[list[int]]) -> list[list[int]]:
    return [sorted(step) for step in steps]


def test_sft_is_killed_on_two_processes_and_resumes_on_one(seen) -> None:
    """The total batch of a step is that of a stream without a trainer, over three epochs."""
    before, after = steps_of(seen["sft"]), steps_of(seen["sft, resumed"])
    expected = in_order(seen["expected"])
    assert before == expected[: len(before)]
    assert len(before) >= 13
    assert after == expected[12:STEPS]
    assert sorted(flat(before[:10])) == list(range(100))
    assert sorted(flat(before[10:12] + after[:8])) == list(range(100))


def test_accumulated_steps_count_once(seen) -> None:
    micro = seen["accumulated"][0]
    before = [sorted(first + second) for first, second in zip(micro[::2], micro[1::2], strict=False)]
    after = steps_of(seen["accumulated, resumed"])
    expected = in_order(seen["expected"])
    assert before == expected[: len(before)]
    assert after == expected[12:STEPS]


def test_accelerate_resumes_from_its_state_as_if_batches_were_skipped(seen) -> None:
    before, after = steps_of(seen["accelerate"]), steps_of(seen["accelerate, resumed"])
    expected = in_order(seen["expected"])[:10]
    assert before == expected[: len(before)]
    assert after == expected[6:] == steps_of(seen["accelerate, skipped"])
