"""Progress: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import io
import os
import shutil

import pytest

from shardio.parallel import Progress, ProgressPrinter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def wide(monkeypatch) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda **_: os.terminal_size((200, 24)))


def test_a_terminal_gets_a_bar_with_rates_and_the_time_left(clock, wide) -> None:
    stream = Terminal()
    show = ProgressPrinter(stream, clock=clock)
    show(Progress(0, 8, 0, 0))
    clock.now += 10
    show(Progress(2, 8, 5_000, 30_000_000))
    shown = stream.getvalue().split("\r")[-1]
    assert shown.startswith(
        "[######..................] 2/8 tasks, 5,000 records, 500 records/s, 3.0 MB/s, 0:30 left"
    )
    clock.now += 30
    show(Progress(8, 8, 20_000, 120_000_000))
    show.close()
    assert stream.getvalue().endswith("0:00 left\x1b[K\n")
    assert stream.getvalue().count("\n") == 1, "one line, drawn again and again"


def test_a_log_gets_a_plain_line_now_and_then_and_at_the_end(clock) -> None:
    stream = io.StringIO()
    show = ProgressPrinter(stream, every=10, clock=clock)
    for k in range(25):
        show(Progress(k, 24, k * 10, k * 1000))
        clock.now += 1
    show.close()
    lines = stream.getvalue().splitlines()
    assert [line.split(" tasks")[0] for line in lines] == ["10/24", "20/24", "24/24"]
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
    assert "[" not in stream.getvalue()


def test_what_an_earlier_run_has_done_does_not_shorten_the_time_left(clock, wide) -> None:
    stream = Terminal()
    show = ProgressPrinter(stream, clock=clock)
    show(Progress(6, 10, 0, 0))
    clock.now += 60
    show(Progress(7, 10, 100, 100))
    assert stream.getvalue().rstrip("\x1b[K").endswith("3:00 left")


def test_hours_are_hours(clock, wide) -> None:
    stream = Terminal()
    show = ProgressPrinter(stream, clock=clock)
    show(Progress(0, 101, 0, 0))
    clock.now += 100
    show(Progress(1, 101, 1, 1))
    assert "2:46:40 left" in stream.getvalue()


def test_an_unknown_number_of_tasks_has_no_bar_and_no_end(clock, wide) -> None:
    stream = Terminal()
    show = ProgressPrinter(stream, clock=clock)
    show(Progress(0, 0, 0, 0))
    clock.now += 1
    show(Progress(3, 0, 768, 1_000_000))
    show.close()
    assert stream.getvalue().split("\r")[-1] == "3/? tasks, 768 records, 768 records/s, 1.0 MB/s\x1b[K\n"


def test_a_narrow_terminal_gets_one_line_all_the_same(clock, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda **_: os.terminal_size((20, 24)))
    stream = Terminal()
    show = ProgressPrinter(stream, clock=clock)
    show(Progress(0, 8, 0, 0))
    assert len(stream.getvalue().strip("\r").removesuffix("\x1b[K")) < 20
