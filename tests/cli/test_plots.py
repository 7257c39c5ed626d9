"""Figures of commands: in files of each kind, in the terminal, and refused before work begins."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run

STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def is_figure(file: Path) -> bool:
    return file.read_bytes().startswith(STARTS[file.suffix]) and file.stat().st_size > 5000


@pytest.mark.slow
@pytest.mark.parametrize("ending", STARTS)
def test_figures_are_files(run: Run, birds: Path, tmp_path: Path, ending: str) -> None:
    order = tmp_path / f"order{ending}"
    assert run("plan", birds, "--split", "train", "--global-batch", "2", "--plot", order).code == 0
    assert is_figure(order)


@pytest.mark.slow
def test_a_bench_is_a_figure_and_a_document(run: Run, birds: Path, tmp_path: Path) -> None:
    options = ["--split", "train", "--seconds", "0.2", "--global-batch", "2"]
    ended = run("bench", birds, *options, "--plot", tmp_path / "bench.png", "--json")
    assert ended.code == 0
    assert {stage["name"] for stage in ended.document["stages"]} >= {"read", "verify", "decode", "lookup"}
    assert is_figure(tmp_path / "bench.png")


def test_a_figure_that_cannot_be_written(run: Run, birds: Path, tmp_path: Path) -> None:
    """A place that turns out not to be one, once the work is done."""
    (tmp_path / "x.png").mkdir()
    ended = run("plan", birds, "--split", "train", "--global-batch", "2", "--plot", tmp_path / "x.png")
    assert ended.code == 3
    assert "Errno" not in ended.err
    assert f"({tmp_path / 'x.png'}); it is a folder; name a file" in ended.err


def test_terminals_need_no_matplotlib(
    run: Run, birds: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shown = run("plan", birds, "--split", "train", "--global-batch", "1", "--plot", "-")
    assert "last   step 0 to" in shown.out
    shown = run("bench", birds, "--split", "train", "--seconds", "0.2", "--global-batch", "2", "--plot", "-")
    assert "microseconds of one thread per record" in shown.out
    refused = run("bench", birds, "--split", "train", "--plot", tmp_path / "x.png")
    assert refused.code == 3
    assert 'pip install "shardio[plot]"' in refused.err


def test_figures_that_cannot_be_are_refused_at_once(run: Run, birds: Path, tmp_path: Path) -> None:
    for name in (tmp_path / "x.jpg", tmp_path / "x", tmp_path / "none" / "x.svg"):
        ended = run("bench", birds, "--split", "train", "--seconds", "1000", "--plot", name)
        assert (ended.code, ended.out) == (2, "")
