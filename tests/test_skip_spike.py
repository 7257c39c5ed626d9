"""The example that skips loss spikes trains on every other record exactly once, and names what it skipped."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import shardio

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("skip_spike", ROOT / "examples" / "skip_spike.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_spikes_are_skipped_and_all_else_is_used_once(example, tmp_path, capsys) -> None:
    url = str(tmp_path / "points")
    example.main(url)
    weights, skipped, trained = example.fit(url)
    stream = shardio.stream(shardio.open(url), global_batch=20, seed=0, positions=True)
    steps = [batch["_position"].tolist() for batch in stream]
    assert trained == [n for step, positions in enumerate(steps) if step not in skipped for n in positions]
    listed = {step: [record.position for record in records] for step, records in skipped.items()}
    assert listed == {step: steps[step] for step in skipped}
    assert len(skipped) <= len(example.BROKEN)
    assert set(example.BROKEN) <= {n for positions in listed.values() for n in positions}
    assert np.allclose(weights, example.SLOPES, atol=0.1)
    printed = capsys.readouterr().out
    assert all(f"row {n} of" in printed for n in example.BROKEN)
