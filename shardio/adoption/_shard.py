"""Shards indexed: one, and many in processes; what an index is called, and whether it exists already.

A shard's UUID is a digest of its address, size and ETag, so indexing the same object again makes the same
UUID, and an index that was made before tells whether it was made for the object as it is now.  Every shard
has an outcome, also where its worker was lost.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

from shardio import kernels
from shardio.adoption._scan import ScanOptions, SpooledIndex, scan_shard
from shardio.display import plural
from shardio.errors import FormatError, NotFoundError, ShardioError, StaleIndexError, StorageError
from shardio.format import Compression
from shardio.metadata import (
    IndexHead,
    ShardEntry,
    check_index_end,
    naming,
    parse_head,
    read_head_bytes,
    read_head_size,
)
from shardio.parallel import check_workers, cut_jobs, run
from shardio.storage import Store, connect, read_intact
from shardio_indexer._blocks import GapFound

_HEAD_BYTES = 64 << 10
_FAILURES = (ShardioError, OSError, ValueError, MemoryError)


@dataclass(frozen=True, kw_only=True)
class FoundShard:
    """One object.

    Attributes:
        split: that it belongs to.
        root: URL of the data root; "" for the dataset's own.
        key: under that root.
        url: of the object.
        size, etag: of the object when it was listed.
        unusable_keys: keys that garbage collection has doomed or that are taken: no index of it gets them.
        format: what a description beside it says that it is; None where that is to be found out.
        rows: how many records that has for it; None where it does not say.
        hashes: names of `hashlib` and hexadecimal digests of its bytes, as far as they are known.
    """

    split: str
    root: str
    key: str
    url: str
    size: int
    etag: str
    unusable_keys: frozenset[str] = frozenset()
    format: str | None = None
    rows: int | None = None
    hashes: tuple[tuple[str, str], ...] = ()

    def uuid(self, options: ScanOptions) -> bytes:
        """Return the 16 bytes that stand for this object read this way."""
        facts = (
            self.url,
            str(self.size),
            self.etag,
            self.format or options.format or "",
            options.record_crc,
            options.lines or "",
        )
        return hashlib.sha256(
            "\0".join(("shardio adoption 3", *facts)).encode("utf-8", "surrogateescape")
        ).digest()[:16]

    @property
    def usual_index_key(self) -> str:
        """The key of the index beside the shard; of a foreign root, a folder of its own in the dataset."""
        if not self.root:
            return naming.usual_index_key(self.key)
        folder = hashlib.sha256(self.root.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        return naming.usual_index_key(f"{naming.INDEXES}{folder}/{self.key}")

    def renewed_index_key(self, name: str) -> str:
        """Return the key of an index made after the usual one was taken, from 16 hexadecimal digits."""
        return naming.usual_index_key(f"{self.usual_index_key.removesuffix(naming.INDEX_SUFFIX)}.{name}")

    def index_keys(self, uuid: bytes) -> list[str]:
        """Return the keys that its index may have, by preference."""
        keys = [self.usual_index_key, self.renewed_index_key(uuid[:8].hex())]
        return [key for key in keys if key not in self.unusable_keys] or [
            self.renewed_index_key(naming.random_id())
        ]


@dataclass(frozen=True)
class ShardOutcome:
    """What became of one shard.

    Attributes:
        shard: which.
        entry: as a list of shards describes it, but for schema and root number. None after an error.
        error: why it was refused.
        skipped: damage that was left out.
        notes: what deserves attention.
    """

    shard: FoundShard
    entry: ShardEntry | None = None
    error: Exception | None = None
    skipped: tuple[GapFound, ...] = ()
    notes: Counter[str] = field(default_factory=Counter)


def index_shard(
    shard: FoundShard,
    target: Store,
    data: Store,
    options: ScanOptions,
    *,
    show: Callable[[int], None] | None = None,
) -> ShardOutcome:
    """Make the index of a shard, unless it exists; any failure becomes part of the outcome.

    Args:
        shard: which.
        target: the dataset's own store, which takes the indexes.
        data: the store of the shard's data root.
        options: of the scan.
        show: called with the number of bytes of each piece.
    """
    try:
        return _index_shard(shard, target, data, options, show)
    except _FAILURES as error:
        known = error if isinstance(error, ShardioError) else StorageError(f"{type(error).__name__}: {error}")
        return ShardOutcome(shard, error=known.located(url=shard.url))


def index_is_intact(target: Store, entry: ShardEntry, options: ScanOptions) -> bool:
    """Tell whether the index of a shard is there and is the one that was made, to its last byte.

    Raises:
        StorageError: it could not be read.
    """
    url = target.url_of(entry.usual_index_key)

    def check() -> None:
        data = target.get(entry.usual_index_key, max_bytes=options.limits.index)
        head = parse_head(data, url=url, limits=options.limits)
        end = head.frame_stop_offset + 4 * head.rows
        check_index_end(head, data[end:], url=url)
        found = head.head_sha256, kernels.crc32c(data[head.frame_stop_offset : end])
        if found != (entry.index_head_sha256, head.frames_crc32c):
            raise StaleIndexError("an index is not the one that was made", url=url)

    try:
        read_intact(check)
    except (FormatError, StaleIndexError, NotFoundError):
        return False
    return True


def _index_shard(
    shard: FoundShard, target: Store, data: Store, options: ScanOptions, show: Callable[[int], None] | None
) -> ShardOutcome:
    naming.check_foreign_key(shard.key)
    uuid = shard.uuid(options)
    keys = [*shard.index_keys(uuid), shard.renewed_index_key(naming.random_id())]
    free = None
    for key in keys:
        try:
            head = _read_index(target, key, options)
        except FormatError:
            continue  # something else is there, or what is left of an index
        if head is None:
            free = key
            break
        if head.uuid == uuid:
            return _outcome_of_index(shard, key, head)
    if free is None:
        raise StorageError(
            "another index is under the name of this one",
            url=target.url_of(keys[-1]),
            advice="run it again",
        )
    if shard.format is not None:
        options = replace(options, format=shard.format, compression=Compression.NONE)
    scanned = scan_shard(
        data, shard.key, uuid, options,
        size=shard.size, etag=_known(shard.etag), hashes=shard.hashes, show=show,
    )  # fmt: skip
    try:
        _check_unchanged(shard, data)
        if shard.rows not in (None, scanned.index.head.rows):
            raise FormatError(
                "the shard does not hold the samples that its index.json says",
                expected=shard.rows,
                found=scanned.index.head.rows,
                advice="fetch both again",
            )
        stored = _put_index(target, free, keys[-1], scanned.index, uuid, options)
    finally:
        scanned.index.discard()
    if isinstance(stored, str):
        entry = _entry(shard, stored, scanned.index.head)
        return ShardOutcome(shard, entry, skipped=scanned.skipped, notes=scanned.notes)
    return _outcome_of_index(shard, *stored)


def _put_index(
    target: Store, free: str, other: str, index: SpooledIndex, uuid: bytes, options: ScanOptions
) -> str | tuple[str, IndexHead]:
    """Store an index under a free name; return the name, or what is there that is as good.

    The same shard may be adopted elsewhere at this moment.
    """
    for key in dict.fromkeys((free, other)):
        if target.put_if_absent(key, index.data, move=True):
            return key
        head = _read_index(target, key, options)
        if head is not None and head.uuid == uuid:
            return key, head
    raise StorageError(
        "another index is under the name of this one", url=target.url_of(other), advice="run it again"
    )


def _known(etag: str) -> str:
    return "" if etag == "unknown" else etag


def _check_unchanged(shard: FoundShard, data: Store) -> None:
    info = data.head(shard.key)
    if info is None or (info.size, info.etag or "unknown") != (shard.size, shard.etag):
        raise StaleIndexError(
            "the shard changed while it was read",
            url=shard.url,
            expected=f"{shard.size} bytes, ETag {shard.etag}",
            found="no such object" if info is None else f"{info.size} bytes, ETag {info.etag}",
            advice="adopt it again when it is no longer being written",
        )


def _read_index(target: Store, key: str, options: ScanOptions) -> IndexHead | None:
    """Return the head of an index, or None where there is none."""
    limits, url = options.limits, target.url_of(key)
    try:
        with target.open(key) as file:
            if file.size > limits.index:
                what = "an index is over the limit"
                raise FormatError(what, url=url, expected=limits.index, found=file.size)
            data = file.read(0, min(file.size, _HEAD_BYTES))
            # The header says how long the head is; the ends of frames are most of an index, and not needed.
            for need in (read_head_bytes, functools.partial(read_head_size, limits=limits)):
                size = min(file.size, need(data, url=url))
                data = data if size <= len(data) else file.read(0, size)
    except NotFoundError:
        return None
    return parse_head(data, url=url, limits=limits)


def _outcome_of_index(shard: FoundShard, index_key: str, head: IndexHead) -> ShardOutcome:
    entry = _entry(shard, index_key, head)
    skipped = tuple(
        GapFound(*head.block_bounds(block), reason)
        for block, reason in sorted(head.gaps.items())
        if reason.startswith("damage")
    )
    return ShardOutcome(shard, entry, skipped=skipped)


def _entry(shard: FoundShard, index_key: str, head: IndexHead) -> ShardEntry:
    # A list names no usual key.
    listed = "" if index_key == naming.usual_index_key(shard.key) else index_key
    return ShardEntry.of_index(head, split=shard.split, key=shard.key, index_key=listed, etag=shard.etag)


_JOB_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class AdoptJob:
    """Shards that one process indexes one after another.

    Attributes:
        target: URL of the dataset, where indexes are put.
        target_options, data_options: of the storages.
        scan: how shards are scanned.
        shards: which.
    """

    target: str
    target_options: Mapping[str, Any] | None
    data_options: Mapping[str, Any] | None
    scan: ScanOptions
    shards: tuple[FoundShard, ...]

    @property
    def label(self) -> str:
        """The shards that are indexed, as errors name them."""
        return plural(len(self.shards), "shard")

    @property
    def size(self) -> int:
        """Stored bytes of the shards."""
        return sum(shard.size for shard in self.shards)

    def run(self, show: Callable[[int], None] | None = None) -> list[ShardOutcome]:
        """Index the shards; failures are outcomes."""
        target = _store(self.target, _pickled(self.target_options))
        outcomes = []
        for shard in self.shards:
            data = _store(shard.root, _pickled(self.data_options)) if shard.root else target
            outcomes.append(index_shard(shard, target, data, self.scan, show=show))
        return outcomes

    def cut(self) -> list[AdoptJob]:
        """Return jobs of a size that is worth a message and cheap to lose."""
        cuts = cut_jobs([shard.size for shard in self.shards], most_bytes=_JOB_BYTES)
        return [replace(self, shards=self.shards[first:stop]) for first, stop in cuts]


def index_shards(
    job: AdoptJob,
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    show: Callable[[int], None] | None = None,
) -> Iterator[ShardOutcome]:
    """Yield the outcome of every shard of a job, as they come.

    Args:
        job: all of it.
        executor: where to work; None for a process pool of our own, or here where that is not worthwhile.
        workers: processes of that pool; None for one per processor. 1 works here.
        show: called with the number of bytes done.
    """
    jobs = job.cut()
    check_workers(workers, executor)
    here = executor is None and (workers == 1 or len(jobs) < 2)
    results = run(
        functools.partial(AdoptJob.run, show=show) if here else AdoptJob.run, jobs, None,
        executor=executor, workers=1 if here else workers,
        advice="the worker may have run out of memory; run it again, finished shards are kept",
        on_lost=lambda one, error: [
            ShardOutcome(shard, error=error.located(url=shard.url)) for shard in one.shards
        ],
    )  # fmt: skip
    with contextlib.closing(results):
        for one, outcomes in results:
            if show is not None and not here:
                show(one.size)
            yield from outcomes


@functools.lru_cache(maxsize=16)
def _store(url: str, frozen: str) -> Store:
    """Return a store of this process, the same for all its jobs: clients are expensive."""
    return connect(url, storage_options=pickle.loads(bytes.fromhex(frozen)))  # noqa: S301 - frozen above


def _pickled(options: Mapping[str, Any] | None) -> str:
    return pickle.dumps(dict(options) if options else None).hex()
