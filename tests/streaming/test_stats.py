"""Figures of a stream: what was delivered, what was read, and where the time went."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shardio
from shardio.streaming import LoaderStats
from shardio.torch import StreamingDataLoader, StreamingDataset
from tests.streaming.datasets import memory_url, write
from tests.suites.errors import refused

ROOT = Path(__file__).parents[2]
SLEEP = 0.001


def slow(value):
    time.sleep(SLEEP)
    return value


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    url = write(tmp_path_factory.mktemp("stats") / "d", [70, 30], compression="zstd")
    return shardio.open(url, mmap=False)


def loader_of(ds, how, **options):
    data = StreamingDataset(ds, global_batch=10, **options)
    return StreamingDataLoader(data, **how)


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("how", [{"num_threads": 0}, {"num_threads": 3}, {"num_workers": 2}])
def test_figures_of_an_epoch(ds, how):
    """Counts are exact wherever the work was done; no second that a transform slept is lost."""
    loader = loader_of(ds, how, transform=slow)
    for epoch in range(2):  # figures start again
        read = 0
        for batch in loader:
            read += len(batch["n"])
        figures = loader.stats.epoch
        assert (figures.steps, figures.records) == (10, 100) == (len(loader), read), epoch
        assert figures.record_bytes == sum(
            len(payload) for payload in shardio.open(ds.source.url, decode=False)
        )
        # Each process opens the one window that holds all, and before it the records of its first batch.
        assert 0 < figures.bytes_read <= 2 * how.get("num_workers", 1) * ds.num_bytes
        assert figures.transform_seconds >= 100 * SLEEP
        assert figures.fetch_seconds > 0
        assert figures.decode_seconds > 0
        assert 0 < figures.wait_share <= 1
        assert figures.records_per_second == figures.records / figures.seconds
    loader.close()


def test_spans_add_up_to_the_epoch(ds):
    stream = shardio.stream(ds, global_batch=10)
    told = []
    stream.stats.every(3, lambda figures, step: told.append((step, figures.steps, figures.records)))
    spans = []
    for step, _ in enumerate(stream, 1):
        if step % 4 == 0:
            spans.append(stream.stats.since_last())
    spans.append(stream.stats.since_last())
    assert told == [(3, 3, 30), (6, 3, 30), (9, 3, 30)]
    assert [span.steps for span in spans] == [4, 4, 2]
    epoch = stream.stats.epoch
    for name in ("records", "record_bytes", "bytes_read"):
        assert sum(getattr(span, name) for span in spans) == getattr(epoch, name)
    assert stream.stats.since_last().steps == 0


def test_time_with_the_model_is_not_waiting(ds):
    stream = shardio.stream(ds, global_batch=10)
    for _ in stream:
        time.sleep(0.02)
    figures = stream.stats.epoch
    assert figures.seconds >= 0.2
    assert figures.wait_seconds <= figures.seconds - 0.2


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ({}, "no batch"),
        ({"steps": 1, "seconds": 100.0, "wait_seconds": 1.0}, "1% .* the model is the bottleneck"),
        ({"steps": 1, "seconds": 2.0, "wait_seconds": 1.0, "fetch_seconds": 1.0}, "50% .*reading.*cache="),
        ({"steps": 1, "seconds": 2.0, "wait_seconds": 1.0, "decode_seconds": 1.0}, "decoding.*num_threads="),
        ({"steps": 1, "seconds": 2.0, "wait_seconds": 1.0, "transform_seconds": 1.0}, "num_workers="),
    ],
)
def test_one_line_says_what_to_do(figures, says):
    made = LoaderStats(**figures)
    assert re.search(says, made.advice)
    assert made.advice in str(made)


@pytest.mark.parametrize("how", [None, {"num_threads": 2}])
def test_progress_is_told(ds, how, capsys):
    for progress in (True, states := []):
        told = progress if progress is True else states.append
        options = {"global_batch": 10, "progress": told}
        loop = shardio.stream(ds, **options) if how is None else loader_of(ds, how, progress=told)
        assert len(list(loop)) == 10
    assert [(state.done, state.total, state.records) for state in states] == [
        (step, 10, 10 * step) for step in range(1, 11)
    ]
    assert "epoch 0: 100%, 10 of 10 steps" in capsys.readouterr().err


def test_every_needs_a_number(ds):
    with refused(ValueError, "steps="):
        shardio.stream(ds, global_batch=10).stats.every(0, print)


# The page's code is between a loader, and two epochs with readers of what was kept.
BEFORE = """
import sys, shardio
from shardio.torch import StreamingDataLoader, StreamingDataset
loader = StreamingDataLoader(StreamingDataset(shardio.open(sys.argv[1]), global_batch=10), num_threads=1)
"""
AFTER = """
import json, pathlib
for _ in range(2):
    for _ in loader:
        pass
writer.close()
run.finish()
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record
board = EventAccumulator(str(next(pathlib.Path("runs").iterdir()))).Reload()
tags = board.Tags()["scalars"]
scalars = {tag: [(event.step, event.value) for event in board.Scalars(tag)] for tag in tags}
text = pathlib.Path("shardio.prom").read_text()
gauges = {family.name: family.samples[0].value for family in text_string_to_metric_families(text)}
# A header of 7 bytes, then records as LevelDB writes its log: checksum, length, 1 where it is whole.
kept, place, logged = next(pathlib.Path("wandb").glob("offline-run-*/*.wandb")).read_bytes(), 7, []
while place + 7 <= min(len(kept), 32768):
    size, whole = int.from_bytes(kept[place + 4 : place + 6], "little"), kept[place + 6] == 1
    record = Record.FromString(kept[place + 7 : place + 7 + size]) if whole else Record()
    place += 7 + size
    if record.WhichOneof("record_type") == "history":
        items = record.history.item
        logged.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
print(json.dumps([scalars, gauges, logged]))
"""


@pytest.mark.slow
def test_the_examples_of_the_page(ds, tmp_path):
    """TensorBoard, W&B and Prometheus as docs/streaming.md shows them: what they kept is read back."""
    text = (ROOT / "docs" / "streaming.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text[text.index("import wandb") - 20 :], re.DOTALL)
    assert code is not None
    places = {name: str(tmp_path / "home") for name in ("HOME", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR")}
    environment = {**os.environ, **places, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    command = [sys.executable, "-c", BEFORE + code[1].replace("(100", "(5") + AFTER, ds.source.url]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    scalars, gauges, logged = json.loads(done.stdout.splitlines()[-1])
    names = set(LoaderStats().to_dict())
    assert set(scalars) == {f"data/{name}" for name in names}
    assert scalars["data/records"] == [[step, 50.0] for step in (5, 10, 15, 20)]
    assert set(gauges) == {f"shardio_{name}" for name in names}
    assert (gauges["shardio_records"], gauges["shardio_steps"]) == (50, 5)
    assert [(row["_step"], row["data/records"]) for row in logged] == [(step, 50) for step in (5, 10, 15, 20)]
    assert min(row["data/records_per_second"] for row in logged) > 0


def test_memory_has_no_requests():
    stream = shardio.stream(shardio.open(write(memory_url(), [40])), global_batch=10)
    assert len(list(stream)) == 4
    assert stream.stats.epoch.requests == 0
