"""Opening chunks: fetch their blocks, compare and decode them once, and put their payloads into the arena."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.reader import ENTRY, SKIPPED, SuppressCorruption, begin_rows, copy_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardio.reader import Damage
    from shardio.streaming._arena import Slot
    from shardio.streaming._chunks import OpenChunks
    from shardio.streaming._components import Component
    from shardio.streaming._stats import Counters

    # Which row of a chunk the first of some payloads is, their buffer, and int64 starts and stops in it.
    Payloads = tuple[int, Any, NDArray[np.int64], NDArray[np.int64]]

_WHOLE_SHARD = 1 << 62  # bytes: what a call opens of a shard is fetched together


class Opener:
    """Opens the chunks of a pass; its threads share it.

    Args:
        components: the datasets.
        chunks: of the pass.
        damage: what to do about it.
        counters: of time.
    """

    def __init__(
        self, components: Sequence[Component], chunks: OpenChunks, damage: Damage, counters: Counters
    ) -> None:
        self._components, self._chunks, self._damage, self._counters = components, chunks, damage, counters

    def open(self, numbers: Sequence[int]) -> None:
        """Open chunks of one dataset, by position; damage that is not to be skipped is noted with its chunk.

        Raises:
            StorageError: the environment failed.
        """
        with self._counters.timed("fetch_seconds"):
            with SuppressCorruption() as damaged:
                self._open(numbers)
            # What was fetched together is not damaged together.
            for number in numbers if damaged.error is not None else ():
                if not self._chunks.is_open(number):
                    with SuppressCorruption() as damaged:
                        self._open([number])
                    self._chunks[number].error = damaged.error

    def open_again(self, number: int) -> None:
        """Open a chunk in memory whose scratch could not be read; raises its damage, too."""
        self._open([number], in_memory=True)

    def _open(self, numbers: Sequence[int], *, in_memory: bool = False) -> None:
        chunks = [self._chunks[number] for number in numbers]
        payloads: list[list[Payloads]] = [[] for _ in chunks]
        edges = np.cumsum([0, *(len(chunk.positions) for chunk in chunks)])
        positions = np.concatenate([np.asarray(chunk.positions) for chunk in chunks])
        for first, buffer, starts, stops in self._read(self._components[chunks[0].source], positions):
            last = first + len(starts)
            low, high = np.searchsorted(edges, (first, last - 1), side="right").tolist()
            for k in range(low - 1, high):
                some = slice(max(0, int(edges[k]) - first), int(edges[k + 1]) - first)
                at = max(0, first - int(edges[k]))
                payloads[k].append((at, buffer, starts[some], stops[some]))
        for number, found in zip(numbers, payloads, strict=True):
            self._store(number, found, in_memory=in_memory)
            found.clear()

    def _read(self, component: Component, positions: NDArray[np.int64]) -> Iterator[Payloads]:
        """Yield the payloads at ascending positions of a dataset of the stream."""
        source = component.source
        begun = begin_rows(
            source,
            component.positions(positions),
            self._damage,
            run_bytes=_WHOLE_SHARD,
            streamed=True,
            # What is between runs of several chunks is of other ranks, or of other times.
            gap=0 if component.is_slice else None,
        )
        # Requests to all shards are under way together. On a local disk nothing would be, and a shard that
        # waits holds descriptors.
        for rows in begun if source.is_local else list(begun):
            for places, placed in rows.whole_pieces(source, self._damage, as_bytes=False):
                yield (places.start, *placed)
            if source.is_local:
                source.pool.drop_pages(rows.number)

    def _store(self, number: int, payloads: Sequence[Payloads], *, in_memory: bool) -> None:
        """Copy payloads into the arena."""
        arena, rows = self._chunks.arena, len(self._chunks[number].positions)
        entries = arena.take(rows * ENTRY.itemsize)
        if sum(len(starts) for _, _, starts, _ in payloads) < rows:
            skipped = np.zeros(rows, ENTRY)
            skipped["length"] = SKIPPED
            ctypes.memmove(entries.start, skipped.ctypes.data, skipped.nbytes)
        size = sum(int(stops.sum() - starts.sum()) for _, _, starts, stops in payloads)
        slot = None if in_memory else arena.take_scratch(size)
        if slot is not None:
            buffer = np.empty(size, np.uint8)
            _copy(entries, payloads, buffer.ctypes.data, slot.start, checksums=True)
            if not arena.write(buffer, slot):
                arena.give_back(slot)
                slot = None
        if slot is None:
            slot = arena.take(size)
            _copy(entries, payloads, slot.start, slot.start, checksums=False)
        self._chunks.opened(number, (entries, slot))


def _copy(entries: Slot, payloads: Sequence[Payloads], target: int, place: int, *, checksums: bool) -> None:
    for at, buffer, starts, stops in payloads:
        copied = copy_rows(
            buffer, starts, stops, entries.start + ENTRY.itemsize * at, target, place, checksums
        )
        target, place = target + copied, place + copied
