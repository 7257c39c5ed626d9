"""The head of a shard's index, compared with what the list of shards says about it.

Where the ends of frames are few they come with it: one request instead of one more for every run of blocks.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from shardio.errors import FormatError, NotFoundError, StaleIndexError
from shardio.metadata import INDEX_ADVICE, parse_head
from shardio.reader._mapped import check_index_file, cut_short
from shardio.storage import ShortReadError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardio.format import Limits
    from shardio.metadata import IndexHead, ShardEntry
    from shardio.reader._options import ReadStats
    from shardio.storage import BlockCache, DataFile, Store

__all__ = ["OpenIndex", "begin_head"]

# Bytes of `frame_stop` that come with the head: 16,384 records.
_FRAMES_AT_ONCE = 64 << 10


class OpenIndex(NamedTuple):
    """An index whose head was read and checked.

    Attributes:
        file: the index file.
        head: its head.
        frames: the whole `frame_stop` column as it was read, not checked yet; None where it stayed behind.
    """

    file: DataFile
    head: IndexHead
    frames: memoryview | None = None


def begin_head(
    store: Store,
    entry: ShardEntry,
    cache: BlockCache | None,
    limits: Limits,
    stats: ReadStats,
    *,
    mapped: bool = True,
) -> Callable[[], OpenIndex]:
    """Send the one request for the head of an index; return what waits for it and checks it.

    The list of shards knows the head's length and SHA-256, so one request is enough, and the cache may hold
    it.  What does not match was perhaps hurt on its way, and is fetched once more.

    The index of a shard of our own lies under a name that is never written again, and may be mapped.  Beside
    an adopted shard anybody may write; a map of a file that is cut ends the process.

    Raises:
        NotFoundError, FormatError, StaleIndexError, StorageError: with the address of the index.
    """
    stable = mapped and not entry.adopted
    try:
        index = store.open(entry.usual_index_key, stable=stable)
    except NotFoundError as error:
        return functools.partial(_refuse, store, entry, error)
    view = index.map()
    if view is not None:
        return lambda: OpenIndex(index, _checked(view, entry, index.url, limits))
    name = f"head-{entry.index_head_sha256.hex()}"
    cached = cache.get(name) if cache is not None else None
    if cached is not None:
        return lambda: _opened(index, memoryview(cached), entry, limits)
    frames_bytes = 4 * entry.rows
    length = entry.index_head_bytes + (frames_bytes if frames_bytes <= _FRAMES_AT_ONCE else 0)
    wait = index.begin_read([0], [length])

    def received() -> memoryview:
        try:
            return wait()[0]
        except ShortReadError as error:
            raise cut_short(index, length, entry.key, error) from error
        except NotFoundError as error:
            _refuse(store, entry, error)

    def finish() -> OpenIndex:
        nonlocal index, wait
        data = received()
        try:
            opened = _opened(index, data, entry, limits)
        except (FormatError, StaleIndexError):
            stats.refetched += 1
            # Opened anew: the wrong reply may have told the size and ETag of something else.
            index = store.open(entry.usual_index_key, stable=stable)
            wait = index.begin_read([0], [length])
            data = received()
            opened = _opened(index, data, entry, limits)
        if store.is_local:
            check_index_file(index, opened.head)
        if cache is not None:
            cache.put(name, data)
        return opened

    return finish


def _opened(index: DataFile, data: memoryview, entry: ShardEntry, limits: Limits) -> OpenIndex:
    head = _checked(data, entry, index.url, limits)
    frames = data[head.frame_stop_offset :]
    return OpenIndex(index, head, frames if len(frames) == 4 * head.rows else None)


def _refuse(store: Store, entry: ShardEntry, error: NotFoundError) -> NoReturn:
    raise NotFoundError(
        "a shard has no index where the list of shards says",
        url=store.url_of(entry.usual_index_key),
        shard=entry.key,
        advice=INDEX_ADVICE,
    ) from error


def _checked(view: memoryview, entry: ShardEntry, url: str, limits: Limits) -> IndexHead:
    head = parse_head(view, url=url, limits=limits)
    facts = (head.head_bytes, head.head_sha256, head.uuid)
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
        )
    return head
