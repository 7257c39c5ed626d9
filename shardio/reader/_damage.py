"""The policy about damage, for iteration and streams alike: raise, skip and count, or skip and write down.

Skipping is bounded: past one record in a hundred the data is not worth training on.
"""

from __future__ import annotations

import json
import os
import threading
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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardio.reader._source import ShardSource

QUARANTINE_FILE = "shardio-quarantine.jsonl"
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
        missing_from: row of the shard from which on all are lost, where it is cut or gone; else None.
    """

    error: ShardioError
    rows: int
    missing_from: int | None = None


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
        # By source and number of a shard, what of it this pass found to be cut or gone: it is asked once.
        self.missing: dict[tuple[int, int], SkippedRows] = {}
        self._warned = False

    @property
    def skips(self) -> bool:
        """Whether damage is skipped."""
        return self.policy != "raise"

    def note(self, error: ShardioError, source: ShardSource, shard: str, rows: Sequence[int]) -> None:
        """Warn once in a pass that something is skipped, and list each damaged row once in this process.

        The same rows may be met several times: alone and with others of their block, and in later epochs.

        Args:
            error: what is wrong.
            source: of the dataset, of a mixture's the one that is meant.
            shard: key of the shard.
            rows: rows of the shard, Python's integers.

        Raises:
            StorageError: the file cannot be written.
        """
        with self._lock:
            first, self._warned = not self._warned, True
            if self.policy == "quarantine":
                listed = source.pool.listed_rows.setdefault(shard, set())
                fresh = [row for row in rows if row not in listed]
                if fresh:
                    entry = {"error": type(error).__name__, "what": error.what, **_plain(error)}
                    _append({**entry, "dataset": redact(source.url), "shard": shard, "rows": fresh})
                listed.update(fresh)
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


def _append(entry: dict[str, Any]) -> None:
    """Append a line to the list of this folder."""
    line = json.dumps(entry).encode() + b"\n"
    what, path = "damage cannot be written down", str(Path(QUARANTINE_FILE).absolute())
    advice = 'on_error="skip" writes nothing'
    try:
        # Without a buffer, as one call of the system puts a line after what others have appended.
        with Path(QUARANTINE_FILE).open("a+b", buffering=0) as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a kill or a full disk has cut the line before
                    line = b"\n" + line
            written = file.write(line)
    except OSError as error:
        raise StorageError(f"{what} ({error.strerror})", url=path, advice=advice) from error
    if written < len(line):
        raise StorageError(what, url=path, expected=f"{len(line)} bytes", found=f"{written}", advice=advice)


def _plain(error: ShardioError) -> dict[str, Any]:
    return {
        name: value if isinstance(value, int) else str(value)
        for name, value in error.fields().items()
        if name != "shard"
    }
