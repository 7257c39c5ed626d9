"""Build an index of keys: hashes of all keys, sorted, in parts by their highest bits, and one commit.

Workers read the shards and hash their keys; this process spreads the hashes over files by their highest bits,
sorts these and stores each as a part.  A hash is as good as random, so the files are of one size, and memory
holds a few of them whatever the number of keys; the disk holds 16 bytes for each.

Calling it again reads only the shards that no run holds.  Their hashes become a new run, merged with older
ones that are not much larger, so that there are few runs and each entry is written again a few times at most.
Entries of shards that are gone are left out then.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.arguments import checked_options
from shardio.catalog import Catalog, StoredLists, Version
from shardio.errors import CommitConflictError
from shardio.lifecycle._build import ReadShards, SidecarBuild, run_build
from shardio.lifecycle._change import commit_change
from shardio.metadata import (
    ENTRY,
    KEY_PAGE,
    MOST_SAME_KEY,
    KeyIndex,
    KeyPart,
    KeyRun,
    KeyRunRef,
    Manifest,
    PartHead,
    ShardTable,
    naming,
)
from shardio.progress import CountProgress
from shardio.reader import (
    ChosenColumn,
    ReadOptions,
    RecordSequence,
    Slice,
    check_key_feature,
    choose_columns,
    deleted_rows,
    extract_keys,
    read_key_run,
    read_part,
    shards_of_run,
)
from shardio.reports import Report
from shardio.storage import Place, Store, temporary_files

PART_ENTRIES = 1 << 21  # about so many entries are sorted at a time, 32 MiB
_BUFFER_BYTES = 64 << 20  # of entries that wait to be spread over the files
_RATIO = 8
_SHOWN = 10


@dataclass(frozen=True)
class DuplicateKey(Report):
    """A key that several records have.

    Attributes:
        key: of the records; text, bytes or a number.
        records: how many have its hash.
        places: shard and row of the first of them.
    """

    key: str | bytes | int
    records: int
    places: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class KeysReport(Report):
    """What building an index of keys has done.

    Attributes:
        url: of the dataset.
        version: that has the index.
        digest: of this version.
        feature: whose values are the keys.
        shards: of the dataset, all of which are in the index now.
        read: of them, those that were read now.
        keys: entries of the index, those of deleted records too.
        runs: that a lookup looks into.
        stored_bytes: of the index.
        duplicate_records: of the keys that were sorted now, records that share theirs with another one, as
            far as hashes tell; deleted ones are not counted.
        duplicates: some of these keys.
        dry_run: nothing was changed; `read` is what would be.
    """

    url: str
    version: int
    digest: str
    feature: str
    shards: int
    read: int
    keys: int
    runs: int
    stored_bytes: int
    duplicate_records: int = 0
    duplicates: tuple[DuplicateKey, ...] = ()
    dry_run: bool = False


@checked_options
def build_keys(
    url: Place,
    feature: str,
    *,
    rebuild: bool = False,
    dry_run: bool = False,
    executor: Executor | None = None,
    workers: int | None = None,
    progress: bool | Callable[[CountProgress], None] = False,
) -> KeysReport:
    """Make an index by which `ds.find(key)` finds records, with two or three range reads each.

    Calling it again adds what is new. A dataset may have indexes of several features. The temporary folder of
    this machine (`TMPDIR`) holds 16 bytes for each key meanwhile.

    Args:
        url: of the dataset; or a `shardio.Address`, or a reader.
        feature: text, bytes or integers; of all splits.
        rebuild: make all of it again, as after damage.
        dry_run: only say what would be done.
        executor: any of `concurrent.futures`, or one with its interface; None for a process pool of its own.
        workers: processes of that pool; None for one per processor.
        progress: True for a bar on a terminal and lines in a log, or a function of a `CountProgress`.

    Returns:
        A report, which names keys that several records have: `find` refuses these, `find_all` returns them.

    Raises:
        ValueError: there is no such feature, it cannot be a key, or more than 2^20 records share a key.
        NotFoundError: there is no dataset.
        CorruptBlockError, FormatError, StaleIndexError: a shard is damaged; nothing was published.
        StorageError: the environment failed, or a data root is not allowed.

    Examples:
        >>> import shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/birds"
        >>> with shardio.DatasetWriter(url, schema={"id": "int64"}) as out:
        ...     for n in (7, 1, 7):
        ...         out.write({"id": n})
        >>> report = shardio.build_keys(url, feature="id", workers=1)
        >>> report.keys, [each.key for each in report.duplicates]
        (3, [7])
        >>> shardio.open(url).find_all(7)
        array([0, 2])
    """
    begin = partial(_KeysBuild, feature=feature, rebuild=rebuild)
    return run_build(begin, url, "keys", executor, workers, progress=progress, dry_run=dry_run)


def _extract(part: Slice, *, feature: str) -> tuple[bytes, bytes]:
    """Return hashes and rows of the keys of one shard, in a worker; u64 and u32, as bytes."""
    column = choose_columns(part.schema, [feature], what="an index of keys")[0]
    hashes, rows = extract_keys(RecordSequence, part.open(), 0, column)
    return hashes.tobytes(), rows.tobytes()


class _IndexSummary(NamedTuple):
    """What a report says of an index."""

    runs: tuple[KeyRunRef, ...]
    stored_bytes: int
    duplicates: tuple[DuplicateKey, ...]


class _KeysBuild(SidecarBuild[KeysReport]):
    """A build on its way."""

    def __init__(
        self, catalog: Catalog, options: ReadOptions, seen: Version, feature: str, *, rebuild: bool
    ) -> None:
        if not isinstance(feature, str):
            raise TypeError(f"feature= takes the name of one feature, found {feature!r}")
        super().__init__(catalog, options, seen)
        self._feature, self._rebuild = feature, rebuild
        manifest = seen.manifest
        self._column: ChosenColumn
        (self._column,) = choose_columns(manifest.schema, [feature], what="an index of keys")
        check_key_feature(self._column)
        self._known = _index_of(manifest, self._column.stored)
        usable = self._known is not None and self._known.type == self._column.feature.type
        self._choose(self._known if usable and not rebuild else None)
        self._new_run: KeyRunRef | None = None
        self._keys: list[str] = []
        self._lock = threading.Lock()
        self._duplicate_records = 0
        self._duplicates: list[tuple[int, list[tuple[int, int]], int]] = []
        self._summary: _IndexSummary | None = None

    def _choose(self, index: KeyIndex | None) -> None:
        """Tell which runs stay as they are, which are merged, and which shards are read."""
        runs = []
        covered = np.zeros(len(self._table), bool)
        if index is not None:
            for ref in index.runs:
                run = read_key_run(self._store, ref, index, self._catalog.limits)
                shards = shards_of_run(run, self._table)
                covered[shards[shards >= 0]] = True
                runs.append((ref, run, shards))
        self.read = np.flatnonzero(~covered)
        entries = int(self._table.rows[self.read].sum())
        live = [(ref, run, shards) for ref, run, shards in runs if (shards >= 0).any()]
        # Runs of which half is gone are rewritten.
        self._merged = [each for each in live if 2 * np.count_nonzero(each[2] >= 0) < len(each[2])]
        kept = [each for each in live if 2 * np.count_nonzero(each[2] >= 0) >= len(each[2])]
        entries += sum(each[0].entries for each in self._merged)
        while entries and kept and kept[-1][0].entries <= _RATIO * entries:
            entries += kept[-1][0].entries
            self._merged.insert(0, kept.pop())
        self._kept = [ref for ref, _, _ in kept]
        self._most_entries = entries
        self._changes = bool(len(self.read) or len(self._kept) != len(runs)) or self._known is None

    def make(self, read: ReadShards) -> None:
        """Read, sort and store what is missing."""
        if not self._changes or not self._most_entries:
            return
        parts = self.slices(self.read.tolist())

        def entries() -> Iterator[NDArray[Any]]:
            for _, run, shards in self._merged:
                for key_part in run.parts:
                    for page in read_part(self._store, key_part) if key_part.entries else ():
                        known = page[page["shard"] < len(shards)].copy()
                        place = shards[known["shard"]]
                        known["shard"] = np.maximum(place, 0)
                        yield known[place >= 0]
            for part, (hashes, rows) in read(partial(_extract, feature=self._column.name), parts):
                made = np.empty(len(rows) // 4, ENTRY)
                made["hash"], made["row"] = np.frombuffer(hashes, "<u8"), np.frombuffer(rows, "<u4")
                made["shard"] = part.number
                yield made

        shards = sorted({*self.read.tolist(), *(int(i) for _, _, own in self._merged for i in own if i >= 0)})
        self._new_run, self._keys = write_run(
            self._store,
            entries(),
            feature=self._column.stored,
            kind=self._column.feature.type,
            most_entries=self._most_entries,
            shards=np.array(shards, np.int64),
            heads=self._table.index_head_sha256,
            on_sorted=self._note_duplicates,
            limits=self._catalog.limits,
        )

    def _note_duplicates(self, entries: NDArray[Any]) -> None:
        """Count entries of one hash among sorted ones; `shard` is a number in the table."""
        hashes = entries["hash"]
        same = hashes[1:] == hashes[:-1]
        if not same.any():
            return
        entries = entries[np.append(same, False) | np.append(False, same)]
        entries = entries[self._are_live(entries)]
        hashes, first, counts = np.unique(entries["hash"], return_index=True, return_counts=True)
        several = counts > 1
        found = []
        for at, count in zip(first[several].tolist()[:_SHOWN], counts[several].tolist(), strict=False):
            part = entries[at : at + 2]
            places = list(zip(part["shard"].tolist(), part["row"].tolist(), strict=True))
            found.append((int(entries["hash"][at]), places, count))
        with self._lock:  # parts are sorted side by side
            self._duplicate_records += int(counts[several].sum())
            self._duplicates = sorted([*self._duplicates, *found])[:_SHOWN]

    def _are_live(self, entries: NDArray[Any]) -> NDArray[np.bool_]:
        live = np.ones(len(entries), bool)
        for number in np.unique(entries["shard"]).tolist():
            entry = self._table[number]
            if entry.deletion_key:
                deleted = deleted_rows(self._store, entry, self._catalog.limits)
                own = entries["shard"] == number
                live[own] = ~np.isin(entries["row"][own], deleted)
        return live

    def commit(self) -> Version:
        """Publish the index."""
        if not self._changes:
            return self._seen
        name, kind = self._column.name, self._column.feature.type
        runs = (*self._kept, *([self._new_run] if self._new_run is not None else []))
        # Nothing is read once the version is made: an error would say that it is not.
        self._summary = self._summarize(KeyIndex(self._column.stored, kind, runs))

        def follow(base: Version, lists: StoredLists) -> Manifest | None:
            del lists
            manifest = base.manifest
            column = choose_columns(manifest.schema, [name], what="an index of keys")[0]
            stored = column.stored
            found = (_index_of(manifest, stored), column.feature.type, column.described.default_sha256)
            if found != (self._known, kind, self._column.described.default_sha256):
                raise CommitConflictError(
                    f"another build of the keys {name!r}, or another schema, was committed meanwhile",
                    url=self._store.url,
                    advice="call it again: it adds what is still missing",
                )
            others = [index for index in manifest.keys if index.feature != stored]
            keys = sorted([*others, KeyIndex(stored, kind, runs)], key=lambda index: index.feature)
            return replace(manifest, keys=tuple(keys))

        return commit_change(self._catalog, follow, operation="keys", seen=self._seen, keys=self._keys)

    def without(self, doomed: set[str], latest: Version) -> _KeysBuild | None:
        if not doomed.intersection(self._keys):
            return None
        # A run is one whole: it is made from the start.
        return _KeysBuild(self._catalog, self._options, latest, self._feature, rebuild=self._rebuild)

    def _summarize(self, index: KeyIndex | None) -> _IndexSummary:
        runs = index.runs if index is not None else ()
        stored = sum(run.size for run in runs)
        for ref in runs:
            assert index is not None  # noqa: S101 - for the type checker
            run = read_key_run(self._store, ref, index, self._catalog.limits)
            stored += sum(part.size for part in run.parts)
        return _IndexSummary(runs, stored, tuple(self._read_duplicates()))

    def report(self, version: Version, *, dry_run: bool = False) -> KeysReport:
        """Say what was done, or would be."""
        summary = self._summary or self._summarize(_index_of(version.manifest, self._column.stored))
        return KeysReport(
            url=self._store.url,
            version=version.number,
            digest=version.digest,
            feature=self._column.name,
            shards=len(self._table),
            read=len(self.read),
            keys=sum(run.entries for run in summary.runs),
            runs=len(summary.runs),
            stored_bytes=summary.stored_bytes,
            duplicate_records=self._duplicate_records,
            duplicates=summary.duplicates,
            dry_run=dry_run,
        )

    def _read_duplicates(self) -> Iterator[DuplicateKey]:
        """Yield the duplicates that were noted with their keys; hashes that only collide are none."""
        for _, places, count in self._duplicates:
            keys = []
            for number, row in places:
                (part,) = self.slices([number])
                shards = ShardTable.from_entries([part.entry.without_deletions()])
                options = replace(part.options, features=(self._column.name,))
                source = replace(part, shards=shards, options=options).open()
                keys.append(RecordSequence(source)[row][self._column.name])
            if keys[0] == keys[1]:
                key = int(keys[0]) if isinstance(keys[0], np.integer) else keys[0]
                yield DuplicateKey(
                    key, count, tuple((self._table.key[number], row) for number, row in places)
                )


def _index_of(manifest: Manifest, feature: str) -> KeyIndex | None:
    return next((index for index in manifest.keys if index.feature == feature), None)


def write_run(  # noqa: PLR0913 - each is another side of a run
    store: Store,
    entries: Iterator[NDArray[Any]],
    *,
    feature: str,
    kind: str,
    most_entries: int,
    shards: NDArray[np.int64],
    heads: NDArray[np.uint8],
    on_sorted: Callable[[NDArray[Any]], None] = lambda _: None,
    limits: Any,
) -> tuple[KeyRunRef, list[str]]:
    """Sort entries and store them as a run; memory holds a few parts, the temporary folder all of them.

    Args:
        store: of the dataset.
        entries: arrays of `ENTRY`, in any order; `shard` is one of `shards`.
        feature, kind: name and type of the feature.
        most_entries: how many there are at most, about; tells the number of parts.
        shards: int64, ascending, the numbers that entries name shards by; the run's own numbers follow them.
        heads: uint8 [.., 32], SHA-256 of the head of the index by these numbers.
        on_sorted: called with the sorted entries of each part, before they are numbered again.
        limits: upper bounds.

    Returns:
        The reference of the run, and the keys of all objects that were stored.

    Raises:
        ValueError: more than 2^20 records share a key.
        StorageError: the environment failed.
    """
    bits = max(0, (max(1, -(-most_entries // PART_ENTRIES)) - 1).bit_length())
    key = naming.key_run_key(naming.random_id() + naming.random_id())
    with temporary_files(), tempfile.TemporaryDirectory(prefix="shardio-keys-") as folder:
        _spread(entries, Path(folder), bits)

        make = partial(_make_part, store, Path(folder), bits, key, shards, on_sorted, feature)
        threads = min(4, os.cpu_count() or 1)
        with ThreadPoolExecutor(threads, "shardio-keys") as pool:
            parts = list(pool.map(make, range(1 << bits)))
    run = KeyRun(feature, kind, heads[shards], parts)
    data, sha256 = run.seal(limits=limits)
    store.put_idempotent((key, data))
    count = sum(part.entries for part in parts)
    ref = KeyRunRef(key, len(data), sha256, len(shards), count)
    return ref, [key, *(part.key for part in parts if part.key)]


def _spread(entries: Iterator[NDArray[Any]], folder: Path, bits: int) -> None:
    """Append entries to files by the highest bits of their hashes."""
    waiting: list[NDArray[Any]] = []
    size = 0

    def flush() -> None:
        nonlocal waiting, size
        if waiting:
            _append(np.concatenate(waiting), folder, "", 64 - bits, 1 << bits)
        waiting, size = [], 0

    for part in entries:
        waiting.append(part)
        size += part.nbytes
        if size >= _BUFFER_BYTES:
            flush()
    flush()


def _append(entries: NDArray[Any], folder: Path, prefix: str, shift: int, files: int) -> None:
    if files == 1:
        numbers = np.zeros(len(entries), np.int64)
    else:
        numbers = ((entries["hash"] >> np.uint64(shift)) & np.uint64(files - 1)).astype(np.int64)
    order = np.argsort(numbers, kind="stable")
    entries, numbers = entries[order], numbers[order]
    edges = np.searchsorted(numbers, np.arange(files + 1))
    for number in np.flatnonzero(np.diff(edges)).tolist():
        with (folder / f"{prefix}{number}").open("ab") as file:
            file.write(entries[edges[number] : edges[number + 1]].tobytes())


def _sorted(path: Path, shift: int, feature: str) -> Iterator[NDArray[Any]]:
    """Yield the entries of a file in order; those of one hash are never in two arrays.

    Args:
        path: of the file; it is removed.
        shift: how many of the lowest bits of the hashes may differ within it.
        feature: for messages.
    """
    count = path.stat().st_size // ENTRY.itemsize
    if count <= 2 * PART_ENTRIES or (shift <= 0 and count <= MOST_SAME_KEY):
        entries = np.fromfile(path, ENTRY)
        path.unlink()
        place = (entries["shard"].astype(np.uint64) << np.uint64(32)) | entries["row"]
        entries = entries[np.lexsort((place, entries["hash"]))]
        if (
            len(entries) > MOST_SAME_KEY
            and (entries["hash"][MOST_SAME_KEY:] == entries["hash"][:-MOST_SAME_KEY]).any()
        ):
            raise _no_key(feature)
        yield entries
        return
    if shift <= 0:
        raise _no_key(feature)
    # Many records of few keys: hashes are as good as random, keys are not.
    shift = max(0, shift - 4)
    with path.open("rb") as file:
        while len(data := np.fromfile(file, ENTRY, PART_ENTRIES)):
            _append(data, path.parent, f"{path.name}-", shift, 16)
    path.unlink()
    for number in range(16):
        inner = path.parent / f"{path.name}-{number}"
        if inner.exists():
            yield from _sorted(inner, shift, feature)


def _no_key(feature: str) -> ValueError:
    message = (
        f"feature {feature!r} is not a key: more than {MOST_SAME_KEY:,} records share a value; a table finds "
        f"them by ds.filter: shardio table URL --features {feature}"
    )
    return ValueError(message)


def _make_part(
    store: Store,
    folder: Path,
    bits: int,
    key: str,
    shards: NDArray[np.int64],
    on_sorted: Callable[[NDArray[Any]], None],
    feature: str,
    number: int,
) -> KeyPart:
    """Sort the entries of a file, and store them as a part of a run."""
    path = folder / f"{number}"
    if not path.exists():
        return KeyPart("", 0, 0, 0, bytes(32))
    key = naming.key_part_key(key, number)
    count = path.stat().st_size // ENTRY.itemsize
    target = path.with_suffix(".part")
    first: list[int] = []
    crcs: list[int] = []
    head_bytes = PartHead.size(count)
    with target.open("wb") as file:
        file.write(bytes(head_bytes))
        rest = np.zeros(0, ENTRY)
        for found in _sorted(path, 64 - bits, feature):
            on_sorted(found)
            found["shard"] = np.searchsorted(shards, found["shard"])
            whole = np.concatenate([rest, found]) if len(rest) else found
            stop = len(whole) // KEY_PAGE * KEY_PAGE
            rest = whole[stop:]
            _add_pages(file, whole[:stop], first, crcs)
        _add_pages(file, rest, first, crcs)
        head = PartHead.pack(np.array(first, np.uint64), np.array(crcs, np.uint32), count)
        file.seek(0)
        file.write(head)
    size = target.stat().st_size
    try:
        store.put_idempotent((key, target))
    finally:
        target.unlink(missing_ok=True)
    return KeyPart(key, size, count, head_bytes, hashlib.sha256(head).digest())


def _add_pages(file: Any, entries: NDArray[Any], first: list[int], crcs: list[int]) -> None:
    for low in range(0, len(entries), KEY_PAGE):
        page = entries[low : low + KEY_PAGE].tobytes()
        first.append(int(entries["hash"][low]))
        crcs.append(kernels.crc32c(page))
        file.write(page)
