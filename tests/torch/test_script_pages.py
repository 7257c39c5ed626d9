"""Whole scripts of docs/training: torchrun killed and resumed on more processes, pretraining from text."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shardio
from tests.streaming.datasets import flat
from tests.suites.pages import code_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]
RECORDS, EPOCHS, STEPS = 120, 3, 10
NOTE = """
import json, os, signal
OUT = open(f"seen-{os.environ['RANK']}", "a")
CALLS = []

def note(batch):
    CALLS.append(1)
    if os.environ.get("KILL") == f"{os.environ['RANK']} {len(CALLS)}":
        os.kill(os.getpid(), signal.SIGKILL)
    OUT.write(json.dumps(batch["x"][:, 0].int().tolist()) + chr(10))
    OUT.flush()

"""


def test_torchrun_is_killed_and_resumes_on_three_processes(tmp_path) -> None:
    url = str(tmp_path / "birds")
    with shardio.DatasetWriter(url, {"x": "float32[4]", "label": "int64"}, block_bytes=256) as out:
        for n in range(RECORDS + 50):
            value = {"x": np.full(4, n, np.float32), "label": n % 10}
            out.write(value, split="train" if n < RECORDS else "val")
    small = {"s3://bucket/birds": url, "240": "12", "100": "3"}
    noted = {"optimizer.step()": "note(batch); optimizer.step()"}
    code = code_of("training/torchrun.md", "", **small, **noted)
    (tmp_path / "train.py").write_text(NOTE + code)

    def job(processes: int, kill: str = "") -> tuple[int, list[list[int]], str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        environment = {**os.environ, "KILL": kill, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, str(processes), "train.py"], cwd=tmp_path, env=environment, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400,
        )  # fmt: skip
        shares = []
        for rank in range(processes):
            seen = tmp_path / f"seen-{rank}"
            shares.append([json.loads(line) for line in seen.read_text().splitlines()])
            seen.unlink()
        return done.returncode, [flat(step) for step in zip(*shares, strict=False)], done.stdout

    stream = shardio.stream(shardio.open(url, "train"), global_batch=12, seed=0)
    expected = [batch["x"][:, 0].astype(int).tolist() for _ in range(EPOCHS) for batch in stream]
    code, before, _ = job(2, "1 18")
    assert code
    assert before == expected[: len(before)]
    assert len(before) >= 16
    checkpoint = (tmp_path / "checkpoint.pt").read_bytes()
    code, after, printed = job(3)
    if code and "shardio" not in printed:
        # Once in some hundred jobs torch's own processes do not come or go together.
        (tmp_path / "checkpoint.pt").write_bytes(checkpoint)
        code, after, printed = job(3)
    assert code == 0, printed
    assert after == expected[16:]  # the latest checkpoint is of step 6 of epoch 1
    assert len(re.findall(r"^epoch [12]: \d+\.\d+$", printed, re.MULTILINE)) == 2


PRETRAIN = """
import os, signal, sys
import torch
from tests.torch.trainers import tiny_model

model, tokenizer = tiny_model()
texts = [{"text": " ".join(str((n + word) % 100) for word in range(3 + n % 5))} for n in range(200)]
if not Path("rows").exists():
    write_rows("rows", texts, tokenizer, 16)
rows = shardio.open("rows")
model.eval()
model.config.use_cache = False
for number in range(5):
    row = rows[number]
    example = {name: torch.tensor(column)[None] for name, column in example_of(row).items()}
    with torch.no_grad():
        logits = model(**example).logits[0]
        for segment in range(1, row["segment_ids"].max() + 1):
            own = torch.tensor(row["segment_ids"] == segment)
            alone = model(example["input_ids"][:, own]).logits[0]
            torch.testing.assert_close(logits[own], alone, rtol=1e-4, atol=1e-4)
    # Each token but a document's first is predicted once.
    shown = example["labels"][0] >= 0
    assert shown.sum() == (row["segment_ids"] > 0).sum() - row["segment_ids"].max()
model.train()
out, kill, calls = open(sys.argv[1], "a"), int(sys.argv[2]), []

def note(module, arguments):
    calls.append(1)
    if len(calls) == kill:
        os.kill(os.getpid(), signal.SIGKILL)
    out.write(json.dumps(arguments[0].tolist()) + chr(10))
    out.flush()

model.get_input_embeddings().register_forward_pre_hook(note)
fit(model, "rows", "out", max_steps=20, save_steps=4, per_device_train_batch_size=5, report_to=[],
    use_cpu=True, disable_tqdm=True, logging_strategy="no")
"""


def test_pretraining_is_killed_and_resumes(tmp_path, monkeypatch) -> None:
    (tmp_path / "train.py").write_text(code_of("training/transformers.md", "Pretrain") + PRETRAIN)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "HF_HUB_OFFLINE": "1"}

    def job(name: str, kill: int) -> int:
        command = [sys.executable, "train.py", name, str(kill)]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True, timeout=400
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
        return done.returncode

    assert job("first", 11) == -signal.SIGKILL
    assert job("second", 0) == 0
    first, second = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("first", "second")
    )
    stream = shardio.stream(shardio.open(tmp_path / "rows"), global_batch=5, seed=0, scratch=False)
    expected = [batch["input_ids"].tolist() for _ in range(3) for batch in stream][:20]
    assert first == expected[:10]
    assert second == expected[8:]
