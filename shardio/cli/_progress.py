"""How far a long task has come: a bar for a terminal, plain lines for a pipe, nothing for programs.

The bar is tqdm's where that is installed, else one line that is written over.  Lines in a pipe come at most
every ten seconds, so that a log stays readable and a short task prints none.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self, TextIO

from shardio.cli._words import count, duration, size

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Progress", "make_progress"]

_REDRAW_SECONDS = 0.1
_LINE_SECONDS = 10.0


class Progress:
    """Progress that shows nothing; the others build on it.

    Args:
        label: what is being done.
        unit: "B" for bytes, else the name of what is counted.
        stream: takes the output.
        clock: seconds on a clock that never goes back.
    """

    def __init__(
        self, label: str, unit: str, stream: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.label = label
        self.unit = unit
        self._stream = stream
        self._clock = clock
        self._begin = clock()

    def update(self, done: int, total: int) -> None:
        """Show that `done` of `total` units are done."""

    def clear(self) -> None:
        """Make room for other output on the same terminal; the next update draws again."""

    def close(self) -> None:
        """Take away what is shown."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def text(self, done: int, total: int) -> str:
        """Return share, amounts, rate and time left as words."""
        seconds = max(self._clock() - self._begin, 1e-9)
        rate = done / seconds
        share = f"{100 * done // total}%" if total else "0%"
        left = f", {duration((total - done) / rate)} left" if done and done < total else ""
        return (
            f"{self.label}: {share}, {_amount(done, self.unit)} of {_amount(total, self.unit)}, "
            f"{_amount(int(rate), self.unit)}/s{left}"
        )


class _Lines(Progress):
    """A plain line now and then."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._next = self._begin + _LINE_SECONDS

    def update(self, done: int, total: int) -> None:
        now = self._clock()
        if now >= self._next:
            self._next = now + _LINE_SECONDS
            self._stream.write(self.text(done, total) + "\n")
            self._stream.flush()


class _OwnBar(Progress):
    """One line of a terminal, written over."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._next = self._begin
        self._drawn = 0

    def update(self, done: int, total: int) -> None:
        now = self._clock()
        if now >= self._next:
            self._next = now + _REDRAW_SECONDS
            text = self.text(done, total)
            self._stream.write("\r" + text.ljust(self._drawn))
            self._stream.flush()
            self._drawn = len(text)

    def clear(self) -> None:
        if self._drawn:
            self._stream.write("\r" + " " * self._drawn + "\r")
            self._stream.flush()
            self._drawn = 0
            self._next = 0.0

    def close(self) -> None:
        self.clear()


class _Tqdm(Progress):
    """tqdm's bar."""

    def __init__(self, bar_class: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bar_class = bar_class
        self._bar: Any = None

    def update(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = self._bar_class(
                desc=self.label,
                total=total,
                unit=self.unit if self.unit == "B" else f" {self.unit}",
                unit_scale=self.unit == "B",
                file=self._stream,
                leave=False,
                dynamic_ncols=True,
            )
        self._bar.update(done - self._bar.n)

    def clear(self) -> None:
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def make_progress(
    label: str,
    unit: str,
    stream: TextIO,
    *,
    silent: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """Return the progress that suits a stream."""
    if silent:
        return Progress(label, unit, stream, clock)
    if not stream.isatty():
        return _Lines(label, unit, stream, clock)
    try:
        from tqdm import tqdm
    except ImportError:
        return _OwnBar(label, unit, stream, clock)
    return _Tqdm(tqdm, label, unit, stream, clock)


def _amount(value: int, unit: str) -> str:
    return size(value) if unit == "B" else f"{count(value)} {unit}"
