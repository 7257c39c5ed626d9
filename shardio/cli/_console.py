"""Where a command prints: lines and tables for people, one document for programs, progress beside them.

What is printed comes from files and buckets that anybody may have written, so control characters never reach
the terminal.
"""

from __future__ import annotations

import io
import json as json_module
import shutil
from typing import TYPE_CHECKING, Any, TextIO

from shardio.cli._flags import in_flags
from shardio.cli._humanize import printable
from shardio.progress import Display

if TYPE_CHECKING:
    from collections.abc import Sequence

    import click

    from shardio.cli._failures import Failure

__all__ = ["Console"]

_MESSAGES = ("advice", "expected", "found")  # fields of an error that are sentences


class Console:
    """Output of one run.

    Args:
        out: takes results.
        err: takes progress, notes and errors.
        json: results are one JSON document, and nothing else is printed.
        quiet: no progress, no notes.
        params: of the command, whose flags notes and failures name.
    """

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        *,
        json: bool = False,
        quiet: bool = False,
        params: Sequence[click.Parameter] = (),
    ) -> None:
        for stream in (out, err):
            # A character that the terminal's encoding lacks is no reason to fail.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        self.json = json
        self._out = out
        self._err = err
        self._quiet = quiet or json
        self._params = params
        self._progress: Display | None = None

    @property
    def width(self) -> int:
        """Columns of the terminal; a pipe has 100."""
        return shutil.get_terminal_size((100, 24)).columns if self._out.isatty() else 100

    def line(self, text: str = "") -> None:
        """Print one line of the result."""
        if self._progress is not None:
            self._progress.clear()
        self._out.write(printable(text) + "\n")

    def document(self, value: Any) -> None:
        """Print the result for programs."""
        self._out.write(json_module.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")

    def table(
        self, rows: Sequence[Sequence[str]], *, head: Sequence[str] = (), right: Sequence[int] = ()
    ) -> None:
        """Print columns two blanks apart; `right` are the numbers of columns that end flush."""
        lines = [*([head] if head else []), *rows]
        widths = [max(len(printable(row[k])) for row in lines) for k in range(len(lines[0]))] if lines else []
        for row in lines:
            cells = [
                printable(cell).rjust(width) if k in right else printable(cell).ljust(width)
                for k, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            self.line("  ".join(cells).rstrip())

    def note(self, text: str) -> None:
        """Say something beside the result."""
        if not self._quiet:
            self._say(f"note: {self.in_flags(text)}")

    def warn(self, text: str) -> None:
        """Say what is part of the result and is no line of it, on the error stream."""
        self._say(text)

    def failure(self, failure: Failure) -> None:
        """Print why the command failed: one line, or one JSON document on the error stream."""
        if self.json:
            facts = {
                name: self.in_flags(value) if name in _MESSAGES and isinstance(value, str) else _plain(value)
                for name, value in failure.fields.items()
            }
            document = {
                "error": self.in_flags(failure.text),
                "kind": failure.kind,
                "exit_code": failure.code,
                **facts,
            }
            self._err.write(json_module.dumps(document, ensure_ascii=False) + "\n")
        else:
            self._say(f"shardio: {self.in_flags(failure.text)}")
        self._err.flush()

    def progress(self, label: str) -> Display:
        """Return progress of a long task: a bar on a terminal, a line now and then in a pipe, or nothing."""
        self._progress = Display(label, stream=self._err, leave=False, silent=self._quiet)
        return self._progress

    def in_flags(self, text: str) -> str:
        """Return a message of the library with flags in place of its arguments."""
        return in_flags(text, self._params)

    def _say(self, text: str) -> None:
        if self._progress is not None:
            self._progress.clear()
        self._err.write(printable(text) + "\n")


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)
