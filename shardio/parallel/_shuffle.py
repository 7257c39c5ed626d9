"""Two passes through a spool dataset, in bounded memory: a global shuffle, and a given number of shards.

The first pass writes the records, encoded, in the order in which they come; so their number is known, and
the second one looks them up, in that order or in one permutation of all records of a split, and writes the
dataset.  The same seed gives the same order for the same items, whatever the number of processes and tasks.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from shardio.catalog import Catalog, complete_receipts, items_of_tasks
from shardio.errors import BadRecord, CommitConflictError
from shardio.metadata import Schema
from shardio.order import Permutation
from shardio.parallel._driver import cut_items
from shardio.parallel._session import RunOptions, write_session
from shardio.parallel._task import Encoded, Note, items_digest, values_of
from shardio.parallel._write_session import WriteReport, WriteSession
from shardio.reader import DatasetReader, open as open_dataset
from shardio.storage import connect
from shardio.writer import encoder, is_codec, resolve_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from shardio.codecs import RecordCodec


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

    Raises:
        CommitConflictError: the session was written from other items, or in another order.
    """
    target = WriteSession.of(url, session, writer)
    catalog = target.catalog
    write = _TwoPasses(catalog, session, seed, shards)
    before = target.committed
    if before is not None and write.noted():
        write.check(map(items_digest, cut_items(items, run.tasks).parts), before.records)
        return before
    schema = _schema(catalog, writer)
    encode = encoder(schema)
    with _spool(writer.get("spool_dir"), write.spool_name(schema)) as spool:
        first = write_session(
            spool,
            items,
            partial(_encoded, function, encode),
            session=None if session is None else f"{session}.spool",
            run=run,
            writer={"mode": "create", "splits": writer.get("splits")},
            gather=False,
        )
        origin = b""
        if session is not None:
            noted = items_of_tasks(complete_receipts(Catalog(connect(spool)), first.session))
            origin = write.check((max(noted[task]) for task in sorted(noted)), first.records)
        runs: list[list[Run]] = [[run] for run in _runs(spool)] if shards is None else _shares(spool, shards)
        if shards is not None:
            # A task is a share, and leaves one shard of each split.
            run, writer = replace(run, tasks=shards), {**writer, "shard_bytes": sys.maxsize}
        report = write_session(
            url,
            runs,
            _Spooled(spool, seed),
            session=session,
            run=replace(run, on_error="raise", origin=origin),
            writer=writer,
            encoded=True,
        )
    notes = list(dict.fromkeys([*first.notes, *report.notes]))
    return replace(report, skipped=first.skipped, notes=notes)


def _schema(catalog: Catalog, writer: Mapping[str, Any]) -> Schema | RecordCodec | None:
    """Return what `DatasetWriter` with these options encodes with."""
    given = writer["schema"]
    if is_codec(given):
        codec: RecordCodec = given
        return codec
    base = catalog.latest() if writer["mode"] == "append" else None
    return resolve_schema(given, writer.get("encoding"), base)


class _TwoPasses:
    """One write in two passes, as its receipts and its spool tell it from others.

    Tasks of the second pass are made of positions, which are the same for other items and another seed; so
    their receipts say what all of it was made from.
    """

    def __init__(self, catalog: Catalog, session: str | None, seed: int | None, shards: int | None) -> None:
        self._catalog = catalog
        self._session = session
        self._order = f"{seed} {shards}"

    def spool_name(self, schema: Schema | RecordCodec | None) -> str | None:
        """Return what the spool of a session is called: others may have its id, or encode in another way."""
        if self._session is None:
            return None
        form = (
            schema.to_message().SerializeToString(deterministic=True)
            if isinstance(schema, Schema)
            else type(schema).__qualname__.encode()
        )
        place = hashlib.sha256(self._catalog.store.url.encode("utf-8", "surrogatepass") + b"\0" + form)
        return f"shardio-shuffle-{self._session}-{place.hexdigest()[:16]}"

    def noted(self) -> frozenset[bytes]:
        """Return what receipts of tasks that have ended say of their origin."""
        if self._session is None:
            return frozenset()
        return frozenset().union(*items_of_tasks(complete_receipts(self._catalog, self._session)).values())

    def check(self, items: Iterable[bytes], records: Mapping[str, int]) -> bytes:
        """Return the origin of this write, 32 bytes, given the digests of the first pass and its records.

        Raises:
            CommitConflictError: tasks have ended that say another one.
        """
        digest = hashlib.sha256(f"{self._order} {sorted(records.items())}\0".encode())
        for each in items:
            digest.update(each)
        if not self.noted() <= {digest.digest()}:
            raise CommitConflictError(
                f"session {self._session!r} was written from other items, or in another order",
                url=self._catalog.store.url,
                expected="the items and options of the run before",
                advice="give the same items, tasks=, shards=, shuffle= and seed= to continue; or "
                "another session= to write these from the start",
            )
        return digest.digest()


@contextlib.contextmanager
def _spool(folder: str | Path | None, name: str | None) -> Iterator[str]:
    """Yield the path of the spool; it is gone afterwards, unless a rerun of the session will want it."""
    if name is None:
        with tempfile.TemporaryDirectory(prefix="shardio-shuffle-", dir=folder) as made:
            yield str(Path(made) / "spool")
        return
    spool = Path(folder or tempfile.gettempdir()) / name
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
