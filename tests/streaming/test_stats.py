"""Figures of a stream: what was delivered, what was read, and where the time went."""

from __future__ import annotations

import re
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

import shardio
from shardio.streaming import LoaderStats
from shardio.torch import StreamingDataLoader, StreamingDataset
from tests.streaming.datasets import memory_url, write

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
    for epoch in range(2):  # figures begin anew
        read = 0
        for batch in loader:
            read += len(batch["n"])
        figures = loader.stats.epoch
        assert (figures.steps, figures.records) == (10, 100) == (len(loader), read), epoch
        assert figures.record_bytes == sum(
            len(payload) for payload in shardio.open(ds.source.url, decode=False)
        )
        assert 0 < figures.bytes_read <= 3 * ds.num_bytes
        assert figures.transform_seconds >= 100 * SLEEP
        assert figures.fetch_seconds > 0
        assert figures.decode_seconds > 0
        assert 0 < figures.wait_share <= 1
        assert figures.records_per_second == figures.records / figures.seconds
        assert "mostly transforms" in figures.advice
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
    with pytest.raises(ValueError, match="steps=0"):
        shardio.stream(ds, global_batch=10).stats.every(0, print)


def test_the_examples_of_the_page(ds, tmp_path, monkeypatch):
    """TensorBoard, W&B and Prometheus as docs/streaming.md shows them, with stand-ins for the first two."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "streaming.md").read_text(encoding="utf-8")
    section = text[text.index("## Figures") :]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert code is not None
    scalars: list = []
    logged: list = []
    names = {
        "writer": types.SimpleNamespace(add_scalar=lambda *given: scalars.append(given)),
        "wandb": types.SimpleNamespace(log=lambda values, step: logged.append((values, step))),
        "loader": loader_of(ds, {"num_threads": 1}),
    }
    board = types.SimpleNamespace(SummaryWriter=lambda: names["writer"])
    monkeypatch.setitem(sys.modules, "wandb", names["wandb"])
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    exec(code[1].replace("100", "5"), names)
    for _ in names["loader"]:
        pass
    figures = names["loader"].stats.epoch.to_dict()
    assert {name for name, _, _ in scalars} == {f"data/{name}" for name in figures}
    assert {step for _, _, step in scalars} == {5, 10}
    assert [step for _, step in logged] == [5, 10]
    lines = Path("shardio.prom").read_text(encoding="utf-8").splitlines()
    for line in lines:
        assert re.fullmatch(r"shardio_[a-z_]+ [0-9.e+-]+", line), line
    assert len(lines) == len(figures)
    assert np.isclose(sum(values["records"] for values, _ in logged), 100)


def test_memory_has_no_requests():
    stream = shardio.stream(shardio.open(write(memory_url(), [40])), global_batch=10)
    assert len(list(stream)) == 4
    assert stream.stats.epoch.requests == 0
