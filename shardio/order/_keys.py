"""Where all randomness of the order comes from; nothing here depends on anything but its arguments.

A key is the first 16 bytes of SHA-256 over a purpose tag and fixed-width fields, so that two purposes or two
lists of fields never share one (`numpy.random.SeedSequence` is not injective: [5, 7] and [5, 7, 0, 0] are the
same).  Permutations are made from the raw words of Philox-4x64-10 only: NumPy keeps the words of its bit
generators between versions (NEP 19), but not what the methods of `Generator` make of them.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random import Generator, Philox
from numpy.random.bit_generator import ISeedSequence

from shardio.arguments import integer

Array = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_U64 = 1 << 64


class _Key(ISeedSequence):
    """Hand a ready key to Philox.

    `Philox(key=...)` would draw operating system entropy for a seed sequence that is not used: it is slower,
    and `Generator.spawn` would then return children that differ from run to run, where this one refuses.
    """

    def __init__(self, words: Words) -> None:
        self.words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> Any:  # noqa: ARG002 -- NumPy's names
        return self.words


def _philox(words: Words) -> Philox:
    return Philox(_Key(words))  # type: ignore[arg-type]  # the stubs forget ISeedSequence


def seed_field(value: object, name: str) -> int:
    """Return `value` as an int in [0, 2**64), or raise a TypeError or ValueError that names it."""
    number = integer(name, value)
    if not 0 <= number < _U64:
        raise ValueError(f"{name} must be in [0, 2**64), found {number}")
    return number


def key(purpose: str, *fields: int) -> Words:
    """Return the two u64 words of the key for `purpose` and its fields, each in [0, 2**64).

    The hashed bytes are `shardio.order.1/<purpose>`, one zero byte, and each field as a little-endian u64.
    A purpose always has the same number of fields, so no two different inputs give the same bytes.
    """
    text = b"shardio.order.1/" + purpose.encode("ascii") + b"\0" + struct.pack(f"<{len(fields)}Q", *fields)
    return np.frombuffer(hashlib.sha256(text).digest()[:16], dtype="<u8").astype(np.uint64)


def raw_words(words: Words, start: int, count: int) -> Words:
    """Return the raw Philox words `[start, start + count)` of a key; any start costs the same."""
    bits = _philox(words)
    if start:
        bits.advance(start // 4)  # one step of Philox-4x64's counter makes four words
    skip = start % 4
    raw: Words = bits.random_raw(count + skip)
    return raw[skip:]


def permutation(count: int, purpose: str, *fields: int) -> Array:
    """Return the permutation of `range(count)` for a key, int64: the stable argsort of its raw words."""
    if count < 2:
        return np.zeros(count, np.int64)
    words = raw_words(key(purpose, *fields), 0, count)
    # A sort that is not stable takes half the time, and gives another order only where words are equal.
    order = np.argsort(words)
    ordered = words[order]
    if (ordered[1:] == ordered[:-1]).any():
        order = np.argsort(words, kind="stable")
    return order


def record_generator(
    seed: int, epoch: int, position: int, *, source: int = 0, cycle: int = 0, purpose: str = "record"
) -> Generator:
    """Return the NumPy generator that belongs to one record in one epoch.

    It is the same on every rank, thread and worker, whatever the batch size.  `source` and `cycle` are those
    of the record's batch: 0 but in mixtures, where two sources, or two passes over one source, differ.  What
    is drawn for one purpose does not depend on what is drawn for another.
    """
    return Generator(_philox(key(purpose, seed, epoch, source, cycle, position)))
