"""Progress: a bar on a terminal, plain lines in a log, one meaning of `progress=` wherever it occurs."""

from __future__ import annotations

import io
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

import shardio
import shardio_indexer
from shardio.maintenance import VerifyProgress
from shardio.parallel import Progress
from shardio.progress import Display, displayed
from shardio_indexer import AdoptProgress
from tests.suites.errors import refused


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tqdm.std.time", clock)
    return clock


def drawn(stream: io.StringIO) -> str:
    """What is on the last line of the terminal."""
    return stream.getvalue().split("\r")[-1].rstrip()


def test_a_log_gets_a_line_every_ten_seconds(clock: Clock) -> None:
    stream = io.StringIO()
    with Display("verify", stream=stream, leave=False) as show:
        for second in range(25):
            clock.now = 100.0 + second
            show(VerifyProgress(second * 10**6, 10**8, ()))
    assert stream.getvalue().splitlines() == [
        "verify: 10%, 10.0M of 100MB, 1.00MB/s, 01:30 left",
        "verify: 20%, 20.0M of 100MB, 1.00MB/s, 01:20 left",
    ]


def test_the_last_state_stays_where_it_was_asked_for(clock: Clock) -> None:
    stream = io.StringIO()
    with Display("write", stream=stream) as show:
        for k in range(25):
            show(Progress(k, 24, k * 10, k * 10**6))
            clock.now += 1
    lines = stream.getvalue().splitlines()
    assert [line.split(" tasks")[0] for line in lines] == [
        "write: 42%, 10 of 24",
        "write: 83%, 20 of 24",
        "write: 100%, 24 of 24",
    ]
    assert lines[0].endswith("100 records, 10 records/s, 1.00MB/s, 00:14 left")
    assert not set("\r\x1b[#|") & set(stream.getvalue())


def test_a_short_task_of_a_command_prints_nothing_in_a_pipe(clock: Clock) -> None:
    stream = io.StringIO()
    with Display("verify", stream=stream, leave=False) as show:
        show(VerifyProgress(5, 10, ()))
        show(VerifyProgress(10, 10, ()))
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar_with_rates_and_the_time_left(clock: Clock) -> None:
    stream = Terminal()
    with Display("write", stream=stream) as show:
        show(Progress(0, 8, 0, 0))
        clock.now += 10
        show(Progress(2, 8, 5_000, 30_000_000))
        assert drawn(stream).startswith("write:  25%|")
        assert "2/8 [00:10<00:30" in drawn(stream)
        assert "5,000 records, 500 records/s, 3.00MB/s" in drawn(stream)
        clock.now += 30
        show(Progress(8, 8, 20_000, 120_000_000))
    assert "8/8 [00:40<00:00" in drawn(stream)
    assert stream.getvalue().count("\n") == 1, "one line, drawn again and again"


def test_a_commands_bar_goes_when_it_is_done_and_makes_room(clock: Clock) -> None:
    stream = Terminal()
    with Display("index", stream=stream, leave=False) as show:
        show(AdoptProgress(100, 400, 1, 4))
        assert "index:  25%" in drawn(stream)
        show.clear()
        assert drawn(stream) == ""
        clock.now += 1
        show(AdoptProgress(200, 400, 2, 4))
        assert "index:  50%" in drawn(stream)
        assert "2 shards" in drawn(stream)
    assert drawn(stream) == ""
    assert "\n" not in stream.getvalue()


def test_what_an_earlier_run_has_done_does_not_shorten_the_time_left(clock: Clock) -> None:
    stream = Terminal()
    with Display("write", stream=stream) as show:
        show(Progress(6, 10, 0, 0))
        clock.now += 60
        show(Progress(7, 10, 100, 100))
        assert "<03:00" in drawn(stream)


def test_an_unknown_number_has_no_share_and_no_end(clock: Clock) -> None:
    for stream in (Terminal(), io.StringIO()):
        with Display("write", stream=stream) as show:
            show(Progress(0, 0, 0, 0))
            clock.now += 10
            show(Progress(3, 0, 768, 1_000_000))
            assert "%" not in stream.getvalue()
            assert "3 tasks" in stream.getvalue()
            clock.now += 10
            show(Progress(3, 6, 768, 1_000_000))
            assert "50%" in stream.getvalue()


def test_programs_get_nothing(clock: Clock) -> None:
    stream = Terminal()
    with Display("verify", stream=stream, silent=True) as show:
        show(VerifyProgress(1, 2, ()))
        show.clear()
    assert stream.getvalue() == ""


def test_a_notebook_gets_tqdms_widget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a kernel of IPython, stderr is not a terminal; tqdm chooses what the notebook can show."""
    import tqdm.auto

    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    made = []

    class Widget(tqdm.auto.tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            made.append(kwargs)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr("tqdm.auto.tqdm", Widget)
    with displayed(True, "verify") as show:
        show(VerifyProgress(1, 2, ()))
    assert (made[0]["desc"], made[0]["total"]) == ("verify", 2)
    assert "bar_format" not in made[0]


def test_it_starts_no_thread_and_no_process(clock: Clock) -> None:
    import threading

    before = {*threading.enumerate()}  # others may end meanwhile
    with Display("verify", stream=Terminal()) as show:
        show(VerifyProgress(1, 2, ()))
        assert {*threading.enumerate()} <= before


def number(item: int) -> dict[str, int]:
    return {"n": item}


def write(folder: Any, progress: Any) -> None:
    shardio.write_dataset(
        folder / "new", range(40), number, schema={"n": "int64"}, workers=1, tasks=4, progress=progress
    )


def convert(folder: Any, progress: Any) -> None:
    (folder / "lines.jsonl").write_text('{"n": 1}\n' * 40)
    shardio.convert_dataset(folder / "lines.jsonl", folder / "new", workers=1, progress=progress)


def export(folder: Any, progress: Any) -> None:
    shardio.export_dataset(folder / "ds", folder / "plain", kind="jsonl", progress=progress)


def verify(folder: Any, progress: Any) -> None:
    shardio.verify(folder / "ds", progress=progress)


def adopt(folder: Any, progress: Any) -> None:
    (folder / "words.txt").write_text("wren\nrobin\n")
    shardio_indexer.adopt(folder / "words.txt", into=folder / "into", workers=1, progress=progress)


@pytest.mark.parametrize("task", [write, convert, export, verify, adopt], ids=lambda task: task.__name__)
def test_progress_means_the_same_everywhere(
    task: Callable[[Any, Any], None], tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with shardio.DatasetWriter(tmp_path / "ds", {"n": "int64"}) as out:
        out.write({"n": 1})
    for progress, folder in ((False, "a"), (True, "b"), ("yes", "c"), (None, "d")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "ds").symlink_to(tmp_path / "ds")
        if progress == "yes":
            with refused(TypeError, "progress"):
                task(tmp_path / folder, progress)
            continue
        task(tmp_path / folder, progress)
        shown = capsys.readouterr().err
        assert bool(shown) == (progress is True)
        assert progress is not True or "100%" in shown
    states: list[Any] = []
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "ds").symlink_to(tmp_path / "ds")
    task(tmp_path / "e", states.append)
    assert states[-1].done == states[-1].total > 0
    assert [state.done for state in states] == sorted(state.done for state in states)
    assert {getattr(state, "unit", "records") for state in states} <= {"tasks", "B", "records"}
