"""The policy about damage, for iteration and streams alike: raise, skip and count, or skip and write down.

Skipping is bounded: past one record in a hundred the data is not worth training on.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from io import BufferedReader, FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeGuard

from shardio.callers import warn
from shardio.errors import (
    FormatError,
    NotFoundError,
    SchemaError,
    ShardioError,
    StaleIndexError,
    StorageError,
    UnsupportedVersionError,
)
from shardio.redact import redact
from shardio.storage import locked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardio.reader._source import ShardSource

QUARANTINE_FILE = "shardio-quarantine.jsonl"
_PATIENCE = 1.0  # seconds
_LEAST = 1000
_SHARE = 100


def is_damage(error: BaseException) -> TypeGuard[ShardioError]:
    """Tell whether an error says that data is damaged: not the environment, not a shardio that is too old."""
    if isinstance(error, UnsupportedVersionError):
        return False
    if isinstance(error, NotFoundError):
        # What belongs to a dataset and is gone; a wrong address has no shard.
        return error.shard is not None
    return isinstance(error, FormatError | StaleIndexError | SchemaError)


class SuppressCorruption:
    """Take an error that says that data is damaged out of a `with` block; let every other one through.

    Args:
        skips: False lets damage through, too.

    Attributes:
        error: what ended the block, or None where it was gone through.
    """

    def __init__(self, *, skips: bool = True) -> None:
        self.error: ShardioError | None = None
        self._skips = skips

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None or not self._skips or not is_damage(error):
            return False
        self.error = error
        return True


class SkippedRows(NamedTuple):
    """Rows that are damaged, in place of their payloads.

    Attributes:
        error: what is wrong, with its address.
        rows: how many that follow one another it is about.
    """

    error: ShardioError
    rows: int


class Damage:
    """The policy of one pass, and its count.

    Args:
        source: of the reader, or of a stream's first dataset; its options give the policy, its counters
            count.
        rows: records of the pass, of which one in a hundred (and never fewer than 1,000) may be skipped.
    """

    def __init__(self, source: ShardSource, rows: int) -> None:
        self.policy = source.options.on_error
        self._most = max(_LEAST, rows // _SHARE)
        self._source = source
        self._lock = threading.Lock()
        self._skipped = 0
        self._noted: dict[tuple[str, str], set[int]] = {}  # by dataset and shard, the rows that were met
        self._listed: dict[tuple[str, str], set[int]] = {}  # those in the file, of all processes
        self._read = 0  # up to where the file has been read
        self._patience = _PATIENCE  # with another process that has the file

    @property
    def skips(self) -> bool:
        """Whether damage is skipped."""
        return self.policy != "raise"

    def note(self, error: ShardioError, source: ShardSource, shard: str, rows: Sequence[int]) -> None:
        """Say once in a pass that something is skipped, and write down each damaged row once.

        The same rows may be met several times, alone and with others of their block: the first batch of a
        pass may read its own records before their windows, and the last steps fetch windows again. Other
        ranks and worker processes, later epochs and later runs meet them, too.

        Args:
            error: what is wrong.
            source: of the dataset, of a mixture's the one that is meant.
            shard: key of the shard.
            rows: rows of the shard, Python's integers.

        Raises:
            StorageError: the file cannot be written.
        """
        place = (redact(source.url), shard)
        with self._lock:
            first = not self._noted
            noted = self._noted.setdefault(place, set())
            fresh = [row for row in rows if row not in noted]
            noted.update(fresh)
            if fresh and self.policy == "quarantine":
                entry = {"error": type(error).__name__, "what": error.what, **_plain(error)}
                self._write({**entry, "dataset": place[0], "shard": shard}, place, fresh)
        if first:
            where = f", and written to {QUARANTINE_FILE}" if self.policy == "quarantine" else ""
            warn(f"damaged records are skipped{where}: {error}")

    def count(self, rows: int) -> None:
        """Count records that were left out of a batch; each is counted where it would have been delivered.

        Raises:
            FormatError: too many records were skipped.
        """
        with self._lock:
            self._skipped += rows
            self._source.stats.records_skipped += rows
            skipped = self._skipped
        if skipped > self._most:
            raise FormatError(
                "too much of the dataset is damaged to continue",
                url=self._source.url,
                expected=f"at most {self._most} records skipped",
                found=skipped,
                advice="`shardio verify` lists all of it; `shardio repair` takes it from a copy, or salvages "
                "the rest",
            )

    def _write(self, entry: dict[str, Any], place: tuple[str, str], rows: list[int]) -> None:
        """Append a line with those rows that the file does not list."""
        try:
            # Without a buffer, as one call of the system puts a line after what others have appended.
            with (
                Path(QUARANTINE_FILE).open("a+b", buffering=0) as file,
                locked(file, self._patience) as alone,
            ):
                if not alone:
                    self._patience = 0.0
                self._read_listed(file)
                listed = self._listed.get(place, ())
                rows = [row for row in rows if row not in listed]
                if rows:
                    line = json.dumps({**entry, "rows": rows}).encode() + b"\n"
                    while not _append_whole(file, line):
                        pass
        except OSError as error:
            what = f"damage cannot be written down ({error.strerror})"
            path = str(Path(QUARANTINE_FILE).absolute())
            raise StorageError(what, url=path, advice='on_error="skip" writes nothing') from error

    def _read_listed(self, file: FileIO) -> None:
        """Take up the whole lines that were written since the last look."""
        if file.seek(0, os.SEEK_END) < self._read:  # it was cut, or is another one
            self._read, self._listed = 0, {}
        file.seek(self._read)
        lines = BufferedReader(file)
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self._read += len(line)
            # Lines that are not ours say nothing about rows.
            with contextlib.suppress(ValueError, TypeError, KeyError):
                entry = json.loads(line)
                rows = self._listed.setdefault((entry["dataset"], entry["shard"]), set())
                rows.update(row for row in entry["rows"] if isinstance(row, int))
        lines.detach()  # it would close the file with itself


def _append_whole(file: FileIO, line: bytes) -> bool:
    """Append a line; tell whether it is one: all of it was taken, and the line before it had its end.

    Only then can it be known that a line was cut, by a kill or a full disk: before that, another process may
    be writing it. What is appended to a cut line ends that, and is then written again.
    """
    written = file.write(line)
    start = file.tell() - written
    file.seek(max(0, start - 1))
    return written == len(line) and (not start or file.read(1) == b"\n")


def _plain(error: ShardioError) -> dict[str, Any]:
    return {
        name: value if isinstance(value, int) else str(value)
        for name, value in error.fields().items()
        if name != "shard"
    }
