"""Progress: a bar on a terminal, now and then a line in a pipe, nothing for programs."""

from __future__ import annotations

import io
import sys

import pytest

from shardio.cli._progress import Progress, make_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(stream: io.StringIO, clock: Clock, *, silent: bool = False) -> Progress:
    return make_progress("verify", "B", stream, silent=silent, clock=clock)


def test_a_pipe_gets_a_line_every_ten_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    with make(stream, clock) as progress:
        for second in range(25):
            clock.now = 100.0 + second
            progress.update(second * 10**6, 10**8)
    assert stream.getvalue().splitlines() == [
        "verify: 10%, 10.0 MB of 100.0 MB, 1.0 MB/s, 1 min 30 s left",
        "verify: 20%, 20.0 MB of 100.0 MB, 1.0 MB/s, 1 min 20 s left",
    ]


def test_a_short_task_prints_nothing_in_a_pipe() -> None:
    stream = io.StringIO()
    with make(stream, Clock()) as progress:
        progress.update(5, 10)
        progress.update(10, 10)
    assert stream.getvalue() == ""


def test_a_terminal_without_tqdm_gets_one_line_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    stream, clock = Terminal(), Clock()
    with make(stream, clock) as progress:
        for second in range(1, 4):
            clock.now = 100.0 + second
            progress.update(second * 1000, 4000)
        assert "\n" not in stream.getvalue()
        assert "verify: 75%, 3.0 kB of 4.0 kB, 1.0 kB/s, 1 s left" in stream.getvalue()
        progress.clear()
    screen = stream.getvalue().split("\r")[-1]
    assert screen == ""


def test_a_terminal_with_tqdm_gets_its_bar() -> None:
    stream = Terminal()
    with make_progress("verify", "B", stream, silent=False) as progress:
        progress.update(10, 100)
        progress.clear()
        progress.update(100, 100)
    assert "verify" in stream.getvalue()
    assert "%" in stream.getvalue()


def test_programs_get_nothing() -> None:
    stream = Terminal()
    with make(stream, Clock(), silent=True) as progress:
        progress.update(1, 2)
        progress.clear()
    assert stream.getvalue() == ""
    assert type(progress) is Progress


def test_other_units_and_no_total() -> None:
    clock = Clock()
    progress = Progress("convert", "records", io.StringIO(), clock)
    clock.now += 2
    assert progress.text(500, 1000) == "convert: 50%, 500 records of 1,000 records, 250 records/s, 2 s left"
    assert progress.text(0, 0).startswith("convert: 0%")
