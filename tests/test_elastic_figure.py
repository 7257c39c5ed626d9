"""The figure on the front page is that of a run, and says what the run did."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shardio

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def elastic():
    spec = importlib.util.spec_from_file_location("elastic", ROOT / "examples" / "elastic.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def steps_of(job) -> dict[int, list[int]]:
    """Return the global batch of each step that all ranks finished."""
    found: dict[int, list[int]] = {}
    for step in min((dict(rank) for rank in job), key=len):
        found[step] = [position for rank in job for position in dict(rank)[step]]
    return found


def marks(svg: str) -> list[float]:
    """Return the coordinates of all that a figure draws."""
    paths = re.findall(r' (?:d|x|y)="([^"]*)"', svg)
    return [float(number) for path in paths for number in re.findall(r"-?\d+(?:\.\d+)?", path)]


def check(elastic, recorded) -> None:
    seen = elastic.times_seen(recorded)
    assert sorted(seen) == list(range(recorded["records"]))
    assert set(seen.values()) == {1}
    assert (len(recorded["before"]), len(recorded["after"])) == (8, 3)
    before, after = steps_of(recorded["before"]), steps_of(recorded["after"])
    both = before.keys() & after.keys()
    assert both, "the first job was killed after its checkpoint"
    assert all(before[step] == after[step] for step in both), "global batches are the same in both jobs"


@pytest.fixture(scope="module")
def recorded():
    return json.loads((ROOT / "docs" / "figures" / "elastic.json").read_text())


def test_the_recorded_run_saw_each_record_once(elastic, recorded) -> None:
    check(elastic, recorded)


@pytest.mark.slow
def test_the_figure_is_that_of_the_recorded_run(elastic, recorded, tmp_path) -> None:
    elastic.draw(recorded, tmp_path)
    for theme in elastic.THEMES:
        drawn = (tmp_path / f"elastic-{theme}.svg").read_text()
        kept = (ROOT / "docs" / "figures" / f"elastic-{theme}.svg").read_text()
        # Every mark is where the run puts it, to a tenth of a point.
        np.testing.assert_allclose(
            marks(kept), marks(drawn), atol=0.1, err_msg="draw it again: examples/elastic.py"
        )
        assert "4,096 of 4,096 records were learnt from exactly once" in kept


@pytest.mark.slow
def test_a_new_run_sees_each_record_once(elastic, tmp_path) -> None:
    arguments = [sys.executable, ROOT / "examples" / "elastic.py", "run", tmp_path / "run.json"]
    subprocess.run(arguments, check=True, timeout=600)
    check(elastic, json.loads((tmp_path / "run.json").read_text()))


def test_the_order_is_that_of_one_process(elastic, recorded, tmp_path) -> None:
    layout = {"shard_bytes": 4096, "block_bytes": 256}
    with shardio.DatasetWriter(tmp_path / "d", schema={"n": "int64"}, **layout) as out:
        for n in range(recorded["records"]):
            out.write({"n": n})
    stream = shardio.stream(
        shardio.open(tmp_path / "d"),
        global_batch=recorded["global_batch"],
        seed=0,
        remainder="keep",
        positions=True,
    )
    alone = dict(enumerate((batch["_position"].tolist() for batch in stream), 1))
    assert {**steps_of(recorded["before"]), **steps_of(recorded["after"])} == alone
