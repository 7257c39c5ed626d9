"""Build an index of keys: hashes of all keys, sorted, in one file, and one commit.

Workers read the shards and hash their keys; this process spreads the hashes over files by their highest bits,
then sorts these one after another.  A hash is as good as random, so the files are of one size, and memory
holds one of them whatever the number of keys.

Calling it again reads only the shards that no run holds.  Their hashes become a new run, merged with older
ones that are not much larger, so that there are few runs and each entry is written again a few times at most.
Entries of shards that are gone are left out then.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.arguments import checked_options
from shardio.catalog import Catalog, StoredLists, Version, commit_change
from shardio.errors import CommitConflictError
from shardio.keys._find import renumbered
from shardio.keys._run import StoredRun, extract_keys
from shardio.metadata import (
    END,
    ENTRY,
    KEY_PAGE,
    KEY_TYPES,
    MOST_SAME_KEY,
    KeyIndex,
    KeyRun,
    KeyRunRef,
    Manifest,
    ShardTable,
    naming,
)
from shardio.parallel import SidecarPlan, run_build
from shardio.progress import CountProgress
from shardio.reader import (
    ChosenColumn,
    ReadOptions,
    RecordSequence,
    Slice,
    choose_columns,
    deleted_rows,
    slices,
)
from shardio.reports import Report
from shardio.storage import Place, Store, temporary_files

_SORTED = 1 << 21  # about so many entries are sorted at a time, 32 MiB
_MOST_FILES = 128  # that are open at once
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
    """Result of building an index of keys.

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
    this machine (`TMPDIR`) holds up to 32 bytes for each key meanwhile.

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
    plan = partial(_plan_keys, feature=feature, rebuild=rebuild)
    return run_build(plan, url, "keys", executor, workers, progress=progress, dry_run=dry_run)


def _extract(part: Slice, *, feature: str) -> tuple[bytes, bytes]:
    """Return hashes and rows of the keys of one shard, in a worker; u64 and u32, as bytes."""
    column = choose_columns(part.schema, [feature], what="an index of keys")[0]
    hashes, rows = extract_keys(RecordSequence, part.open(), 0, column)
    return hashes.tobytes(), rows.tobytes()


def _plan_keys(
    catalog: Catalog, options: ReadOptions, seen: Version, feature: str, *, rebuild: bool
) -> SidecarPlan[KeysReport]:
    if not isinstance(feature, str):
        raise TypeError(f"feature= takes the name of one feature, found {feature!r}")
    build = _KeysBuild(catalog, options, seen, feature, rebuild=rebuild)
    parts, read = build.slices(build.read.tolist()), partial(_extract, feature=feature)
    return SidecarPlan(parts, read, build.store, build.publish)


