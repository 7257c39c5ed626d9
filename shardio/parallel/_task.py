"""One task: run the caller's function over some items and write what it yields.

Runs in a worker, which may die at any moment: what it stored is under names of its own attempt, and counts
only once its receipt is complete.
"""

from __future__ import annotations

import hashlib
import pickle
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from numbers import Number
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from shardio.errors import BadRecord, SchemaError, ShardioError
from shardio.parallel._pool import TaskCounts, check_stopped
from shardio.parallel._write_session import WriteSession
from shardio.writer import DatasetWriter


class Encoded(bytes):
    """The payload of a record, made by the dataset's schema already; it is stored as it is."""

    __slots__ = ()


@dataclass(frozen=True)
class Note:
    """What a report is to say beside what was written and left out; no record is lost by it.

    Attributes:
        where: what it is about, for people.
        text: one sentence.
    """

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


_MOST_SKIPPED = 1000
_MOST_SHOWN = 200
_MOST_DEPTH = 16  # of lists within lists, as of records


@dataclass(frozen=True)
class TaskSpec:
    """What all tasks of a write share; travels to the workers.

    Attributes:
        write: where to.
        function: of the caller.
        on_error: "raise" or "skip".
        encoded: the function yields payloads of the schema, which are stored as they are.
        origin: of all items; b"" where those of a task tell what it was made from.
        counts: of the records of the tasks under way; None where nobody looks at them.
    """

    write: WriteSession
    function: Callable[[Any], Any]
    on_error: str = "raise"
    encoded: bool = False
    origin: bytes = b""
    counts: TaskCounts | None = None

    def items_of(self, part: TaskItems) -> bytes:
        """Return what a receipt of a task says of its items, 32 bytes."""
        return self.origin or items_digest(part)


class TaskItems(NamedTuple):
    """The items of one task; `first` is the number of the first of them among all."""

    task: int
    first: int
    items: list[Any]

    @property
    def label(self) -> str:
        """The task and its items, for an error."""
        return f"task {self.task} (items {self.first} to {self.first + len(self.items) - 1})"

    @property
    def size(self) -> int:
        """One task."""
        return 1


def items_digest(part: TaskItems) -> bytes:
    """Return what tells the items of a task from others: SHA-256 over their place, number and content.

    Content counts where it is plain (text, bytes, numbers, paths, arrays, and lists, tuples, mappings and
    dataclasses of them): a rerun in another process makes the same of it.  Of other objects the type does.
    """
    digest = hashlib.sha256(struct.pack("<QQ", part.first, len(part.items)))
    for item in part.items:
        for told in _plain(item):
            digest.update(told)
    return digest.digest()


def _plain(item: Any, depth: int = 0) -> Iterator[bytes]:
    """Yield what is plain of an item, each part behind its kind and sizes."""
    inner: list[Any] = []
    if isinstance(item, str | PurePath):
        kind, body = "text", str(item).encode("utf-8", "surrogatepass")
    elif isinstance(item, bytes | bytearray):
        kind, body = "bytes", bytes(item)
    elif item is None or isinstance(item, Number | np.generic):
        # As text NumPy's numbers are the same as Python's; their `repr` follows its version.
        kind, body = "value", str(item).encode()
    elif depth < _MOST_DEPTH and isinstance(item, tuple | list):
        kind, body, inner = "items", b"", list(item)
    elif depth < _MOST_DEPTH and isinstance(item, Mapping):
        kind, body, inner = "mapping", b"", sorted(item.items(), key=lambda pair: str(pair[0]))
    elif isinstance(item, np.ndarray) and not item.dtype.hasobject:
        kind, body, inner = "array", item.tobytes(), [item.dtype.str, list(item.shape)]
    elif depth < _MOST_DEPTH and is_dataclass(item) and not isinstance(item, type):
        kind, body = "fields", type(item).__qualname__.encode()
        inner = [getattr(item, each.name) for each in fields(item)]
    else:
        kind, body = "object", f"{type(item).__module__}.{type(item).__qualname__}".encode()
    yield struct.pack("<8sQQ", kind.encode(), len(body), len(inner)) + body
    for each in inner:
        yield from _plain(each, depth + 1)


class TaskResult(NamedTuple):
    """What a task did: records written, bytes stored, what was left out, and notes."""

    records: int
    stored_bytes: int
    skipped: list[BadRecord]
    notes: list[Note]


