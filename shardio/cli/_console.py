"""Output of commands: lines and tables for people, one document for programs, and progress.

The data comes from files and buckets of unknown origin, so control characters never reach the terminal.
An error is an exit code and one line.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from json import dumps
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from shardio.display import fact_lines, facts_of, plain, plural, printable, table_lines
from shardio.errors import (
    FormatError,
    NotFoundError,
    SchemaError,
    ShardioError,
    StaleIndexError,
    UnsafeNameError,
    UnsupportedVersionError,
)
from shardio.progress import Display
from shardio.redact import redact

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from shardio.reports import Report

CLEAN = 0
DAMAGE = 1  # damage or failure found in the data
USAGE = 2
FAILED = 3  # could not be done
INTERRUPTED = 130  # what shells report for SIGINT
PIPE_CLOSED = 141  # and for SIGPIPE

EXIT_CODES = "exit codes: 0 clean, 1 damage or failure found in the data, 2 usage, 3 could not be done"

REDO = "without --dry-run it is done"
# Labels of report fields whose name is not enough.
_LABELS = {
    "already_deleted": "deleted before",
    "doomed": "objects to delete",
    "expired_versions": "expired versions",
    "external_copies": "third-party files that may hold the bytes",
    "lost_for_good": "records that a mirror can no longer bring back",
    "microseconds": "microseconds of one thread per record",
    "missing": "missing (restore them, or remove them from the dataset with --drop-missing)",
    "mixing": "mixing (1 is a random shuffle)",
    "pending_gc": "may hold the bytes until `shardio gc --yes`",
    "stale": "changed since they were adopted (index them again with --update)",
    "temporaries": "left by interrupted writes",
    "unclaimed": "in no version: still being written, or abandoned (--abandon SESSION removes them)",
}
_COLORS = {"red": "\x1b[1;31m", "yellow": "\x1b[1;33m"}
_PLAIN = "\x1b[0m"


class CommandFailure(NamedTuple):
    """How a command failed.

    Attributes:
        code: exit code.
        kind: name of the error's class.
        text: one line.
        fields: the error's address and both sides, for `--json`.
    """

    code: int
    kind: str
    text: str
    fields: dict[str, Any]


def explain(error: Exception) -> CommandFailure:
    """Return exit code and line for an error."""
    fields = error.fields() if isinstance(error, ShardioError) else {}
    return CommandFailure(_code(error), type(error).__name__, " ".join(_text(error).split()), fields)


def _code(error: Exception) -> int:
    if isinstance(error, UnsupportedVersionError):
        return FAILED
    if isinstance(error, UnsafeNameError):
        # A name that was typed has no address; one that was read from a file has.
        return DAMAGE if error.url else USAGE
    if isinstance(error, NotFoundError):
        # A missing object of a dataset is damage; a wrong address is not.
        return DAMAGE if error.shard else FAILED
    if isinstance(error, FormatError | StaleIndexError | SchemaError):
        return DAMAGE
    if isinstance(error, ShardioError | OSError | MemoryError | ImportError):
        return FAILED
    return USAGE if isinstance(error, ValueError | TypeError | IndexError) else FAILED


def _text(error: Exception) -> str:
    if isinstance(error, ImportError) and "pip install" in str(error):
        return str(error)
    if isinstance(error, ImportError) and error.name:
        return f"{error} (pip install {error.name.split('.')[0]})"
    if isinstance(error, ShardioError | ValueError | TypeError | IndexError | OSError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error} (--debug shows where)"


@contextlib.contextmanager
def _printing() -> Iterator[None]:
    """Name stdout in errors of printing, which would otherwise read as if the command itself had failed."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, f"what was printed is lost: {error.strerror}", "stdout") from error


