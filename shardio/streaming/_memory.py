"""Memory of windows and batches: asked of the system once, and used again."""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.storage import advise_need
from shardio.streaming._tuning import TUNING

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Memory that a fork copies, as any other; what Python maps by default a child would share.
_OWN = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


def _mapped(size: int) -> NDArray[np.uint8]:
    """Return memory that goes back to the system at once with its last reference."""
    if size < 2 * TUNING.huge_page or not hasattr(mmap, "MADV_HUGEPAGE"):
        memory = mmap.mmap(-1, max(1, size), **_OWN)
        advise_need(memoryview(memory), 0, size)
        return np.frombuffer(memory, np.uint8, size)
    # The first touch of 512 pages costs eight times what one of a huge page does. Linux puts a map where its
    # huge pages begin if it has a whole number of them.
    memory = mmap.mmap(-1, -(-size // TUNING.huge_page) * TUNING.huge_page, **_OWN)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, size)


class Memory:
    """Memory for windows, used again, because the system clears new pages before it hands them out.

    Windows that were fetched together end in bursts, so memory that they leave is kept: what is in use and
    what is kept is together no more than what was once in use. The threads of a pass share it.

    Args:
        mapped: what is not kept goes back to the system at once. Parts of windows end in another order than
            they began in, so that `malloc` would keep what is between; of whole ones it keeps what is wanted
            again.
        most: bytes that are kept at most; None for no other bound.
    """

    def __init__(self, *, mapped: bool, most: int | None = None) -> None:
        self._is_mapped = mapped
        self._keeps = most
        self._lock = threading.Lock()
        # What was given back, which the collector may do in the middle of anything, and so without the lock.
        self._back: deque[NDArray[np.uint8]] = deque()
        # By size, which are few; and how many bytes are kept, in use, and were in use at most.
        self._free: dict[int, list[NDArray[np.uint8]]] = {}
        self._kept = self._used = self._most = 0

    def take(self, size: int) -> LeasedMemory:
        """Return memory of at least so many bytes, and at most an eighth more, or 64 KiB.

        Of mapped memory up to twice as much, where more would have to be asked for than was once in use.
        """
        with self._lock:
            self._take_back()
            room = self._most - self._used - self._kept
            most = size + (size if room < size and self._is_mapped else max(size // 8, TUNING.least_memory))
            fits = min((many for many in self._free if size <= many <= most), default=None)
            if fits is None:
                # A little more than is wanted now, so that it does for what is wanted later.
                step = max(TUNING.least_memory, 1 << max(0, size.bit_length() - 5))
                fits = -(-size // step) * step
                memory = None
            else:
                memory = self._pop(fits)
            self._used += fits
            self._most = max(self._most, self._used)
            while self._used + self._kept > self._most:
                self._pop(next(iter(self._free)))
        if memory is None:
            memory = _mapped(fits) if self._is_mapped else np.empty(fits, np.uint8)
        return LeasedMemory(self, memory)

    def _pop(self, size: int) -> NDArray[np.uint8]:
        memory = self._free[size].pop()
        if not self._free[size]:
            del self._free[size]
        self._kept -= size
        return memory

    def _take_back(self) -> None:
        while self._back:
            memory = self._back.popleft()
            self._used -= len(memory)
            if self._keeps is None or self._kept + len(memory) <= self._keeps:
                self._free.setdefault(len(memory), []).append(memory)
                self._kept += len(memory)

    def give_back(self, memory: NDArray[np.uint8]) -> None:
        """Keep memory that nothing refers to any more."""
        self._back.append(memory)
        if self._lock.acquire(blocking=False):  # else who has it may be this thread; it is kept later
            try:
                self._take_back()
            finally:
                self._lock.release()


class LeasedMemory:
    """Memory that is given back when nothing refers to this any more.

    Attributes:
        bytes: uint8 array; a view of it does not keep this alive.
    """

    def __init__(self, owner: Memory, memory: NDArray[np.uint8]) -> None:
        self.bytes = memory
        self._owner = owner

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """What `numpy.asarray` looks at: the same bytes, whose views keep this alive."""
        return self.bytes.__array_interface__

    def __del__(self) -> None:
        self._owner.give_back(self.bytes)