def run_task(spec: TaskSpec, part: TaskItems) -> TaskResult:
    """Write the records of some items as one task.

    Raises:
        ShardioError: the store or the schema refused, naming the item where one is to blame.
        Exception: whatever the function raised, with a note that names the item.
    """
    skipped: list[BadRecord] = []
    notes: list[Note] = []
    try:
        with spec.write.task(part.task) as out:
            out.note_items(spec.items_of(part))
            if spec.counts is not None:
                spec.counts.clear(part.task)
            for number, item in enumerate(part.items, part.first):
                check_stopped()
                try:
                    for mark in _write_item(spec, out, part.task, item):
                        if isinstance(mark, Note):
                            notes.append(mark)
                        else:
                            skipped.append(replace(mark, item=number))
                except Exception as error:
                    where = f"item {number}, {_show(item)}"
                    error.add_note(f"shardio: at {where}")
                    if spec.on_error == "raise" or not _is_data(error):
                        raise
                    skipped.append(BadRecord(where, f"{type(error).__name__}: {error}", item=number))
                _check_skipped(skipped, part)
    except Exception as error:
        portable = _portable(error)
        if portable is error:
            raise
    else:
        return TaskResult(sum(out.written.values()), out.stored_bytes, skipped, notes)
    # Not while the other one is handled: some packages teach pickle to send that along, as its context.
    raise portable


def _check_skipped(skipped: list[BadRecord], part: TaskItems) -> None:
    if len(skipped) > _MOST_SKIPPED:
        last = skipped[-1]
        message = (
            f"more than {_MOST_SKIPPED} records of task {part.task} were left out; the last one, of item "
            f"{last.item} ({last.where}): {last.reason}"
        )
        raise ValueError(message)


def _write_item(spec: TaskSpec, out: DatasetWriter, task: int, item: Any) -> list[BadRecord | Note]:
    """Write what the function yields for an item; return what it left out itself, and its notes."""
    values = values_of(spec.function(item))
    if spec.counts is not None:
        values = spec.counts.watch(task, values)
    marks: list[BadRecord | Note] = []
    if spec.on_error == "raise":
        for split, value in values:
            if isinstance(value, BadRecord | Note):
                marks.append(value)
            elif spec.encoded or isinstance(value, Encoded):
                out.write_encoded(value, split)
            else:
                out.write(value, split)
        return marks
    # All or nothing of an item: a function that fails half-way must not leave its first records.
    payloads = []
    for split, value in values:
        if isinstance(value, BadRecord | Note):
            marks.append(value)
        else:
            ready = spec.encoded or isinstance(value, Encoded)
            payloads.append((split, value if ready else out.encode(value)))
    for taken, (split, payload) in enumerate(payloads):
        try:
            out.write_encoded(payload, split)
        except SchemaError as error:
            # A record that is too long, say.
            if not taken:
                raise
            raise _TakenError(str(error)) from error
    return marks


class _TakenError(ValueError):
    """An item failed after some of its records were taken, so it cannot be left out."""


def values_of(result: Any) -> Iterator[tuple[str, Any]]:
    """Yield (split, value) for what a function gave: an iterable of values, one value, or None for none.

    A value may come as `(split, value)`, else its split is "train". A mapping, bytes or text is one value.
    """
    if result is None:
        return
    single = isinstance(result, Mapping | bytes | bytearray | memoryview | str) or not isinstance(
        result, Iterable
    )
    for value in [result] if single or _names_split(result) else result:
        yield (value[0], value[1]) if _names_split(value) else ("train", value)


def _names_split(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)


def _is_data(error: Exception) -> bool:
    """Tell whether the item is to blame, and not the store that could not take it."""
    return not isinstance(error, ShardioError | _TakenError) or isinstance(error, SchemaError)


def _portable(error: Exception) -> Exception:
    """Return an error that arrives in another process: the same, or one that says its words."""
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):  # noqa: S301 - our own bytes, a moment old
            return error
    except Exception:  # noqa: BLE001, S110 - whatever pickling says, the words below are what is left
        pass
    words = RuntimeError(f"{type(error).__name__}: {error}")
    for note in getattr(error, "__notes__", ()):
        words.add_note(note)
    return words


def _show(item: Any) -> str:
    try:
        shown = repr(item)
    except Exception:  # noqa: BLE001 - the error to be told is another one
        shown = f"<{type(item).__name__} whose repr fails>"
    return shown if len(shown) <= _MOST_SHOWN else shown[:_MOST_SHOWN] + "..."
