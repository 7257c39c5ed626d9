"""Two passes through a spool dataset, in bounded memory: a global shuffle, and a given number of shards.

The first pass writes the records, encoded, in the order in which they come; so their number is known, and
the second one looks them up, in that order or in one permutation of all records of a split, and writes the
dataset.  The same seed gives the same order for the same items, whatever the number of processes and tasks.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from shardio.errors import BadRecord
from shardio.order import Permutation
from shardio.parallel._session import RunOptions, WriteReport, catalog_of, merged_before, write_session
from shardio.parallel._task import Encoded, Note, values_of
from shardio.reader import DatasetReader, open as open_dataset
from shardio.writer import encoder, is_codec, resolve_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


# A lookup of that much is enough to merge near reads, and few enough bytes to hold.
_LOOKUP_RECORDS = 1024
_LOOKUP_BYTES = 16 << 20

Run: TypeAlias = tuple[str, int, int]  # rows [start, stop) of a split of the spool


def write_twice(
    url: str,
    items: Iterable[Any],
    function: Callable[[Any], Any],
    *,
    seed: int | None,
    shards: int | None,
    session: str | None,
    run: RunOptions,
    writer: dict[str, Any],
) -> WriteReport:
    """Write `items`, shuffled by a seed or not, into so many shards a split, or as tasks leave them.

    With a session the spool keeps its place, so that a rerun finds the first pass done, or continues with it.
    """
    before = merged_before(url, session, writer)
    if before is not None:
        return before
    encode = _encoder(url, writer)
    with _spool(writer.get("spool_dir"), session) as spool:
        first = write_session(
            spool,
            items,
            partial(_encoded, function, encode),
            session=None if session is None else f"{session}.spool",
            run=run,
            writer={"mode": "create", "splits": writer.get("splits")},
            gather=False,
        )
        runs: list[list[Run]] = [[run] for run in _runs(spool)] if shards is None else _shares(spool, shards)
        if shards is not None:
            # A task is a share, and leaves one shard of each split.
            run, writer = replace(run, tasks=shards), {**writer, "shard_bytes": sys.maxsize}
        report = write_session(
            url,
            runs,
            _Spooled(spool, seed),
            session=session,
            run=replace(run, on_error="raise"),
            writer=writer,
            encoded=True,
        )
    notes = list(dict.fromkeys([*first.notes, *report.notes]))
    return replace(report, skipped=first.skipped, notes=notes)


def _encoder(url: str, writer: dict[str, Any]) -> Callable[[Any], bytes]:
    """Return what `DatasetWriter` with these options encodes with."""
    schema = writer["schema"]
    if is_codec(schema):
        return encoder(schema)
    base = catalog_of(url, writer).latest() if writer["mode"] == "append" else None
    return encoder(resolve_schema(schema, writer.get("encoding"), base))


@contextlib.contextmanager
def _spool(folder: str | Path | None, session: str | None) -> Iterator[str]:
    """Yield the path of the spool; it is gone afterwards, unless a rerun of the session will want it."""
    if session is None:
        with tempfile.TemporaryDirectory(prefix="shardio-shuffle-", dir=folder) as name:
            yield str(Path(name) / "spool")
        return
    spool = Path(folder or tempfile.gettempdir()) / f"shardio-shuffle-{session}"
    yield str(spool)
    shutil.rmtree(spool, ignore_errors=True)


def _runs(spool: str, share: tuple[int, int] = (0, 1)) -> Iterator[Run]:
    """Cut share `share[0]` of `share[1]` of each split into runs that are looked up in one go."""
    whole = open_dataset(spool, split="all")
    for split, rows in sorted(whole.splits.items()):
        mean = max(1, open_dataset(spool, split=split).num_bytes // max(1, rows))
        step = max(1, min(_LOOKUP_RECORDS, _LOOKUP_BYTES // mean))
        first, end = (rows * (share[0] + more) // share[1] for more in (0, 1))
        for start in range(first, end, step):
            yield split, start, min(start + step, end)


def _shares(spool: str, shards: int) -> list[list[Run]]:
    """Return the runs of each of so many shares of all splits."""
    return [list(_runs(spool, (number, shards))) for number in range(shards)]


def _encoded(
    function: Callable[[Any], Any], encode: Callable[[Any], bytes], item: Any
) -> Iterator[tuple[str, bytes | BadRecord | Note]]:
    for split, value in values_of(function(item)):
        yield split, value if isinstance(value, Encoded | BadRecord | Note) else encode(value)


class _Spooled:
    """Yields runs of the records of a split, shuffled by a seed; opens the spool once in each process."""

    def __init__(self, spool: str, seed: int | None) -> None:
        self._spool = spool
        self._seed = seed
        self._readers: dict[str, DatasetReader] = {}

    def __call__(self, runs: list[Run]) -> Iterator[tuple[str, bytes]]:
        for run in runs:
            yield from self._read(*run)

    def _read(self, split: str, start: int, stop: int) -> Iterator[tuple[str, bytes]]:
        reader = self._readers.get(split)
        if reader is None:
            reader = self._readers[split] = open_dataset(self._spool, split=split, decode=False)
        order = np.arange(start, stop)
        if self._seed is not None:
            order = Permutation(len(reader), self._seed)[order]
        return ((split, payload) for payload in reader.read(order))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Spooled, (self._spool, self._seed)
