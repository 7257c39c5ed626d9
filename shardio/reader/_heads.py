"""The head of a shard's index, compared with what the list of shards says about it."""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, NoReturn

from shardio.errors import FormatError, NotFoundError, StaleIndexError
from shardio.metadata import parse_head
from shardio.reader._mapping import cut_short
from shardio.storage import ShortReadError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardio.format import Limits
    from shardio.metadata import IndexHead, ShardEntry
    from shardio.reader._stats import ReadStats
    from shardio.storage import BlockCache, DataFile, Store

__all__ = ["begin_head"]


def begin_head(
    store: Store, entry: ShardEntry, cache: BlockCache | None, limits: Limits, stats: ReadStats
) -> Callable[[], tuple[DataFile, IndexHead]]:
    """Send the one request for the head of an index; return what waits for it and checks it.

    The list of shards knows the head's length and SHA-256, so one request is enough, and the cache may hold
    it.  What does not match was perhaps hurt on its way, and is fetched once more.

    Raises:
        NotFoundError, FormatError, StaleIndexError, StorageError: with the address of the index.
    """
    try:
        index = store.open(entry.usual_index_key, stable=True)
    except NotFoundError as error:
        return functools.partial(_refuse, store, entry, error)
    view = index.map()
    if view is not None:
        return lambda: (index, _checked(view, entry, index.url, limits))
    name = f"head-{entry.index_head_sha256.hex()}"
    cached = cache.get(name) if cache is not None else None
    if cached is not None:
        return lambda: (index, _checked(memoryview(cached), entry, index.url, limits))
    wait = index.begin_read([0], [entry.index_head_bytes])

    def received() -> memoryview:
        try:
            return wait()[0]
        except ShortReadError as error:
            raise cut_short(index, entry.index_head_bytes, entry.key, error) from error
        except NotFoundError as error:
            _refuse(store, entry, error)

    def finish() -> tuple[DataFile, IndexHead]:
        nonlocal index, wait
        data = received()
        try:
            head = _checked(data, entry, index.url, limits)
        except (FormatError, StaleIndexError):
            stats.refetched += 1
            # Opened anew: the wrong reply may have told the size and stamp of something else.
            index = store.open(entry.usual_index_key, stable=True)
            wait = index.begin_read([0], [entry.index_head_bytes])
            data = received()
            head = _checked(data, entry, index.url, limits)
        if cache is not None:
            cache.put(name, data)
        return index, head

    return finish


def _refuse(store: Store, entry: ShardEntry, error: NotFoundError) -> NoReturn:
    raise NotFoundError(
        "a shard has no index where the list of shards says",
        url=store.url_of(entry.usual_index_key),
        shard=entry.key,
        advice="restore it from a copy, or index the shard again with `shardio index`",
    ) from error


def _checked(view: memoryview, entry: ShardEntry, url: str, limits: Limits) -> IndexHead:
    head = parse_head(view, url=url, limits=limits)
    sha256 = hashlib.sha256(view[: entry.index_head_bytes]).digest()
    facts = (head.head_bytes, sha256, head.uuid)
    wanted = (entry.index_head_bytes, entry.index_head_sha256, entry.uuid)
    if facts != wanted:
        raise StaleIndexError(
            "an index is not the one that the list of shards names",
            url=url,
            shard=entry.key,
            expected=f"SHA-256 {wanted[1].hex()} of {wanted[0]} bytes",
            found=f"SHA-256 {sha256.hex()} of {facts[0]} bytes",
            advice="it was swapped or replaced: restore it from a copy, or index the shard again",
        )
    # A stream is one unit to plans, however many blocks its decoded bytes are cut into.
    blocks = head.blocks if head.stream_bytes is None else min(head.blocks, 1)
    counts = (head.rows, head.stored_bytes, head.decoded_bytes, blocks, head.crc32c)
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
