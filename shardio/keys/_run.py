"""Runs of a key index: files of sorted hashes, read by the page; see docs/format.md."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio.errors import FormatError, NotFoundError
from shardio.format import Limits
from shardio.metadata import END, ENTRY, KeyRun, KeyRunRef, ShardTable, hash_keys
from shardio.reader import ChosenColumn, ShardSource, iterate_rows
from shardio.storage import DataFile, ShortReadError, Store, read_intact

KEYS_ADVICE = "restore it from a copy, or make the index again: shardio keys URL --rebuild"
_PAGES = 64  # that are read together where all are


class StoredRun:
    """A run of a key index in a store: its head is read once, pages when they are asked for; thread-safe.

    Args:
        store: of the dataset.
        ref: the run, as the manifest names it.
        limits: upper bounds.
    """

    def __init__(self, store: Store, ref: KeyRunRef, limits: Limits) -> None:
        self._store, self.ref, self._limits = store, ref, limits
        self.url = store.url_of(ref.key)

    @cached_property
    def head(self) -> KeyRun:
        """Its shards and pages, checked.

        Raises:
            FormatError, NotFoundError: it is damaged, gone, or not the one that the manifest names.
            StorageError: the environment failed.
        """
        ref, url = self.ref, self.url
        size = KeyRun.checked_head_bytes(ref, self._limits, url=url, advice=KEYS_ADVICE)
        with self._opened() as file:
            return read_intact(
                lambda: KeyRun.parse(bytes(file.read(0, size)), ref, url=url, advice=KEYS_ADVICE),
                file.invalidate,
            )

    def numbers_in(self, table: ShardTable) -> NDArray[np.int64]:
        """Return the number in a table of each shard of the run, -1 for those that are not there; int64."""
        # The first 8 bytes of a digest tell them apart; where they did not, a shard would be read instead.
        digests, wanted = table.index_head_sha256, self.head.shards
        if not len(digests):
            return np.full(len(wanted), -1, np.int64)
        own, asked = (np.ascontiguousarray(each[:, :8]).view("<u8").ravel() for each in (digests, wanted))
        order = np.argsort(own, kind="stable")
        at = order[np.clip(np.searchsorted(own[order], asked), 0, len(own) - 1)]
        return np.where((digests[at] == wanted).all(axis=1), at, -1)

    def find(self, hashes: NDArray[np.uint64]) -> NDArray[Any]:
        """Return the entries that have one of some hashes, checked; an array of `ENTRY`."""
        head = self.head
        with self._opened() as file:
            pages = self._pages(file, head.pages_of(hashes))
        entries = np.concatenate([np.zeros(0, ENTRY), *pages])
        return entries[np.isin(entries["hash"], hashes)]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """Yield all entries in order, page by page; every byte of the file is checked."""
        head, end = self.head, self.ref.size - len(END)
        with _advised(self.url), self._store.open(self.ref.key) as file:
            if file.size != self.ref.size:
                what = "a run of a key index has another size than the manifest says"
                raise FormatError(what, url=self.url, expected=self.ref.size, found=file.size)
            if bytes(file.read(end, file.size)) != END:
                raise FormatError("a run of a key index does not end as the format says", url=self.url)
            for low in range(0, len(head.first), _PAGES):
                yield from self._pages(file, range(low, min(low + _PAGES, len(head.first))))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[DataFile]:
        with (
            _advised(self.url),
            self._store.open(self.ref.key, size=self.ref.size, stable=True) as file,
        ):
            yield file

    def _pages(self, file: DataFile, pages: Sequence[int]) -> list[NDArray[Any]]:
        head, bounds = self.head, [self.head.bounds(page) for page in pages]

        def read() -> list[NDArray[Any]]:
            found = file.read_many([start for start, _ in bounds], [stop for _, stop in bounds])
            return [
                head.parse_page(data, page, url=self.url) for page, data in zip(pages, found, strict=True)
            ]

        return read_intact(read, file.invalidate)


@contextlib.contextmanager
def _advised(url: str) -> Iterator[None]:
    """Say what to do about an object of an index that is damaged or gone."""
    try:
        yield
    except NotFoundError as error:
        what = "the manifest names a run of a key index that is not there"
        raise NotFoundError(what, url=url, advice=KEYS_ADVICE) from error
    except ShortReadError as error:
        what = "a run of a key index is cut short"
        place: dict[str, Any] = {"url": url, "advice": KEYS_ADVICE}
        raise FormatError(what, expected=error.expected, found=error.found, **place) from error
    except FormatError as error:
        error.advice = KEYS_ADVICE
        raise


def extract_keys(
    reader: Callable[[ShardSource], Any], source: ShardSource, number: int, column: ChosenColumn
) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """Return the hashes of the keys of a shard, and the rows they stand in, deleted ones too.

    Records without a key are left out.

    Args:
        reader: `RecordSequence`, or a kind of it.
        source: the shards.
        number: of the shard.
        column: whose values are the keys.

    Raises:
        FormatError, StaleIndexError, StorageError: with the address of the record.
    """
    hashes, rows = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint32)]
    first = 0
    for batch in iterate_rows(reader, source, number, [column]):
        keys = batch[column.source]
        row = np.arange(first, first + len(keys), dtype=np.uint32)
        first += len(keys)
        if not isinstance(keys, np.ndarray) and None in keys:
            row = row[[key is not None for key in keys]]
            keys = [key for key in keys if key is not None]
        hashes.append(hash_keys(keys, column.feature.type))
        rows.append(row)
    return np.concatenate(hashes), np.concatenate(rows)
