"""Which positions of a source a reader holds: a range, an int64 array, or a bitmap for many of them.

A million of a billion records must not cost 8 bytes each, and a stream asks only two things of ascending
positions: how many of them are below a border of a shard, and which are the i-th to the j-th.
"""

from __future__ import annotations

import hashlib
import operator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_BITS = 4096  # of a block of the bitmap, the unit that is unpacked
_FEW = 64  # where fewer than one position of so many is held, an int64 each takes less memory
_AT_ONCE = 8192
_DIGEST_BITS = 1 << 16
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint16)


class Subset:
    """Ascending positions as a bitmap: one bit for each position of the source, and a count for each 4096.

    A sequence of integers; slices with step 1 share the bitmap. `numpy.asarray` gives the positions.

    Args:
        bits: uint8 [blocks, 512], bit i of byte j of block k standing for position 4096 * k + 8 * j + i.
    """

    def __init__(self, bits: NDArray[np.uint8]) -> None:
        counts = np.empty(len(bits), np.int64)
        for low in range(0, len(bits), _AT_ONCE):
            counts[low : low + _AT_ONCE] = _ONES[bits[low : low + _AT_ONCE]].sum(axis=1)
        self._bits = bits
        self._edges: NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        self._first, self._stop = 0, int(self._edges[-1])

    @classmethod
    def of_mask(cls, mask: NDArray[np.bool_]) -> Subset:
        """Return the positions at which a mask over all positions is true."""
        bits = np.packbits(mask, bitorder="little")
        # One block more, so that the position after the last one has a block, too.
        blocks = len(mask) // _BITS + 1
        padded = np.zeros((blocks, _BITS // 8), np.uint8)
        padded.reshape(-1)[: len(bits)] = bits
        return cls(padded)

    def __reduce__(self) -> tuple[Any, ...]:
        return _subset, (self._bits, self._first, self._stop)

    def __len__(self) -> int:
        return self._stop - self._first

    def __getitem__(self, item: Any) -> Any:
        """Return a position, those of a slice, or int64 positions for an array of numbers."""
        if isinstance(item, slice):
            numbers = range(len(self))[item]
            if numbers.step == 1:
                return _subset(
                    self._bits, self._first + numbers.start, self._first + numbers.stop, self._edges
                )
            return self._places(np.arange(numbers.start, numbers.stop, numbers.step) + self._first)
        if isinstance(item, np.ndarray):
            return self._places(item + self._first)
        number = operator.index(item)
        if not -len(self) <= number < len(self):
            raise IndexError(f"{number} is out of range: there are {len(self)}")
        return int(self._places(np.array([number % len(self) + self._first]))[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:  # noqa: FBT001 - NumPy's
        return self._places(np.arange(self._first, self._stop)).astype(dtype or np.int64, copy=False)

    def count_below(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each position, up to one past the last, how many smaller ones are held."""
        out = np.empty(len(positions), np.int64)
        positions = np.minimum(positions, self._bits.size * 8 - 1)  # the last bits stand for no position
        for low in range(0, len(positions), _AT_ONCE):
            here = positions[low : low + _AT_ONCE]
            block, bit = np.divmod(here, _BITS)
            byte, rest = np.divmod(bit, 8)
            ones = _ONES[self._bits[block]]
            before = np.where(np.arange(_BITS // 8) < byte[:, None], ones, 0).sum(axis=1)
            part = _ONES[self._bits[block, byte] & ((1 << rest) - 1).astype(np.uint8)]
            out[low : low + _AT_ONCE] = self._edges[block] + before + part
        return np.clip(out, self._first, self._stop) - self._first

    def _places(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions that have some numbers among all that the bitmap holds."""
        out = np.empty(len(numbers), np.int64)
        for low in range(0, len(numbers), _AT_ONCE):
            here = numbers[low : low + _AT_ONCE]
            block = np.searchsorted(self._edges, here, side="right") - 1
            used, which = np.unique(block, return_inverse=True)
            ones = np.flatnonzero(np.unpackbits(self._bits[used], axis=1, bitorder="little"))
            counts = self._edges[used + 1] - self._edges[used]
            found = ones[(np.cumsum(counts) - counts)[which] + here - self._edges[block]]
            out[low : low + _AT_ONCE] = block * _BITS + found % _BITS
        return out


Selection: TypeAlias = "range | NDArray[np.int64] | Subset"


def _subset(bits: NDArray[np.uint8], first: int, stop: int, edges: NDArray[np.int64] | None = None) -> Subset:
    if edges is None:
        made = Subset(bits)
    else:
        made = Subset.__new__(Subset)
        made._bits, made._edges = bits, edges  # noqa: SLF001 - its other constructor
    made._first, made._stop = first, stop  # noqa: SLF001
    return made


def chosen(selection: Selection, mask: NDArray[np.bool_], total: int) -> Selection:
    """Return those positions of a selection at which a mask is true, in its order.

    Args:
        selection: of a source of `total` positions.
        mask: bool [len(selection)].
        total: positions of the source.
    """
    if not is_ascending(selection):
        return np.asarray(selection, np.int64)[mask]
    if np.count_nonzero(mask) * _FEW < total:
        return positions_at(selection, np.flatnonzero(mask))
    over = mask
    if not (isinstance(selection, range) and len(selection) == total):
        over = np.zeros(total, bool)
        for low in range(0, len(mask), _DIGEST_BITS):
            stop = min(low + _DIGEST_BITS, len(mask))
            over[positions_between(selection, low, stop)] = mask[low:stop]
    return Subset.of_mask(over)


def ascending(positions: NDArray[np.int64], total: int) -> Selection:
    """Return int64 positions in the form that takes less memory, if they are ascending; else as they are."""
    if len(positions) * _FEW < max(total, _BITS * _FEW) or not is_ascending(positions):
        return positions
    mask = np.zeros(total, bool)
    mask[positions] = True
    return Subset.of_mask(mask)


def is_ascending(selection: Selection) -> bool:
    """Tell whether positions are in storage order, each once."""
    if isinstance(selection, range):
        return selection.step > 0 or len(selection) < 2
    return isinstance(selection, Subset) or bool((np.diff(selection) > 0).all())


def count_below(selection: Selection, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each position how many smaller ones an ascending selection holds; int64."""
    if isinstance(selection, Subset):
        return selection.count_below(positions)
    if isinstance(selection, range):
        return np.clip(-((selection.start - positions) // selection.step), 0, len(selection))
    return np.searchsorted(selection, positions)


def positions_between(selection: Selection, first: int, stop: int) -> NDArray[np.int64]:
    """Return the positions `first .. stop - 1` of a selection, int64."""
    return np.asarray(selection[first:stop], np.int64)


def positions_at(selection: Selection, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions that have some numbers in a selection, int64."""
    if isinstance(selection, range):
        return numbers * selection.step + selection.start
    return np.asarray(selection[numbers], np.int64)


def selection_digest(selection: Selection) -> str:
    """Return what an ascending selection is known by, the same for every form of it; see docs/order.md."""
    digest = hashlib.sha256(b"shardio selection 1")
    done = 0
    while done < len(selection):
        block = int(selection[done]) // _DIGEST_BITS
        stop = int(count_below(selection, np.array([(block + 1) * _DIGEST_BITS]))[0])
        mask = np.zeros(_DIGEST_BITS, bool)
        mask[positions_between(selection, done, stop) - block * _DIGEST_BITS] = True
        digest.update(block.to_bytes(8, "little"))
        digest.update(np.packbits(mask, bitorder="little").tobytes())
        done = stop
    return digest.hexdigest()


def to_number_array(selection: Selection, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return at which place of a selection each of some positions is first, -1 where it does not; int64.

    Args:
        selection: of a source.
        positions: int64, of the source; negative ones are nowhere.
    """
    if not len(selection):
        return np.full(len(positions), -1, np.int64)
    order = None
    if isinstance(selection, range) and selection.step < 0:
        mirrored = to_number_array(selection[::-1], positions)
        return np.where(mirrored < 0, -1, len(selection) - 1 - mirrored)
    if not is_ascending(selection):
        held, order = np.unique(np.asarray(selection, np.int64), return_index=True)
        selection = held
    at = np.clip(count_below(selection, np.maximum(positions, 0)), 0, len(selection) - 1)
    found = positions_at(selection, at) == positions
    return np.where(found, at if order is None else order[at], -1)
