"""The shards of a split, opened when first needed and kept in a bounded number.

Opening reads the head of the index and compares it with the list of shards; nothing else is read.  Where the
ends of frames are few they come with the head: one request instead of one more for every run of blocks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from shardio.catalog import Catalog, Version
from shardio.errors import FormatError, NotFoundError, ShardioError, StaleIndexError
from shardio.format import DEFAULT_LIMITS, Limits
from shardio.metadata import (
    INDEX_ADVICE,
    IndexHead,
    ShardEntry,
    ShardTable,
    live_to_physical,
    parse_deletions,
    parse_head,
)
from shardio.reader._blocks import DecodedBlocks, Rows
from shardio.reader._files import ShardFiles, check_index_file, check_size, cut_short, missing_shard_error
from shardio.reader._options import ReadOptions, ReadStats
from shardio.reader._shard import OpenShard
from shardio.reader._tuning import TUNING
from shardio.storage import (
    BlockCache,
    DataFile,
    ShortReadError,
    Store,
    descriptor_limit,
    descriptor_users,
    read_intact,
)


class _OpenIndex(NamedTuple):
    """An index whose head was read and checked.

    Attributes:
        entry: what the list of shards says of its shard.
        file: the index file.
        head: its head.
        frames: the whole `frame_stop` column as it was read, not checked yet; None where it stayed behind.
    """

    entry: ShardEntry
    file: DataFile
    head: IndexHead
    frames: memoryview | None = None


def deleted_rows(store: Store, entry: ShardEntry, limits: Limits) -> NDArray[np.int64]:
    """Return the deleted rows of a shard, int64, ascending.

    Raises:
        FormatError, NotFoundError: its sidecar is damaged or gone.
        StorageError: the environment failed.
    """
    if not entry.deletion_key:
        return np.zeros(0, np.int64)
    key = entry.deletion_key
    return read_intact(
        lambda: parse_deletions(store.get(key, max_bytes=limits.manifest), entry, url=store.url_of(key))
    )


def read_head(index: DataFile, limits: Limits) -> IndexHead:
    """Return the head of the index of a shard by itself, which no list names.

    Raises:
        FormatError, UnsupportedVersionError: it is damaged, over the limit, or newer.
        NotFoundError, StorageError: it is not there, or the environment failed.
    """
    if index.size > limits.index:
        raise FormatError(
            "an index is over the limit",
            url=index.url,
            expected=f"at most {limits.index} bytes",
            found=index.size,
        )
    return read_intact(
        lambda: parse_head(index.read(0, index.size), url=index.url, limits=limits), index.invalidate
    )


def _opened_index(index: DataFile, data: memoryview, entry: ShardEntry, limits: Limits) -> _OpenIndex:
    head = _checked_head(data, entry, index.url, limits)
    frames = data[head.frame_stop_offset :]
    return _OpenIndex(entry, index, head, frames if len(frames) == 4 * head.rows else None)


def _refuse_missing(store: Store, entry: ShardEntry, error: NotFoundError) -> NoReturn:
    raise NotFoundError(
        "a shard has no index where the list of shards says",
        url=store.url_of(entry.usual_index_key),
        shard=entry.key,
        advice=INDEX_ADVICE,
    ) from error


def _checked_head(view: memoryview, entry: ShardEntry, url: str, limits: Limits) -> IndexHead:
    head = parse_head(view, url=url, limits=limits)
    facts = (head.frame_stop_offset, head.head_sha256, head.uuid)
    wanted = (entry.index_head_bytes, entry.index_head_sha256, entry.uuid)
    if facts != wanted:
        raise StaleIndexError(
            "an index is not the one that the list of shards names",
            url=url,
            shard=entry.key,
            expected=f"SHA-256 {wanted[1].hex()} of {wanted[0]} bytes",
            found=f"SHA-256 {facts[1].hex()} of {facts[0]} bytes",
            advice=INDEX_ADVICE,
        )
    counts = (head.rows, head.stored_bytes, head.decoded_bytes, head.listed_blocks, head.crc32c)
    listed = (entry.rows, entry.stored_bytes, entry.decoded_bytes, entry.blocks, entry.crc32c)
    kinds = (head.framing, head.compression)
    if counts != listed or kinds != (entry.framing, entry.compression):
        raise FormatError(
            "an index and the list of shards count differently",
            url=url,
            shard=entry.key,
            expected=(*listed, entry.framing.name, entry.compression.name),
            found=(*counts, head.framing.name, head.compression.name),
            advice=INDEX_ADVICE,
        )
    return head


class _Opening:
    """A shard that is being opened: threads that want it at once share one request for its index.

    The thread that comes first takes the answer; the others wait for it.

    Args:
        pool: that keeps the shard.
        number: of the shard.
        streamed: all of it is read.
    """

    def __init__(self, pool: ShardPool, number: int, *, streamed: bool) -> None:
        self._streamed = streamed
        self._pool = pool
        self._number = number
        self._lock = threading.Lock()
        self._wait: Callable[[], _OpenIndex] | None = None
        self._shard: OpenShard | None = None
        self._error: ShardioError | None = None

    def begin(self) -> None:
        """Send the request, if none was sent."""
        with self._lock:
            if self._wait is None and self._shard is None and self._error is None:
                self._wait = self._pool.begin_index(self._number, streamed=self._streamed)

    def finish(self) -> OpenShard:
        """Return the shard, opened.

        Raises:
            NotFoundError, FormatError, StaleIndexError, StorageError: with the address of the object; each
                caller gets an error of its own.
        """
        with self._lock:
            if self._shard is None and self._error is None:
                # Taken out before it is called, which works once: an interrupt leaves it to begin again.
                wait, self._wait = self._wait, None
                try:
                    self._shard = self._pool.add(self._number, wait)
                except ShardioError as error:
                    # A copy: threads that raise one error would write into each other's traceback.
                    self._error = error.located().with_traceback(None)
                    raise
            if self._error is not None:
                raise self._error.located().with_traceback(None)
        assert self._shard is not None  # noqa: S101 - for the type checker
        return self._shard


def _check_expired(store: Store, version: Version | None) -> None:
    if version is not None:
        Catalog(store).check_expired(version)


class ShardPool:
    """Open shards by their number in a table; safe to share among threads and with forked children.

    There is no lock to be held during a fork: every step on the dict is atomic.

    Args:
        stores: by number of the data root; 0 is the dataset's own, where all indexes are.
        table: the shards.
        options: of the reader.
        stats: counts what is read.
        version: whose shards they are; None for shards by themselves.

    Attributes:
        stores: as given.
        listed_rows: by shard, the damaged rows that `on_error="quarantine"` has listed.
    """

    def __init__(
        self,
        stores: Mapping[int, Store],
        table: ShardTable,
        options: ReadOptions,
        stats: ReadStats,
        version: Version | None = None,
    ) -> None:
        self._stats = stats
        self.stores = stores
        # Called where something is missing: raises where the version expired. It is of the store alone, since
        # open shards hold it, which must not hold the pool.
        self.check_expired = functools.partial(_check_expired, stores[0], version)
        self._table = table
        self._options = options
        self._limits = options.limits or DEFAULT_LIMITS
        self._cache = BlockCache(options.cache) if options.cache is not None else None
        # Readers that skip damage read it again: what is left out must not depend on what was read before.
        keeps = options.decoded_bytes > 0 and options.on_error == "raise"
        self._kept = DecodedBlocks(options.decoded_bytes) if keeps else None
        self._few_frames = 4 * table.sum("rows") <= TUNING.all_frames_bytes
        self._open: dict[int, OpenShard] = {}
        self._opening: dict[int, _Opening] = {}
        self._opening_pid = os.getpid()
        # Every lookup asks for deleted rows, and few versions have any.
        self.has_deletions = table.holds("deletion_key")
        self._deleted: dict[int, NDArray[np.int64]] = {}
        self.listed_rows: dict[str, set[int]] = {}
        descriptor_users.add(self)

    def __len__(self) -> int:
        """Return how many shards are open now."""
        return len(self._open)

    def get(self, number: int) -> OpenShard:
        """Return a shard, opened.

        Raises:
            NotFoundError, FormatError, StaleIndexError, StorageError: with the address of the object.
        """
        shard = self._open.get(number)
        if shard is None:
            opening = self._opening_of(number)
            # Before it is opened: its handles come on top of those that are open.
            self._make_room()
            shard = opening.finish()
        return shard

    @property
    def capacity(self) -> int:
        """How many shards may be open: what the caller said, and half of what the process may have open."""
        return max(1, min(self._options.max_open_shards, descriptor_limit() // 4))

    def requests(self) -> tuple[int, int]:
        """Return how many requests the stores have sent in this process, and how many of them again."""
        found = [store.network for store in {id(each): each for each in self.stores.values()}.values()]
        return sum(each.sent for each in found), sum(each.again for each in found)

    def latency(self) -> float:
        """Return the seconds that the farthest store takes to answer; infinite if not known yet."""
        return max(store.network.latency for store in self.stores.values())

    def is_local(self, number: int) -> bool:
        """Tell whether a shard and its index are on local disk, where an open one costs descriptors."""
        return self.stores[0].is_local and self.stores[int(self._table.root[number])].is_local

    def release_descriptors(self) -> bool:
        """Forget half of the open shards; False where none is open."""
        many = len(self._open)
        for _ in range((many + 1) // 2):
            self._forget_oldest()
        return many > 0

    def drop_pages(self, number: int) -> None:
        """Give the pages of a shard back, if it is open and mapped."""
        shard = self._open.get(number)
        if shard is not None:
            shard.drop_pages()

    def url_of(self, number: int) -> str:
        """Return the URL of a shard's object."""
        return self.stores[int(self._table.root[number])].url_of(self._table.key[number])

    def deleted(self, number: int) -> NDArray[np.int64] | None:
        """Return the deleted rows of a shard, int64 ascending, or None where there are none."""
        if not (self.has_deletions and self._table.deletion_key[number]):
            return None
        rows = self._deleted.get(number)
        if rows is None:
            entry = self._table[number]
            with self.explaining():
                try:
                    rows = deleted_rows(self.stores[0], entry, self._limits)
                except NotFoundError as error:
                    raise missing_shard_error(error, entry.key, adopted=False) from error
            self._deleted[number] = rows
        return rows

    def physical_rows(self, number: int, live: Rows) -> Rows:
        """Return the physical rows of live rows of a shard, ascending."""
        deleted = self.deleted(number)
        if deleted is None:
            return live
        if isinstance(live, range):
            live = np.arange(live.start, live.stop)
        return live_to_physical(live, deleted)

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Say of what is missing that the version expired meanwhile, where it did.

        Raises:
            NotFoundError: the version expired.
        """
        try:
            yield
        except NotFoundError:
            self.check_expired()
            raise

    def _make_room(self) -> None:
        # What is being opened counts: for this thread, and for others.
        while self._open and len(self._open) + len(self._opening) > self.capacity:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        # Not closed: a thread may be reading from it. Its handles go with the last reference.
        # Another thread may change the dict between the two steps; then it has made room, too.
        with contextlib.suppress(KeyError, RuntimeError, StopIteration):
            del self._open[next(iter(self._open))]

    def store_of(self, number: int) -> Store:
        """Return the store of the data root that a shard is under."""
        return self.stores[int(self._table.root[number])]

    def open_index(self, number: int) -> tuple[DataFile, IndexHead]:
        """Return the index file of a shard, and its head, which is the one that the list of shards names.

        Raises:
            NotFoundError, FormatError, StaleIndexError, StorageError: with the address of the index.
        """
        opened = self.begin_index(number)()
        return opened.file, opened.head

    def prepare(self, numbers: Iterable[int], *, streamed: bool = False) -> None:
        """Open several shards, at most `capacity`; the heads of their indexes are fetched together.

        With the heads come the ends of frames, where all of each shard are read (`streamed`).

        On a local disk that saves nothing: shards are opened one by one when they are read.

        Raises:
            NotFoundError, FormatError, StaleIndexError, StorageError: with the address of the first object
                that failed; the other shards are open all the same.
        """
        wanted = dict.fromkeys(number for number in numbers if not self.is_local(number))
        for number in wanted:
            if number in self._open:  # again the newest, so that it is not the one that makes room
                with contextlib.suppress(KeyError):
                    self._open[number] = self._open.pop(number)
        missing = [number for number in wanted if number not in self._open]
        if len(missing) < (1 if streamed else 2):
            return
        waiting = [self._opening_of(number, streamed=streamed) for number in missing]
        self._make_room()
        for opening in waiting:
            opening.begin()
        failed: ShardioError | None = None
        for opening in waiting:
            try:
                opening.finish()
            except ShardioError as error:
                failed = failed or error
        if failed is not None:
            try:
                raise failed
            finally:
                # The error holds this frame, which must not hold it.
                del failed

    def _opening_of(self, number: int, *, streamed: bool = False) -> _Opening:
        """Return what opens a shard: what another thread has begun, if there is one."""
        if self._opening_pid != os.getpid():
            # The threads that began them, and those that answers would come from, are not in a forked child.
            self._opening_pid, self._opening = os.getpid(), {}
        opening = self._opening.get(number)
        if opening is None:
            opening = self._opening.setdefault(number, _Opening(self, number, streamed=streamed))
        return opening

    def begin_index(self, number: int, *, streamed: bool = False) -> Callable[[], _OpenIndex]:
        """Send the one request for the head of an index; return what waits for it and checks it.

        The list of shards knows the head's length and SHA-256, so one request is enough, and the cache may
        hold it.  What does not match was perhaps hurt on its way, and is fetched again, twice at most.

        The index of a shard of our own is under a name that is never written again, and may be mapped.
        Beside an adopted shard others may write; a map of a file that is cut ends the process.

        Raises:
            NotFoundError, FormatError, StaleIndexError, StorageError: with the address of the index.
        """
        store, entry, cache, limits = self.stores[0], self._table[number], self._cache_of(0), self._limits
        stable = self._options.mmap and not entry.adopted
        try:
            index = store.open(entry.usual_index_key, stable=stable)
        except NotFoundError as error:
            return functools.partial(_refuse_missing, store, entry, error)
        view = index.map()
        if view is not None:
            return lambda: _OpenIndex(entry, index, _checked_head(view, entry, index.url, limits))
        frames_bytes = 4 * entry.rows
        most = TUNING.frames_bytes * (TUNING.frames_times if streamed and self._few_frames else 1)
        length = entry.index_head_bytes + (frames_bytes if frames_bytes <= most else 0)
        name = f"head-{entry.index_head_sha256.hex()}"
        cached = cache.get(name) if cache is not None else None
        wait = index.begin_read([0], [length]) if cached is None else None

        def read() -> tuple[_OpenIndex, memoryview]:
            data = cached if wait is None else wait()[0]
            assert data is not None  # noqa: S101 - for the type checker
            return _opened_index(index, data, entry, limits), data

        def forget() -> None:
            nonlocal index, wait
            self._stats.refetched += 1
            if cache is not None and wait is None:
                cache.discard(name)
            # Opened again: the damaged reply may have set the size and ETag of another object.
            index = store.open(entry.usual_index_key, stable=stable)
            wait = index.begin_read([0], [length])

        def finish() -> _OpenIndex:
            try:
                opened, data = read_intact(read, forget)
            except ShortReadError as error:
                raise cut_short(index, length, entry.key, error) from error
            except NotFoundError as error:
                _refuse_missing(store, entry, error)
            if wait is not None and store.is_local:
                check_index_file(index, opened.head)
            if wait is not None and cache is not None:
                cache.put(name, data)
            return opened

        return finish

    def add(self, number: int, index_of: Callable[[], _OpenIndex] | None) -> OpenShard:
        """Open a shard and keep it, given what waits for its index if that was asked for; for `_Opening`."""
        try:
            shard = self._open_shard(number, index_of or self.begin_index(number))
            # Another thread may have opened it between two looks: its checked bits are worth keeping.
            return self._open.setdefault(number, shard)
        finally:
            self._opening.pop(number, None)

    def _cache_of(self, root: int) -> BlockCache | None:
        # What is on local disk needs no copy there.
        return None if self.stores[root].is_local else self._cache

    def _open_shard(self, number: int, index_of: Callable[[], _OpenIndex]) -> OpenShard:
        with self.explaining():
            entry, index, head, frames = index_of()
        try:
            data = self.store_of(number).open(
                entry.key, size=head.stored_bytes, stable=self._options.mmap and not entry.adopted
            )
        except NotFoundError as error:
            self.check_expired()
            raise missing_shard_error(error, entry.key, adopted=entry.adopted) from error
        verify, limits, stats = self._options.verify, self._limits, self._stats
        files = ShardFiles(
            entry.key, head, index, data, entry.adopted, verify, limits, stats, self.check_expired
        )
        check_size(files)
        return OpenShard(
            files,
            frames=frames,
            is_local=self.is_local(number),
            cache=self._cache_of(entry.root),
            by_frame=self._options.on_error == "raise",
            kept=self._kept,
        )
