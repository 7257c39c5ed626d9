"""docs/training/jax.md in Grain, which imports JAX: in a process of its own, killed and resumed."""

from __future__ import annotations

import collections
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import shardio
from tests.streaming.datasets import flat
from tests.suites.pages import code_of

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, os, signal, sys
from absl import app

OUT, STATE, KILL, WORKERS = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def main(argv):
    from grain.sources import RandomAccessDataSource
    assert isinstance(birds, RandomAccessDataSource)
    steps = 0
    def step(batch):
        nonlocal steps
        steps += 1
        print(json.dumps(batch["label"].tolist()), file=out, flush=True)
        return steps % 7
    state = json.loads(open(STATE).read()) if os.path.exists(STATE) else None
    with open(OUT, "a") as out:
        while True:
            before = steps
            state = fit(step, state, WORKERS)
            if steps == KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            with open(STATE, "w") as saved:
                json.dump(state, saved)
            if steps % 7 or steps == before:
                break

if __name__ == "__main__":
    app.run(main, sys.argv[:1])
"""


def test_several_records_are_one_read(monkeypatch, tmp_path) -> None:
    """By the names that torch's DataLoader and Grain look for."""
    with shardio.DatasetWriter(tmp_path / "ds", {"n": "int64"}) as out:
        for n in range(50):
            out.write({"n": n})
    ds = shardio.open(tmp_path / "ds")
    for read in (ds.__getitems__, ds._getitems, ds[::-1].__getitems__):
        assert [int(value["n"]) for value in read([7, 3, 7])] in ([7, 3, 7], [42, 46, 42])
    reads = []
    read = type(ds).read
    monkeypatch.setattr(
        type(ds), "read", lambda self, positions: reads.append(positions) or read(self, positions)
    )
    from torch.utils.data import DataLoader

    assert flat(batch["n"].tolist() for batch in DataLoader(ds, batch_size=10)) == list(range(50))
    assert len(reads) == 5


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("workers", [0, 2])
def test_grain_is_killed_and_resumes(tmp_path, workers) -> None:
    url = str(tmp_path / "birds")
    with shardio.DatasetWriter(url, {"label": "int64"}) as out:
        for n in range(100):
            out.write({"label": n}, split="train")
    code = code_of("training/jax.md", "Grain", **{"s3://bucket/birds": url, "256": "10"})
    (tmp_path / "train.py").write_text(code + SCRIPT)

    def job(kill: int) -> int:
        command = [sys.executable, "train.py", "seen", "state", str(kill), str(workers)]
        done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=400)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
        return done.returncode

    assert job(21) == -signal.SIGKILL
    seen = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    assert len(seen) == 21
    (tmp_path / "seen").write_text("".join(f"{json.dumps(batch)}\n" for batch in seen[:14]))
    assert job(0) == 0
    batches = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    assert batches[14:21] == seen[14:]
    assert collections.Counter(flat(batches)) == dict.fromkeys(range(100), 3)
    epochs = [flat(batches[epoch * 10 :][:10]) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(100)) for epoch in epochs)
    assert epochs[0] != epochs[1]
