"""The open chunks of a pass: rows that are fetched as one, and held until the last of them is delivered."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardio.errors import ShardioError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from shardio.streaming._arena import Arena, Slot


@dataclass(eq=False, slots=True)
class Chunk:
    """Rows of a dataset that are opened as one.

    Attributes:
        source: number of the dataset in its stream.
        positions: of its rows in that, ascending.
        slots: its places in the arena: of its entries, and of its payloads.
        task: opens it.
        error: its damage, which is raised where one of its rows is needed.
    """

    source: int
    positions: range | NDArray[np.int64]
    slots: tuple[Slot, ...] = ()
    task: Future[None] | None = None
    error: ShardioError | None = None


class OpenChunks:
    """The chunks of a pass by number, from 1 on; each is given up when nothing uses it any more.

    A chunk is used by each window of the order in it that is being delivered, or will be, and by each group
    of steps that was planned and is not built yet. Threads share this.

    Attributes:
        arena: that they are in.
        tables: int64 [n, 3], see `find_in_chunks`; of a chunk that is not open, no rows.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.tables = np.zeros((1, 3), np.int64)
        self._lock = threading.Lock()
        self._chunks: list[Chunk | None] = [None]
        self._free: list[int] = []
        self._users = np.zeros(1, np.int64)
        self._open = np.zeros(1, np.bool_)
        # Of chunks that were opened again while other threads may read them.
        self._replaced: list[Slot] = []

    def __getitem__(self, number: int) -> Chunk:
        chunk = self._chunks[number]
        assert chunk is not None  # noqa: S101 - for the type checker
        return chunk

    def add(self, chunks: Sequence[Chunk]) -> NDArray[np.int64]:
        """Return numbers for chunks that are to be opened; nothing uses them yet."""
        with self._lock:
            self.arena.passes.add(self)
            missing = len(chunks) - len(self._free)
            if missing > 0:
                first, more = len(self._chunks), max(missing, len(self._chunks))
                self._free += range(first + more - 1, first - 1, -1)
                self._chunks += [None] * more
                self._users = np.append(self._users, np.zeros(more, np.int64))
                self._open = np.append(self._open, np.zeros(more, np.bool_))
                self.tables = np.append(self.tables, np.zeros((more, 3), np.int64), axis=0)
            numbers = [self._free.pop() for _ in chunks]
            for number, chunk in zip(numbers, chunks, strict=True):
                self._chunks[number] = chunk
        return np.array(numbers, np.int64)

    def is_open(self, number: int) -> bool:
        """Whether a chunk was opened."""
        return bool(self._open[number])

    def opened(self, number: int, slots: tuple[Slot, Slot]) -> None:
        """Note where the entries and the payloads of a chunk are."""
        entries, payloads = slots
        chunk = self[number]
        with self._lock:
            self._replaced += chunk.slots
            chunk.slots = slots
            way = -1 - self.arena.file_number if payloads.in_file else 0
            self.tables[number] = entries.start, len(chunk.positions), way
            self._open[number] = True

    def use(self, numbers: NDArray[np.int64]) -> None:
        """Count one more use of a chunk each time it is named."""
        with self._lock:
            np.add.at(self._users, numbers, 1)

    def release(self, numbers: NDArray[np.int64]) -> None:
        """Count one use less of a chunk each time it is named; give up those that have none left."""
        with self._lock:
            np.subtract.at(self._users, numbers, 1)
            # One that failed, or that is being opened by a pass which ended, goes with its pass.
            unused = numbers[(self._users[numbers] == 0) & self._open[numbers]]
            for number in set(unused.tolist()):
                for slot in self[number].slots:
                    self.arena.give_back(slot)
                self._chunks[number], self._open[number] = None, False
                self.tables[number] = 0
                self._free.append(number)

    def wait(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Wait until chunks are open and return all tables.

        Raises:
            ShardioError: whatever opening one of them raised.
        """
        for number in numbers[~self._open[numbers]].tolist():
            chunk = self[number]
            assert chunk.task is not None  # noqa: S101 - it was begun when it was added
            error = chunk.task.exception() or chunk.error
            if isinstance(error, ShardioError):
                # A copy: threads that raise one error would write into each other's traceback.
                raise error.located().with_traceback(None) from error.__cause__
            if error is not None:
                raise error
        return self.tables

    def close(self) -> None:
        """Give all chunks up; no thread may use them any more. What Ctrl-C interrupts here is not reused."""
        with self._lock:
            (chunks, self._chunks), (replaced, self._replaced) = (self._chunks, []), (self._replaced, [])
            for slot in [*replaced, *(slot for chunk in chunks if chunk is not None for slot in chunk.slots)]:
                self.arena.give_back(slot)
            self.arena.passes.discard(self)
