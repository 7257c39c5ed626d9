"""A full shuffle in constant memory, for random access: which record stands at place i, without a table.

Above 4,096 entries it is a Feistel network over a domain barely larger than n, walked until it falls below n
(J. Black, P. Rogaway, Ciphers with Arbitrary Finite Domains, 2002); below, a table of at most 32 KiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import numpy as np
import numpy.typing as npt

from shardio.order._keys import Array, Words, key, permutation, raw_words, seed_field

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Permutation"]

_TABLE = 4096
_ROUNDS = 8
_BLOCK = 8192  # 64 KiB per array: the working set stays in the second-level cache
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd


class Permutation:
    """Permute `range(n)`: `p[i]` is the number at place i, and `p.inverse(p[i])` is i.

    Args:
        n: how many, 0 to 2**62.
        seed, epoch: any integers in [0, 2**64); another epoch is another permutation.

    It holds O(1) memory, never changes, and may be shared by threads.

    >>> p = Permutation(10, seed=1)
    >>> sorted(p) == list(range(10)), int(p.inverse(p[3]))
    (True, 3)
    """

    def __init__(self, n: int, seed: int = 0, *, epoch: int = 0) -> None:
        if isinstance(n, bool) or not isinstance(n, int):
            msg = f"n must be an integer, found {n!r}"
            raise TypeError(msg)
        if not 0 <= n <= 1 << 62:
            msg = f"n must be in [0, 2**62], found {n}"
            raise ValueError(msg)
        self._n = n
        self._set_up(n, "permutation", seed_field(seed, "seed"), seed_field(epoch, "epoch"))

    @classmethod
    def of_key(cls, n: int, purpose: str, *fields: int) -> Permutation:
        """Return the permutation of `range(n)` for another key: of the purpose, its fields and n."""
        made = cls.__new__(cls)
        made._n = n  # noqa: SLF001 - its own class
        made._set_up(n, purpose, *fields)  # noqa: SLF001
        return made

    def _set_up(self, n: int, purpose: str, *fields: int) -> None:
        self._table = permutation(n, purpose, *fields, n) if n <= _TABLE else None
        self._set_network(raw_words(key(purpose, *fields, n), 0, _ROUNDS))

    def _set_network(self, words: Words) -> None:
        # The low half has 2**l values and the high half just enough of them, so that the network's domain is
        # larger than n by less than 2**l, about the root of n: next to nothing has to be walked.
        self._keys = words
        self._low_bits = np.uint64(max(1, (self._n - 1).bit_length() // 2))
        self._high = np.uint64(max(1, -(-self._n >> int(self._low_bits))))

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: npt.ArrayLike) -> Array: ...
    def __getitem__(self, index: int | npt.ArrayLike) -> int | Array:
        """Return the number at a place (a negative int counts from the end), or int64 of an array's shape."""
        if isinstance(index, (int, np.integer)) and not isinstance(index, bool):
            at = int(index) + (self._n if index < 0 else 0)
            if not 0 <= at < self._n:
                msg = f"index {index} is out of range for a permutation of {self._n}"
                raise IndexError(msg)
            return int(self._apply(np.array([at], np.int64), forward=True)[0])
        return self._apply(self._checked(index), forward=True)

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self._n, _BLOCK):
            yield from self[np.arange(start, min(start + _BLOCK, self._n))].tolist()

    def inverse(self, numbers: npt.ArrayLike) -> Array:
        """Return the places of numbers, int64 of their shape; as fast as the way there."""
        return self._apply(self._checked(numbers), forward=False)

    def _checked(self, values: npt.ArrayLike) -> Array:
        given = np.asarray(values)
        if given.size and given.dtype.kind not in "iu":
            msg = f"a permutation takes integers, found an array of {given.dtype}"
            raise TypeError(msg)
        if given.size and (int(given.min()) < 0 or int(given.max()) >= self._n):
            msg = f"numbers must be in [0, {self._n}), found {int(given.min())} to {int(given.max())}"
            raise IndexError(msg)
        return given.astype(np.int64, copy=False)

    def _apply(self, values: Array, *, forward: bool) -> Array:
        if self._table is not None:
            return self._table[values] if forward else np.argsort(self._table)[values]
        flat = values.reshape(-1).view(np.uint64)
        out = np.empty(flat.size, np.int64)
        for start in range(0, flat.size, _BLOCK):
            block = self._network(flat[start : start + _BLOCK], forward=forward)
            outside = np.flatnonzero(block >= self._n)
            while outside.size:
                walked = self._network(block[outside], forward=forward)
                block[outside] = walked
                outside = outside[walked >= self._n]
            out[start : start + block.size] = block.view(np.int64)
        return out.reshape(values.shape)

    def _network(self, values: Words, *, forward: bool) -> Words:
        """Run the rounds over a block: each half takes in a hash of the other, in turn."""
        low = values & (np.uint64(1) << self._low_bits) - np.uint64(1)
        high = values >> self._low_bits
        scratch = np.empty_like(low)
        order = range(_ROUNDS) if forward else range(_ROUNDS - 1, -1, -1)
        for number in order:
            if number % 2 == 0:
                low ^= self._hash(high, self._keys[number], np.uint64(64) - self._low_bits, scratch)
                continue
            # The top 32 bits of the hash, scaled to [0, b), are added modulo b.  Of x and x - b (or x + b, on
            # the way back) the one that did not wrap round 2**64 is the smaller.
            step = self._hash(low, self._keys[number], np.uint64(32), scratch)
            step *= self._high
            step >>= np.uint64(32)
            if forward:
                high += step
                np.minimum(high, np.subtract(high, self._high, out=scratch), out=high)
            else:
                high -= step
                np.minimum(high, np.add(high, self._high, out=scratch), out=high)
        high <<= self._low_bits
        high |= low
        return high

    @staticmethod
    def _hash(half: Words, word: np.uint64, shift: np.uint64, out: Words) -> Words:
        # Two multiplications with a fold between: the product's top bits depend on every bit of the half.
        np.add(half, word, out=out)
        np.multiply(out, _MIX, out=out)
        out ^= out >> np.uint64(32)
        np.multiply(out, _MIX, out=out)
        np.right_shift(out, shift, out=out)
        return out
