"""The error tree: the problem, its address, expected and found values, advice.

Errors are grouped by what a caller would do about them: repair the data (`FormatError`), index again
(`StaleIndexError`), try again later (`StorageError`), choose the winner (`CommitConflictError`), correct the
call (`SchemaError`, `ResumeError`, `UnsafeNameError`).  Plain mistakes of the caller stay `IndexError`,
`TypeError` and `ValueError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass
from itertools import islice
from typing import Any

from shardio.redact import redact
from shardio.reports import ReportItem

__all__ = [
    "BadRecord",
    "CommitConflictError",
    "CommitOutcomeUnknownError",
    "CorruptBlockError",
    "CorruptRecordError",
    "FormatError",
    "KeyNotFoundError",
    "NotFoundError",
    "ResumeError",
    "SchemaError",
    "ShardioError",
    "StaleIndexError",
    "StorageError",
    "UnsafeNameError",
    "UnsupportedVersionError",
]

_PLACES = ("url", "shard", "row", "start", "stop")
# What is in a file may be of any length; a message is read by people, and sent from process to process.
_LONGEST_TEXT = 4096
_LONGEST_SIDE = 1024
_MOST_ITEMS = 64


def _cut(text: str, longest: int) -> str:
    text = redact(text)
    if len(text) <= longest:
        return text
    end = f" ... ({len(text)} characters)"
    return text[: longest - len(end)] + end


def _bounded(value: object) -> object:
    """Return a side of a disagreement as it is, or where that is long, a text that shows its beginning."""
    if isinstance(value, str):
        return _cut(value, _LONGEST_SIDE)
    if isinstance(value, int):
        # Python refuses to print integers of more than 4,300 digits.
        return value if value.bit_length() <= 1024 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, bytes | bytearray | memoryview):
        short = bytes(value[:_LONGEST_SIDE])
        return value if len(value) <= _LONGEST_SIDE // 4 else _cut(f"{short!r}, {len(value)} bytes", 1024)
    if isinstance(value, Sequence | AbstractSet | Mapping):
        items = list(islice(value.items() if isinstance(value, Mapping) else value, _MOST_ITEMS))
        shown = [_bounded(item) for item in items]
        if len(value) == len(items) and all(a is b for a, b in zip(items, shown, strict=True)):
            text = str(value)
            return value if len(text) <= _LONGEST_SIDE else _cut(text, _LONGEST_SIDE)
        inside = ", ".join(item if isinstance(item, str) else repr(item) for item in shown)
        return f"{_cut(inside, _LONGEST_SIDE - 64)} ({len(value)} items)"
    return value


def _rebuild(cls: type[ShardioError], what: str, fields: dict[str, Any]) -> ShardioError:
    return cls(what, **fields)


class ShardioError(Exception):
    """Base of every error that shardio raises about data, storage or commits.

    Attributes:
        what: one sentence that says what is wrong.
        url: the object or dataset concerned, or None.
        shard: key of the shard, or None.
        row: number of the record within its shard (or within the call, as the message states), or None.
        start, stop: half-open byte range `[start, stop)` in the object, or None.
        expected, found: the two sides of the disagreement, or None.
        advice: what to do next, or None.

    Texts longer than some thousand characters are cut, so that no file decides how long a message gets.
    """

    def __init__(
        self,
        what: str,
        *,
        url: str | None = None,
        shard: str | None = None,
        row: int | None = None,
        start: int | None = None,
        stop: int | None = None,
        expected: object = None,
        found: object = None,
        advice: str | None = None,
    ) -> None:
        self.what = what = _cut(what, _LONGEST_TEXT)
        self.url = None if url is None else _cut(str(url), _LONGEST_TEXT)
        self.shard = None if shard is None else _cut(shard, _LONGEST_TEXT)
        self.row = row
        self.start = start
        self.stop = stop
        self.expected = _bounded(expected)
        self.found = _bounded(found)
        self.advice = None if advice is None else _cut(advice, _LONGEST_TEXT)
        super().__init__(what)

    def __str__(self) -> str:
        places = []
        if self.url is not None:
            places.append(self.url)
        if self.shard is not None and self.shard not in (self.url or ""):
            places.append(f"shard {self.shard}")
        if self.row is not None:
            places.append(f"row {self.row}")
        if self.start is not None:
            places.append(f"bytes [{self.start}, {'?' if self.stop is None else self.stop})")
        text = self.what
        if places:
            text += f" ({', '.join(places)})"
        if self.expected is not None:
            text += f": expected {self.expected}"
            if self.found is not None:
                text += f", found {self.found}"
        elif self.found is not None:
            text += f": found {self.found}"
        if self.advice:
            text += f"; {self.advice}"
        return text

    def fields(self) -> dict[str, Any]:
        """Return the address and the two sides as a dict, for `--json` output and for copies."""
        names = (*_PLACES, "expected", "found", "advice")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def located(self, **places: Any) -> ShardioError:
        """Return a copy with the missing places filled in; a pure room knows no URL, its caller does."""
        fields = {name: value for name, value in places.items() if getattr(self, name) is None}
        copy = type(self)(self.what, **{**self.fields(), **fields})
        copy.__cause__ = self.__cause__
        return copy.with_traceback(self.__traceback__)

    # Workers send errors to their parents; the default reduction would lose the keyword fields.
    def __reduce__(self) -> tuple[Any, ...]:
        notes = {"__notes__": self.__notes__} if hasattr(self, "__notes__") else None
        return _rebuild, (type(self), self.what, self.fields()), notes


class FormatError(ShardioError, ValueError):
    """Bytes break the specification; reading them again will not help."""


class CorruptBlockError(FormatError):
    """A block's stored bytes do not match their checksum, or do not decode to what the index says."""


