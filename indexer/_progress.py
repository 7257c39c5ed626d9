"""How far an adoption has come, for people: a bar on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from shardio_indexer._report import AdoptProgress

__all__ = ["ProgressLine", "amount", "seconds_in_words"]

_LINE_SECONDS = 10.0
_REDRAW_SECONDS = 0.2


class ProgressLine:
    """Shows progress on a stream; `clear` before anything else is printed there."""

    def __init__(self, stream: TextIO, *, quiet: bool) -> None:
        self._stream = stream
        self._quiet = quiet
        self._terminal = stream.isatty()
        self._begin = time.monotonic()
        self._next = self._begin + (0 if self._terminal else _LINE_SECONDS)
        self._drawn = 0
        self._bar: Any = None

    def show(self, state: AdoptProgress) -> None:
        """Show a state, if it is time."""
        now = time.monotonic()
        if self._quiet or now < self._next:
            return
        self._next = now + (_REDRAW_SECONDS if self._terminal else _LINE_SECONDS)
        text = self._text(state, max(now - self._begin, 1e-9))
        if self._terminal:
            self._stream.write("\r" + text.ljust(self._drawn))
            self._drawn = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def clear(self) -> None:
        """Make room for other output."""
        if self._drawn:
            self._stream.write("\r" + " " * self._drawn + "\r")
            self._stream.flush()
            self._drawn = 0

    @staticmethod
    def _text(state: AdoptProgress, seconds: float) -> str:
        rate = state.done_bytes / seconds
        share = 100 * state.done_bytes // state.bytes if state.bytes else 100
        left = (
            f", {seconds_in_words((state.bytes - state.done_bytes) / rate)} left"
            if 0 < state.done_bytes < state.bytes
            else ""
        )
        return (
            f"index: {share}%, {state.done_shards:,} of {state.shards:,} shards, "
            f"{amount(state.done_bytes)} of {amount(state.bytes)}, {amount(int(rate))}/s{left}"
        )


def amount(size: int) -> str:
    """Return bytes as people write them."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.95 or unit == "TB":
            return f"{int(value)} B" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    raise AssertionError(size)


def seconds_in_words(seconds: float) -> str:
    """Return a duration as people say it."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
