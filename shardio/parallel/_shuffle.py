"""A global shuffle at write time in bounded memory: two passes through a spool dataset.

The first pass writes the records, encoded, in the order in which they come; the second one looks them up
in an order that is one permutation of all records of a split, and writes the dataset.  The same seed
gives the same order for the same items, whatever the number of processes and tasks.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.errors import BadRecord
from shardio.order import Permutation
from shardio.parallel._marks import Encoded, Note
from shardio.parallel._session import HowToRun, WriteReport, catalog_of, merged_before, write_session
from shardio.parallel._task import values_of
from shardio.reader import open as open_dataset
from shardio.writer import encoder, is_codec, settle_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardio.reader import DatasetReader

__all__ = ["write_shuffled"]

# A lookup of that much is enough to merge near reads, and few enough bytes to hold.
_LOOKUP_RECORDS = 1024
_LOOKUP_BYTES = 16 << 20


def write_shuffled(
    url: str,
    items: Iterable[Any],
    function: Callable[[Any], Any],
    *,
    seed: int,
    session: str | None,
    how: HowToRun,
    writer: dict[str, Any],
) -> WriteReport:
    """Write `items` shuffled; the options are those of `write_session`.

    With a session the spool keeps its place, so that a rerun finds the first pass done, or goes on with it.
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
            how=how,
            writer={"mode": "create"},
        )
        report = write_session(
            url,
            list(_runs(spool)),
            _Shuffled(spool, seed),
            session=session,
            how=replace(how, on_error="raise"),
            writer=writer,
            encoded=True,
        )
    return replace(report, skipped=first.skipped, notes=first.notes)


def _encoder(url: str, writer: dict[str, Any]) -> Callable[[Any], bytes]:
    """Return what `DatasetWriter` with these options encodes with."""
    schema = writer["schema"]
    if is_codec(schema):
        return encoder(schema)
    base = catalog_of(url, writer).latest() if writer["mode"] == "append" else None
    return encoder(settle_schema(schema, writer.get("encoding"), base))


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


def _runs(spool: str) -> Iterator[tuple[str, int, int]]:
    """Cut each split into runs of (split, start, stop) that are looked up in one go."""
    whole = open_dataset(spool, split="all")
    for split, rows in sorted(whole.splits.items()):
        mean = max(1, open_dataset(spool, split=split).num_bytes // max(1, rows))
        step = max(1, min(_LOOKUP_RECORDS, _LOOKUP_BYTES // mean))
        for start in range(0, rows, step):
            yield split, start, min(start + step, rows)


def _encoded(
    function: Callable[[Any], Any], encode: Callable[[Any], bytes], item: Any
) -> Iterator[tuple[str, bytes | BadRecord | Note]]:
    for split, value in values_of(function(item)):
        yield split, value if isinstance(value, Encoded | BadRecord | Note) else encode(value)


class _Shuffled:
    """Yields a run of the shuffled records of a split; opens the spool once in each process."""

    def __init__(self, spool: str, seed: int) -> None:
        self._spool = spool
        self._seed = seed
        self._readers: dict[str, DatasetReader] = {}

    def __call__(self, run: tuple[str, int, int]) -> Iterator[tuple[str, bytes]]:
        split, start, stop = run
        reader = self._readers.get(split)
        if reader is None:
            reader = self._readers[split] = open_dataset(self._spool, split=split, decode=False)
        order = Permutation(len(reader), self._seed)[np.arange(start, stop)]
        return ((split, payload) for payload in reader.read(order))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Shuffled, (self._spool, self._seed)