class _KeysBuild:
    """A build on its way.

    Attributes:
        read: numbers of the shards whose keys are read.
    """

    def __init__(
        self, catalog: Catalog, options: ReadOptions, seen: Version, feature: str, *, rebuild: bool
    ) -> None:
        self._catalog, self._options, self._seen = catalog, options, seen
        self._store, self._table = catalog.store, catalog.table(seen)
        self._column = _key_column(seen.manifest, feature)
        self._before = _index_of(seen.manifest, self._column)
        known = self._before if self._before and self._before.type == self._column.feature.type else None
        refs = known.runs if known and not rebuild else ()
        self._merged: list[tuple[StoredRun, NDArray[np.int64]]] = []
        self._choose([StoredRun(self._store, ref, catalog.limits) for ref in refs])
        self._changes = bool(len(self.read) or len(self._runs) != len(refs)) or known is None
        self._changes |= rebuild
        self._made: list[str] = []
        self._duplicate_records = 0
        self._duplicates: list[tuple[int, list[tuple[int, int]], int]] = []

    def _choose(self, runs: list[StoredRun]) -> None:
        """Tell which shards are read, and which runs stay as they are and which are merged."""
        covered = np.zeros(len(self._table), bool)
        numbers = [run.numbers_in(self._table) for run in runs]
        for shards in numbers:
            covered[shards[shards >= 0]] = True
        self.read = np.flatnonzero(~covered)
        entries = int(self._table.rows[self.read].sum())
        self._runs: list[KeyRunRef] = []
        for run, shards in zip(runs[::-1], numbers[::-1], strict=True):
            live, size = np.count_nonzero(shards >= 0), run.ref.entries
            # Runs of which half is gone are rewritten, and those that are not much larger than what is new.
            if 2 * live >= len(shards) and not (entries and size <= _RATIO * entries):
                self._runs.insert(0, run.ref)
            elif live:
                entries += size
                self._merged.append((run, shards))

    def slices(self, numbers: list[int]) -> list[Slice]:
        """Return some shards of the version."""
        return [*slices(self._store.url, self._seen, self._table, self._options, numbers)]

    def store(self, results: Iterable[tuple[Slice, tuple[bytes, bytes]]]) -> None:
        """Sort and store the keys that workers have read."""
        if not len(self.read) and not self._merged:
            return

        def entries() -> Iterator[NDArray[Any]]:
            for run, shards in self._merged:
                yield from (renumbered(page, shards) for page in run)
            for part, (hashes, rows) in results:
                made = np.empty(len(rows) // 4, ENTRY)
                made["hash"], made["row"] = np.frombuffer(hashes, "<u8"), np.frombuffer(rows, "<u4")
                made["shard"] = part.number
                yield made

        held = np.unique(np.concatenate([self.read, *(shards for _, shards in self._merged)]))
        held = held[held >= 0]
        most = int(self._table.rows[held].sum())
        heads = self._table.index_head_sha256[held]
        ref = _write_run(self._store, entries(), most, held, heads, self._column.name, self._note_duplicates)
        self._runs.append(ref)
        self._made.append(ref.key)

    def _note_duplicates(self, entries: NDArray[Any]) -> None:
        """Count entries of one hash among sorted ones; `shard` is a number in the table."""
        if not len(entries):
            return
        hashes = entries["hash"]
        same = hashes[1:] == hashes[:-1]
        entries = entries[np.append(same, False) | np.append(False, same)]
        entries = entries[self._are_live(entries)]
        hashes, first, counts = np.unique(entries["hash"], return_index=True, return_counts=True)
        several = counts > 1
        self._duplicate_records += int(counts[several].sum())
        for at, count in zip(first[several].tolist(), counts[several].tolist(), strict=True):
            if len(self._duplicates) == _SHOWN:
                return
            part = entries[at : at + 2]
            places = list(zip(part["shard"].tolist(), part["row"].tolist(), strict=True))
            self._duplicates.append((int(entries["hash"][at]), places, count))

    def _are_live(self, entries: NDArray[Any]) -> NDArray[np.bool_]:
        live = np.ones(len(entries), bool)
        for number in np.unique(entries["shard"]).tolist():
            entry = self._table[number]
            if entry.deletion_key:
                deleted = deleted_rows(self._store, entry, self._catalog.limits)
                own = entries["shard"] == number
                live[own] = ~np.isin(entries["row"][own], deleted)
        return live

    def publish(self, dry_run: bool) -> KeysReport:  # noqa: FBT001 - as `SidecarPlan` calls it
        """Publish the index, and return the report."""
        version = self._seen
        if self._changes and not dry_run:
            version = commit_change(
                self._catalog, self._follow, operation="keys", seen=version, keys=self._made
            )
        index = _index_of(version.manifest, self._column)
        runs = index.runs if index else ()
        return KeysReport(
            url=self._store.url,
            version=version.number,
            digest=version.digest,
            feature=self._column.name,
            shards=len(self._table),
            read=len(self.read),
            keys=sum(run.entries for run in runs),
            runs=len(runs),
            stored_bytes=sum(run.size for run in runs),
            duplicate_records=self._duplicate_records,
            duplicates=tuple(self._read_duplicates()),
            dry_run=dry_run,
        )

    def _follow(self, base: Version, _lists: StoredLists) -> Manifest:
        manifest, column = base.manifest, self._column
        now = _key_column(manifest, column.name)
        if (_index_of(manifest, now), now.described) != (self._before, column.described):
            raise CommitConflictError(
                f"another build of the keys {column.name!r}, or another schema, was committed meanwhile",
                url=self._store.url,
                advice="call it again to add the missing shards",
            )
        index = KeyIndex(column.stored, column.feature.type, tuple(self._runs))
        others = [each for each in manifest.keys if each.feature != index.feature]
        return replace(manifest, keys=tuple(sorted([*others, index], key=lambda each: each.feature)))

    def _read_duplicates(self) -> Iterator[DuplicateKey]:
        """Yield the duplicates that were noted with their keys; hashes that only collide are none."""
        name = self._column.name
        for _, places, count in self._duplicates:
            keys = []
            for number, row in places:
                (part,) = self.slices([number])
                shards = ShardTable.from_entries([part.entry.without_deletions()])
                options = replace(part.options, features=(name,))
                keys.append(RecordSequence(replace(part, shards=shards, options=options).open())[row][name])
            if keys[0] == keys[1]:
                key = int(keys[0]) if isinstance(keys[0], np.integer) else keys[0]
                named = tuple((self._table.key[number], row) for number, row in places)
                yield DuplicateKey(key, count, named)


def _key_column(manifest: Manifest, name: str) -> ChosenColumn:
    """Return a feature whose values are keys.

    Raises:
        ValueError: there is none, or its values cannot be keys.
    """
    (column,) = choose_columns(manifest.schema, [name], what="an index of keys")
    feature = column.feature
    if column.derived or feature.shape or feature.type not in KEY_TYPES:
        raise ValueError(f"feature {name!r} is {feature.short}; keys are {', '.join(KEY_TYPES)}")
    return column


def _index_of(manifest: Manifest, column: ChosenColumn) -> KeyIndex | None:
    return next((index for index in manifest.keys if index.feature == column.stored), None)


def _write_run(
    store: Store,
    entries: Iterator[NDArray[Any]],
    most: int,
    shards: NDArray[np.int64],
    heads: NDArray[np.uint8],
    feature: str,
    on_sorted: Callable[[NDArray[Any]], None],
) -> KeyRunRef:
    """Sort entries and store them as a run; memory holds some millions, the temporary folder all of them.

    Args:
        store: of the dataset.
        entries: arrays of `ENTRY`, in any order; `shard` is one of `shards`.
        most: how many there are, about.
        shards: int64, ascending, the numbers that entries name shards by; the run's own numbers follow them.
        heads: uint8 [shards, 32], SHA-256 of the head of the index of each.
        feature: for messages.
        on_sorted: called with sorted entries, before they are numbered again.

    Raises:
        ValueError: more than 2^20 records share a key.
        StorageError: the environment failed.
    """
    files = 1 << (max(1, min(_MOST_FILES, -(-most // _SORTED))) - 1).bit_length()
    with temporary_files(), tempfile.TemporaryDirectory(prefix="shardio-keys-") as folder:
        paths = [Path(folder, str(number)) for number in range(files)]
        _spread(entries, paths)
        sorted_path, path = Path(folder, "sorted"), Path(folder, "run")
        first, crcs = [np.zeros(0, np.uint64)], []
        count = crc = 0
        rest = np.zeros(0, ENTRY)
        with sorted_path.open("wb") as file:
            for number, each in enumerate(paths):
                found = _sorted(each, max(_SORTED, most // files), feature)
                each.unlink()
                on_sorted(found)
                found["shard"] = np.searchsorted(shards, found["shard"])
                rest = np.concatenate([rest, found])
                stop = len(rest) if number == files - 1 else len(rest) // KEY_PAGE * KEY_PAGE
                whole, rest = rest[:stop], rest[stop:]
                first.append(whole["hash"][::KEY_PAGE])
                crcs += [
                    kernels.crc32c(whole[low : low + KEY_PAGE].tobytes()) for low in range(0, stop, KEY_PAGE)
                ]
                crc, count = kernels.crc32c(whole.tobytes(), crc), count + stop
                file.write(whole.tobytes())
        head = KeyRun(heads, np.concatenate(first), np.array(crcs, np.uint32), count).pack_head(crc)
        with path.open("wb") as target, sorted_path.open("rb") as file:
            target.write(head)
            shutil.copyfileobj(file, target)
            target.write(END)
        size, key = path.stat().st_size, naming.key_run_key()
        store.put_idempotent((key, path))
    return KeyRunRef(key, size, hashlib.sha256(head).digest(), len(shards), count)


def _spread(entries: Iterator[NDArray[Any]], paths: list[Path]) -> None:
    """Write entries to 2^b files by the b highest bits of their hashes."""
    bits = len(paths).bit_length() - 1
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for part in entries:
            # In two steps: a shift by 64 bits is none.
            numbers = (part["hash"] >> np.uint64(1) >> np.uint64(63 - bits)).astype(np.int64)
            order = np.argsort(numbers, kind="stable")
            edges = np.searchsorted(numbers[order], np.arange(len(files) + 1))
            for number in np.flatnonzero(np.diff(edges)).tolist():
                files[number].write(part[order[edges[number] : edges[number + 1]]].tobytes())


def _sorted(path: Path, usual: int, feature: str) -> NDArray[Any]:
    """Return the entries of a file in order, of which `usual` are expected.

    Raises:
        ValueError: more than 2^20 have one hash.
    """
    most, count = MOST_SAME_KEY, path.stat().st_size // ENTRY.itemsize
    # Hashes are as good as random: so many more in one file have few keys.
    if count <= 16 * max(usual, most):
        entries = np.fromfile(path, ENTRY)
        place = (entries["shard"].astype(np.uint64) << np.uint64(32)) | entries["row"]
        entries = entries[np.lexsort((place, entries["hash"]))]
        hashes = entries["hash"]
        if len(hashes) <= most or not (hashes[most:] == hashes[:-most]).any():
            return entries
    raise ValueError(
        f"feature {feature!r} is not a key: more than {most:,} records share a value; a table finds "
        f"them by ds.filter: shardio table URL --features {feature}"
    )