def _json_line(value: Any, stream: TextIO) -> str:
    """Return a document on one line, with JSON escapes if the encoding isn't Unicode."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return dumps(value, ensure_ascii=not encoding.lower().startswith("utf"), allow_nan=False) + "\n"


class Console:
    """Output of one run.

    Args:
        out: takes results.
        err: takes progress, notes and errors.
        json: results are one JSON document, and nothing else is printed.
        quiet: no progress, no notes.
    """

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        *,
        json: bool = False,
        quiet: bool = False,
    ) -> None:
        for stream in (out, err):
            # A character missing from the terminal's encoding must not fail the command.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        self.json = json
        self._out = out
        self._err = err
        self._quiet = quiet or json
        self._progress: Display | None = None

    @property
    def width(self) -> int:
        """Columns of the terminal; a pipe has 100."""
        return shutil.get_terminal_size((100, 24)).columns if self._out.isatty() else 100

    def line(self, text: str = "") -> None:
        """Print one line of the result."""
        if self._progress is not None:
            self._progress.clear()
        with _printing():
            self._out.write(printable(text) + "\n")

    def document(self, value: Any) -> None:
        """Print the result for programs."""
        with _printing():
            self._out.write(_json_line(value, self._out))

    def report(self, report: Report, *, redo: str = REDO, hide: Collection[str] = ()) -> None:
        """Print a report, and its notes; arguments as in `facts`."""
        hidden = {*hide, "notes", "ignored", "encoding", "ok"}
        self.facts(facts_of(report), document=report.to_dict(), redo=redo, hide=hidden)
        for note in getattr(report, "notes", ()):
            self.note(note)
        ignored = getattr(report, "ignored", ())
        if ignored:
            shown = ", ".join(ignored[:5]) + (", ..." if len(ignored) > 5 else "")
            self.note(f"{plural(len(ignored), 'file')} of another kind or split ignored: {shown}")

    def facts(
        self,
        facts: Mapping[str, Any],
        *,
        document: Mapping[str, Any] | None = None,
        redo: str = REDO,
        hide: Collection[str] = (),
    ) -> None:
        """Print named facts: as a document for programs, as lines for people.

        Args:
            facts: by name.
            document: for programs; None for the facts.
            redo: how a dry run becomes a change.
            hide: names that people need not see.
        """
        if self.json:
            self.document(plain(facts if document is None else document))
            return
        for line in fact_lines({n: v for n, v in facts.items() if n not in {*hide, "dry_run"}}, _LABELS):
            self.line(line)
        if not facts.get("repaired", True):
            self.line("there was nothing to do")
        elif facts.get("dry_run"):
            self.line(f"nothing was changed; {redo}")
        elif facts.get("version", 0) is None and not facts.get("repaired"):
            self.line("there was nothing to do")

    def flush(self) -> None:
        """Flush the output before something long begins."""
        with _printing():
            self._out.flush()

    def table(
        self, rows: Sequence[Sequence[str]], *, head: Sequence[str] = (), right: Sequence[int] = ()
    ) -> None:
        """Print aligned columns; those numbered in `right` end flush."""
        for line in table_lines(rows, head=head, right=right):
            self.line(line)

    def note(self, text: str) -> None:
        """Print a note on the error stream."""
        if not self._quiet:
            self._say(text, mark="note:", color="yellow")

    def failure(self, failure: CommandFailure) -> None:
        """Print why the command failed: one line, or one JSON document on the error stream."""
        if self.json:
            facts = {name: _plain(value) for name, value in failure.fields.items()}
            document = {
                "error": redact(failure.text),
                "kind": failure.kind,
                "exit_code": failure.code,
                **facts,
            }
            self._err.write(_json_line(document, self._err))
        else:
            self._say(failure.text, mark="shardio:", color="red")
        self._err.flush()

    def progress(self, label: str) -> Display:
        """Return progress of a long task: a bar on a terminal, a line now and then in a pipe, or nothing."""
        self._progress = Display(label, stream=self._err, leave=False, silent=self._quiet)
        return self._progress

    def _say(self, text: str, *, mark: str = "", color: str = "") -> None:
        if self._progress is not None:
            self._progress.clear()
        text = redact(text)
        shown = f"{_COLORS[color]}{mark}{_PLAIN}" if mark and _in_color(self._err) else mark
        self._err.write(f"{shown} {printable(text)}\n" if mark else f"{printable(text)}\n")


def _in_color(stream: TextIO) -> bool:
    """Return whether a stream is a terminal with colours; see https://no-color.org."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | bool) or value is None else redact(str(value))