class CorruptRecordError(FormatError):
    """A record's frame does not match its own checksums or lengths."""


class UnsupportedVersionError(FormatError):
    """The object was written by a newer shardio; upgrade to read it."""


class StaleIndexError(ShardioError, ValueError):
    """Index and shard disagree: the shard changed after it was indexed, or has another index."""


class NotFoundError(ShardioError, FileNotFoundError):
    """There is no such object, dataset or version."""


class KeyNotFoundError(NotFoundError, KeyError):
    """No record has such a key; also a `KeyError`."""


class StorageError(ShardioError, OSError):
    """The environment failed (network, disk, credentials); the call may be retried."""


class CommitConflictError(ShardioError):
    """Another commit has taken the version that this one would have made."""


class CommitOutcomeUnknownError(ShardioError):
    """The commit was sent and got no response; nothing was deleted."""


class UnsafeNameError(ShardioError, ValueError):
    """A key, split or session name could leave the dataset's root or mean something to a filesystem."""


class SchemaError(ShardioError, ValueError):
    """A value does not fit the schema, or two schemas do not fit each other; names the feature."""


class ResumeError(ShardioError, ValueError):
    """A stream cannot continue from there.

    The state belongs to another dataset, seed, plan or batch size, or is damaged; or the last pass of this
    rank, one of several, ended with an error.
    """


@dataclass(frozen=True)
class BadRecord(ReportItem):
    """A record, file or part of a file that was skipped because the caller allowed it.

    Every report lists all skipped records as such values.

    Attributes:
        where: URL and place in it, or the item, for people.
        reason: why it was skipped.
        advice: how to include it, or None.
        item: number of the item of `write_dataset` that it came from, or None.
        start, stop: half-open range of decoded bytes of the object at `where`, or None.
        row, row_stop: half-open range of rows of the shard at `where`, or None where they are not known.
    """

    where: str
    reason: str
    advice: str | None = None
    item: int | None = None
    start: int | None = None
    stop: int | None = None
    row: int | None = None
    row_stop: int | None = None

    def __str__(self) -> str:
        """Return where it is and why it was skipped, in one line."""
        rows = "" if self.row is None else f" rows {self.row} to {(self.row_stop or 0) - 1}"
        place = "" if self.start is None else f" bytes [{self.start}, {self.stop})"
        return f"{self.where}{rows}{place}: {self.reason}"
