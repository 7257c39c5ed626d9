"""Progress of long tasks: a tqdm bar on terminals and in notebooks, plain lines in logs.

`progress=` is the same everywhere: False for none, True for a display on stderr, or a function that is called
with the state.  In a pipe or a file a plain line comes every ten seconds, so that a log stays
readable.  tqdm is loaded when the first state is shown.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self, TextIO

__all__ = ["BytesProgress", "CountProgress", "Display", "ProgressState", "displayed"]

_LINE_SECONDS = 10.0
_LINE = "{desc}: {percentage:.0f}%, {n_fmt} of {total_fmt}{unit}, {rate_fmt}{postfix}, {remaining} left"
_OPEN_LINE = "{desc}: {n_fmt}{unit}, {rate_fmt}{postfix}"


class ProgressState(Protocol):
    """The state that a display shows; each task has its own type with more fields.

    A state may have `unit`, the plural of what it counts, "B" for bytes (default: "records"); and `amounts`,
    pairs of a count of this run and its unit, shown as rates.
    """

    @property
    def done(self) -> int:
        """Units that are done."""
        ...

    @property
    def total(self) -> int:
        """Units in all; 0 while that is not known."""
        ...


class CountProgress(NamedTuple):
    """Progress of a task that counts records, documents, objects or stored bytes.

    Attributes:
        done, total: units processed, and in total.
        unit: what is counted, in the plural.
    """

    done: int
    total: int
    unit: str = "records"


@dataclass(frozen=True)
class BytesProgress:
    """Progress of a task that reads stored bytes.

    Attributes:
        done_bytes, total_bytes: stored bytes processed, and in total.
    """

    done_bytes: int
    total_bytes: int

    @property
    def done(self) -> int:
        """`done_bytes`; see `ProgressState`."""
        return self.done_bytes

    @property
    def total(self) -> int:
        """`total_bytes`."""
        return self.total_bytes

    @property
    def unit(self) -> str:
        """The unit, "B" for bytes."""
        return "B"


class Display:
    """Callable that displays states.

    Args:
        label: what is being done.
        stream: takes the output; None for stderr, or the notebook.
        leave: the last state stays on the terminal, and is the last line of a log.
        silent: show nothing.
    """

    def __init__(
        self, label: str, *, stream: TextIO | None = None, leave: bool = True, silent: bool = False
    ) -> None:
        self._label = label
        self._notebook = stream is None and _in_notebook()
        self._stream = sys.stderr if stream is None else stream
        self._lines = not self._notebook and not self._stream.isatty()
        self._leave = leave
        self._silent = silent
        self._bar: Any = None

    def __call__(self, state: ProgressState) -> None:
        """Show a state, if it is time."""
        if self._silent:
            return
        if self._bar is None:
            self._bar = self._make_bar(state)
        bar = self._bar
        if state.total and bar.total != state.total:
            bar.total = state.total
            if self._lines:
                bar.bar_format = _LINE
        amounts: tuple[tuple[int, str], ...] = getattr(state, "amounts", ())
        if amounts:
            seconds = max(bar.format_dict["elapsed"], 1e-9)
            bar.set_postfix_str(
                ", ".join(_amount(bar, value, unit, seconds) for value, unit in amounts), refresh=False
            )
        bar.update(state.done - bar.n)

    def clear(self) -> None:
        """Make room for other output on the same terminal; the next state draws again."""
        if self._bar is not None and not self._notebook:
            self._bar.clear()

    def close(self) -> None:
        """Show the last state once more where it stays, and end."""
        bar, self._bar = self._bar, None
        if bar is None:
            return
        if self._lines and self._leave:
            bar.display()
        bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make_bar(self, state: ProgressState) -> Any:
        # `tqdm.auto` loads what notebooks need; terminals do without.
        tqdm: Any = importlib.import_module("tqdm.auto" if self._notebook else "tqdm").tqdm

        class Bar(tqdm):  # type: ignore[misc] # of type Any: loaded when it is needed
            """A bar without tqdm's thread and without its lock of multiprocessing, which outlive it."""

            monitor_interval = 0
            _lock = threading.RLock()

        how: dict[str, Any] = {"dynamic_ncols": True, "leave": self._leave}
        if self._lines:
            how = {
                "file": _Lines(self._stream), "leave": False, "ascii": True, "delay": _LINE_SECONDS,
                "mininterval": _LINE_SECONDS, "bar_format": _LINE if state.total else _OPEN_LINE,
            }  # fmt: skip
        elif not self._notebook:
            how["file"] = self._stream
        unit = getattr(state, "unit", "records")
        scaled = unit == "B"
        return Bar(
            desc=self._label,
            total=state.total or None,
            # What an earlier run has done says nothing about the time that the rest takes.
            initial=state.done,
            unit=unit if scaled else f" {unit}",
            unit_scale=scaled,
            miniters=0,
            **how,
        )


class _Lines:
    """A stream for tqdm that makes a line of each drawing."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        text = text.strip("\r\n ")
        if text:
            self._stream.write(text + "\n")

    def flush(self) -> None:
        self._stream.flush()


@contextlib.contextmanager
def displayed(
    progress: bool | Callable[[Any], None],  # noqa: FBT001 - the caller's own option
    label: str,
) -> Iterator[Callable[[Any], None] | None]:
    """Yield the function that takes states, or None, for a value of `progress=`; end its display.

    Raises:
        TypeError: neither a bool nor a function.
    """
    if progress is False or progress is None:
        yield None
    elif progress is True:
        with Display(label) as display:
            yield display
    elif callable(progress):
        yield progress
    else:
        raise TypeError(f"progress must be False, True, or a function of the state, found {progress!r}")


def _amount(bar: Any, value: int, unit: str, seconds: float) -> str:
    if unit == "B":
        return f"{bar.format_sizeof(value / seconds)}B/s"
    return f"{value:,} {unit}, {value / seconds:,.0f} {unit}/s"


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config
