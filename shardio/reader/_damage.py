"""What a pass does about damage: raise, skip and count, or skip and write down; iteration and streams alike.

What can be read is yielded in its place in the order, what cannot is left out.  Reading goes the usual way,
in large runs, until one of them fails.  That run is then taken block by block, and reading continues
as before: a dataset without damage pays nothing.  Skipping is bounded: past one record in a hundred the data
is not worth training on.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray

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
from shardio.reader._rows import (
    BegunRows,
    begin_lookup,
    in_lists,
    look_up,
    positions_in_order,
    read_in_order,
)
from shardio.reader._source import ShardSource
from shardio.reader._subset import Selection
from shardio.redact import redact
from shardio.storage import locked

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

    def note(self, error: ShardioError, source: ShardSource, shard: str, rows: NDArray[np.int64]) -> None:
        """Say once in a pass that something is skipped, and write down each damaged row once.

        The same rows may be met several times, alone and with others of their block: the first batch of a
        pass may read its own records before their windows, and the last steps fetch windows again. Other
        ranks and worker processes, later epochs and later runs meet them, too.

        Args:
            error: what is wrong.
            source: of the dataset, of a mixture's the one that is meant.
            shard: key of the shard.
            rows: rows of the shard.

        Raises:
            StorageError: the file cannot be written.
        """
        place = (redact(source.url), shard)
        with self._lock:
            first = not self._noted
            noted = self._noted.setdefault(place, set())
            fresh = [row for row in rows.tolist() if row not in noted]
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


def iterate(
    source: ShardSource, selection: Selection, damage: Damage | None = None
) -> Iterator[tuple[list[bytes], range | NDArray[np.int64]]]:
    """Yield the payloads of a selection in its order, with their positions.

    Args:
        source: of the shards.
        selection: positions.
        damage: what to do about it; None to raise it.

    Raises:
        CorruptBlockError, FormatError, StaleIndexError, NotFoundError: damage, unless it is skipped, with its
            address; or more of it than may be skipped.
        StorageError: the environment failed.
    """
    if isinstance(selection, range) and selection.step == 1:
        for rows in read_in_order(source, selection):
            if damage is None:
                yield rows.payloads(), selection[rows.places.start : rows.places.stop]
            else:
                payloads, places = _whole_payloads(source, rows, damage)
                yield payloads, np.array(places, np.int64) + selection.start
        return
    for positions in positions_in_order(selection):
        if damage is None:
            yield look_up(source, positions), positions
        else:
            yield _look_up_skipping(source, positions, damage)


def _look_up_skipping(
    source: ShardSource, positions: NDArray[np.int64], damage: Damage
) -> tuple[list[bytes], NDArray[np.int64]]:
    """Return the payloads of some positions that are whole, in order, with their positions."""
    order = np.argsort(positions, kind="stable")
    found: dict[int, bytes] = {}
    for rows in begin_lookup(source, positions[order], scattered=False):
        payloads, places = _whole_payloads(source, rows, damage)
        found.update(zip(order[np.array(places, np.int64)].tolist(), payloads, strict=True))
    kept = sorted(found)
    return [found[item] for item in kept], positions[kept]


def _whole_payloads(
    source: ShardSource, rows: BegunRows, damage: Damage
) -> tuple[list[bytes], Sequence[int]]:
    """Return the payloads of those rows that are not damaged, and which of all positions they are."""
    with SuppressCorruption(skips=rows.rows is not None) as skipped:
        return rows.payloads(), rows.places
    # What was fetched together is not damaged together.
    numbers = np.array(rows.rows, np.int64)
    blocks, gone = np.zeros(numbers.size, np.int64), None
    with SuppressCorruption() as skipped:
        shard = source.pool.get(rows.number)
        blocks = shard.head.blocks_of(numbers)
    gone = skipped.error
    payloads: list[bytes] = []
    places: list[int] = []
    for block in np.unique(blocks).tolist():
        here = np.flatnonzero(blocks == block)
        error = gone
        if gone is None:
            with SuppressCorruption() as skipped:
                payloads += shard.blocks.payloads(numbers[here])
                places += [rows.places[k] for k in here.tolist()]
            error = skipped.error
        if error is not None:
            damage.note(error, source, source.table.key[rows.number], numbers[here])
            damage.count(here.size)
        gone = error if isinstance(error, NotFoundError) else gone
    return payloads, places


class _Errors(Damage):
    """Collects what is wrong, by shard and row; skips without a limit."""

    def __init__(self, source: ShardSource) -> None:
        super().__init__(source, 0)
        self.errors: dict[tuple[str, int], ShardioError] = {}

    def note(self, error: ShardioError, source: ShardSource, shard: str, rows: NDArray[np.int64]) -> None:
        """Keep the error of each row, addressed to the row."""
        del source
        for row in rows.tolist():
            self.errors[shard, row] = error.located(shard=shard, row=row)

    def count(self, rows: int) -> None:
        """Skip them: the caller sees each."""


def read_or_errors(
    source: ShardSource,
    positions: NDArray[np.int64],
    decode: Callable[[list[bytes], NDArray[np.int64]], list[Any]],
) -> list[Any]:
    """Return the values at some positions, in order; for a damaged record its error.

    Raises:
        StorageError: the environment failed.
    """
    found: dict[int, Any] = {}
    errors = _Errors(source)
    payloads, read = _look_up_skipping(source, np.unique(positions), errors)
    with SuppressCorruption() as damaged:
        found.update(zip(read.tolist(), decode(payloads, read), strict=True))
    if damaged.error is not None:
        for k, payload in enumerate(payloads):
            with SuppressCorruption() as skipped:
                found[int(read[k])] = decode([payload], read[k : k + 1])[0]
            if skipped.error is not None:
                found[int(read[k])] = skipped.error
    for position in np.setdiff1d(positions, read).tolist():
        number, row = source.shard_of(position)
        found[position] = errors.errors[source.table.key[number], row]
    return [found[position] for position in positions.tolist()]


def decode_skipping(
    source: ShardSource,
    payloads: list[bytes],
    positions: range | NDArray[np.int64],
    decode: Callable[[list[bytes], range | NDArray[np.int64]], list[Any]],
    located: Callable[[ShardioError, range | NDArray[np.int64]], ShardioError],
    damage: Damage,
) -> list[Any]:
    """Return the values of payloads without those that cannot be decoded.

    Args:
        source: of the reader.
        payloads: of records.
        positions: of these records.
        decode: values of payloads, of the records at some positions.
        located: gives an error of `decode` its address, from the positions of what was decoded.
        damage: notes and counts them.
    """
    with SuppressCorruption():
        return decode(payloads, positions)
    values: list[Any] = []
    for k, payload in enumerate(payloads):
        with SuppressCorruption() as skipped:
            values += decode([payload], positions[k : k + 1])
        if skipped.error is not None:
            found = located(skipped.error, positions[k : k + 1])
            damage.note(found, source, found.shard or "", np.array([found.row or 0]))
            damage.count(1)
    return values


def batches_skipping(
    source: ShardSource,
    selection: Selection,
    size: int,
    located: Callable[[ShardioError, Any], ShardioError],
    damage: Damage,
) -> Iterator[dict[str, Any]]:
    """Yield the columns of each batch of records, without those that are damaged.

    Batches are of `size` records that could be read; those of them that cannot be decoded make them smaller.
    """

    def refuse_damaged(payloads: list[bytes], positions: range | NDArray[np.int64]) -> list[Any]:
        source.codec.decode_batch(payloads)
        return list(zip(payloads, positions, strict=True))

    found = iterate(source, selection, damage)
    for batch in in_lists((list(zip(*each, strict=True)) for each in found), size):
        payloads, positions = zip(*batch, strict=True)
        kept = decode_skipping(source, list(payloads), np.array(positions), refuse_damaged, located, damage)
        if kept:
            payloads, positions = zip(*kept, strict=True)
            yield source.codec.decode_batch(list(payloads))
