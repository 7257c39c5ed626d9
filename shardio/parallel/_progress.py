"""Progress of a parallel write: a value for programs, a bar on terminals, plain lines in logs.

The driver counts tasks as they end, so it is the same for every executor.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

__all__ = ["Progress", "ProgressPrinter"]

_BAR = 24


class Progress(NamedTuple):
    """How far a write has come.

    Attributes:
        done, tasks: tasks that ended, and all; `tasks` is 0 while it is not known.
        records, stored_bytes: of the tasks that ended in this run.
    """

    done: int
    tasks: int
    records: int
    stored_bytes: int


class ProgressPrinter:
    """Print progress to a stream: one line that is drawn again on a terminal, else a line every few seconds.

    Args:
        stream: where to; stderr by default.
        every: seconds between plain lines.
        clock: seconds on a clock that never goes back.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        every: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._every = every
        self._clock = clock
        self._first: Progress | None = None
        self._began = self._last = clock()
        self._unsaid: str | None = None

    def __call__(self, progress: Progress) -> None:
        """Show where the work stands."""
        if self._first is None:
            # What an earlier run has done says nothing about the time that the rest takes.
            self._first = progress
        now = self._clock()
        self._unsaid = self._line(progress, self._first.done, max(now - self._began, 1e-9))
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{self._unsaid[:width]}\x1b[K")
        elif now - self._last >= self._every:
            self._stream.write(f"{self._unsaid}\n")
            self._last, self._unsaid = now, None
        else:
            return
        self._stream.flush()

    def close(self) -> None:
        """Show the last state once more, and leave the line."""
        if self._unsaid is not None:
            self._stream.write("\n" if self._terminal else f"{self._unsaid}\n")
            self._stream.flush()
            self._unsaid = None

    def _line(self, progress: Progress, reused: int, seconds: float) -> str:
        done, tasks, records, stored = progress
        counted = (
            f"{done}/{tasks or '?'} tasks, {records:,} records, {records / seconds:,.0f} records/s, "
            f"{stored / seconds / 1e6:,.1f} MB/s"
        )
        if not tasks:
            return counted
        filled = _BAR * done // tasks
        left = "?" if done == reused else _clock_time(seconds / (done - reused) * (tasks - done))
        bar = f"[{'#' * filled}{'.' * (_BAR - filled)}] " if self._terminal else ""
        return f"{bar}{counted}, {left if done < tasks else '0:00'} left"


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
