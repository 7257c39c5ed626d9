"""Records in storage order by the batch: lists of payloads, or payloads where they lie, for a batch parser.

A batch goes over the borders of runs and shards; nothing is copied or looked at per record on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardio import kernels
from shardio.reader._iterate import iterate_runs
from shardio.reader._undamaged import decode_undamaged, iterate_undamaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardio.errors import ShardioError
    from shardio.reader._damage import Damage
    from shardio.reader._lookup import Placed
    from shardio.reader._source import Source
    from shardio.reader._subset import Selection

__all__ = ["in_lists", "iterate_placed", "undamaged_columns"]


def in_lists(lists: Iterable[list[Any]], size: int) -> Iterator[list[Any]]:
    """Yield the items of some lists in lists of `size`; the last may be shorter."""
    rest: list[Any] = []
    for items in lists:
        at = size - len(rest) if rest else 0
        if rest:
            rest += items[:at]
            if len(rest) < size:
                continue
            yield rest
        for stop in range(at + size, len(items) + 1, size):
            yield items[at:stop]
            at = stop
        rest = items[at:]
        # Not held while the next list is made: its memory is still in the processor's cache.
        del items
    if rest:
        yield rest


def iterate_placed(source: Source, selection: range, size: int) -> Iterator[Placed]:
    """Yield where the records of each batch lie, in one buffer; the last batch may be shorter."""
    pieces: list[Placed] = []
    held = 0
    for run in iterate_runs(source, selection):
        buffer, starts, stops = run.placed()
        at = 0
        while held + len(starts) - at >= size:
            stop = at + size - held
            yield _in_one_buffer([*pieces, (buffer, starts[at:stop], stops[at:stop])])
            pieces, held, at = [], 0, stop
        if at < len(starts):
            pieces.append((buffer, starts[at:], stops[at:]))
            held += len(starts) - at
    if pieces:
        yield _in_one_buffer(pieces)


def undamaged_columns(
    source: Source,
    selection: Selection,
    size: int,
    located: Callable[[ShardioError, Any], ShardioError],
    damage: Damage,
) -> Iterator[dict[str, Any]]:
    """Yield the columns of each batch of records, without those that are damaged.

    Batches are of `size` records that could be read; those of them that cannot be decoded make them smaller.
    """
    decode = source.codec.decode_batch

    def refuse_damaged(payloads: list[bytes]) -> list[bytes]:
        decode(payloads)
        return payloads

    found = iterate_undamaged(source, selection, damage)
    for batch in in_lists((list(zip(*each, strict=True)) for each in found), size):
        payloads, positions = zip(*batch, strict=True)
        kept = decode_undamaged(list(payloads), np.array(positions), refuse_damaged, located, damage)
        if kept:
            yield decode(kept)


def _in_one_buffer(pieces: list[Placed]) -> Placed:
    """Bring the records of some pieces into one buffer; those of one mapped shard lie in one already."""
    buffers, starts, stops = zip(*pieces, strict=True)
    if len(pieces) == 1:
        return pieces[0]
    if all(buffer is buffers[0] for buffer in buffers):
        return buffers[0], np.concatenate(starts), np.concatenate(stops)
    which = np.repeat(np.arange(len(pieces)), [len(each) for each in starts])
    values, offsets = kernels.gather_from(buffers, which, np.concatenate(starts), np.concatenate(stops))
    return values, offsets[:-1], offsets[1:]
