"""A full shuffle in constant memory, for random access: which record is at place i, without a table.

Above 4,096 entries it is a Feistel network over a domain barely larger than n, walked until it falls below n
(J. Black, P. Rogaway, Ciphers with Arbitrary Finite Domains, 2002); below, a table of at most 32 KiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import overload

import numpy as np
import numpy.typing as npt

from shardio.arguments import integer
from shardio.kernels import Network, permute
from shardio.order._keys import Array, key, permutation, raw_words, seed_field

_TABLE = 4096
_ROUNDS = 8
_BLOCK = 8192


class Permutation:
    """Permute `range(n)`: `p[i]` is the number at place i, and `p.inverse(p[i])` is i.

    Args:
        n: how many, 0 to 2**62.
        seed, epoch: any integers in [0, 2**64); another epoch is another permutation.

    It holds O(1) memory, never changes, and may be shared by threads.

    Attributes:
        table: int64, the permutation written out where n is at most 4,096; else empty.
        network: what says it where it is not written out.

    >>> p = Permutation(10, seed=1)
    >>> sorted(p) == list(range(10)), int(p.inverse(p[3]))
    (True, 3)
    """

    def __init__(self, n: int, seed: int = 0, *, epoch: int = 0) -> None:
        n = integer("n", n)
        if not 0 <= n <= 1 << 62:
            raise ValueError(f"n must be in [0, 2**62], found {n}")
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
        # The low half has 2**l values and the high half just enough of them, so that the network's domain is
        # larger than n by less than 2**l, about the root of n: next to nothing has to be walked.
        low_bits = max(1, (n - 1).bit_length() // 2)
        words = raw_words(key(purpose, *fields, n), 0, _ROUNDS)
        self.network = Network(n, words, low_bits, max(1, -(-n >> low_bits)))
        self.table = permutation(n, purpose, *fields, n) if n <= _TABLE else np.zeros(0, np.int64)

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
                raise IndexError(f"index {index} is out of range for a permutation of {self._n}")
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
            raise TypeError(f"a permutation takes integers, found an array of {given.dtype}")
        if given.size and (int(given.min()) < 0 or int(given.max()) >= self._n):
            msg = f"numbers must be in [0, {self._n}), found {int(given.min())} to {int(given.max())}"
            raise IndexError(msg)
        return given.astype(np.int64, copy=False)

    def _apply(self, values: Array, *, forward: bool) -> Array:
        if self._n <= _TABLE:
            return self.table[values] if forward else np.argsort(self.table)[values]
        return permute(values, self.network, forward=forward)
