"""Columns of text that take little memory: few distinct texts as numbers, many as compressed runs.

Keys of 10^6 shards are 70 MB as bytes and twice that as strings of Python; neighbours differ in some
characters, so that runs of them compress to a few bytes each and are opened when one of them is wanted.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, overload

import numpy as np
import zstandard
from numpy.typing import NDArray

from shardio.metadata.naming import are_plain_keys

_RUN = 256  # texts that are compressed together: one costs what opening all of them does
_FEW = 4096  # texts that stay a list
_OPEN = 8  # runs that stay open
_END = "\0"


class Texts(Sequence[str]):
    """A column of text, an item a shard."""

    @overload
    def __getitem__(self, item: int) -> str: ...
    @overload
    def __getitem__(self, item: slice) -> list[str]: ...
    def __getitem__(self, item: int | slice) -> str | list[str]:
        """Return one text, or some in a list."""
        if isinstance(item, slice):
            return [self[i] for i in range(*item.indices(len(self)))]
        count = len(self)
        at = int(item) + count if item < 0 else int(item)
        if not 0 <= at < count:
            raise IndexError(f"item {item} of {count} texts")
        return self._text(at)

    @abc.abstractmethod
    def _text(self, at: int) -> str: ...


class NumberedTexts(Texts):
    """Texts of which few differ.

    Args:
        names: the texts.
        numbers: of the name of each item, unsigned.
    """

    def __init__(self, names: Sequence[str], numbers: NDArray[Any]) -> None:
        self.names = tuple(names)
        self.numbers = numbers

    @classmethod
    def from_texts(cls, texts: Sequence[str]) -> NumberedTexts:
        """Return texts as numbers."""
        names = sorted(set(texts))
        numbers = {name: number for number, name in enumerate(names)}
        return cls(names, np.fromiter((numbers[each] for each in texts), np.uint32, len(texts)))

    @classmethod
    def alike(cls, text: str, count: int) -> NumberedTexts:
        """Return one text so many times."""
        return cls([text], np.ndarray((count,), np.uint8, b"\0", strides=(0,)))

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.numbers)

    def __iter__(self) -> Iterator[str]:
        """Yield the texts in order."""
        return map(self.names.__getitem__, self.numbers.tolist())

    def _text(self, at: int) -> str:
        return self.names[int(self.numbers[at])]

    def take(self, items: NDArray[Any]) -> NumberedTexts:
        """Return the texts with these numbers, or where a mask is true."""
        return NumberedTexts(self.names, self.numbers[items])

    def used(self) -> dict[str, NDArray[np.bool_]]:
        """Return the names that items have, each with the mask of those."""
        return {
            name: self.numbers == number
            for number, name in enumerate(self.names)
            if (self.numbers == number).any()
        }


class PackedTexts(Texts):
    """Texts in compressed runs; none of them holds a NUL.

    Args:
        joined: the texts, with a NUL between them.

    Attributes:
        are_keys: all are keys that anything may have.
    """

    def __init__(self, joined: bytes) -> None:
        self.are_keys = are_plain_keys(joined)
        array = np.frombuffer(joined, np.uint8)
        ends = np.flatnonzero(array == 0)
        self._count = len(ends) + 1
        stops = [*ends[_RUN - 1 :: _RUN].tolist(), len(joined)]
        starts = [0, *(stop + 1 for stop in stops[:-1])]
        packer = zstandard.ZstdCompressor(level=1)
        packed = [packer.compress(joined[a:b]) for a, b in zip(starts, stops, strict=True)]
        # Joined, for what the compressor returns keeps the room of what was not compressed.
        self._packed = b"".join(packed)
        self._stops = [0, *accumulate(map(len, packed))]
        self._opened: dict[int, list[str]] = {}

    @classmethod
    def from_texts(cls, texts: Sequence[str]) -> Sequence[str]:
        """Return texts packed where they are many, and a list where they are not."""
        if len(texts) <= _FEW or any(_END in each for each in texts):
            return texts if isinstance(texts, list) else list(texts)
        return cls(_END.join(texts).encode())

    @classmethod
    def from_joined(cls, joined: bytes, count: int) -> Sequence[str]:
        """Return so many texts, at least one, that have a NUL between them."""
        return cls(joined) if count > _FEW else joined.decode().split(_END)

    def __len__(self) -> int:
        """Return the number of items."""
        return self._count

    def __iter__(self) -> Iterator[str]:
        """Yield the texts in order."""
        return chain.from_iterable(map(self._open, range(len(self._stops) - 1)))

    def _text(self, at: int) -> str:
        run, place = divmod(at, _RUN)
        opened = self._opened.get(run)
        if opened is None:
            opened = self._opened[run] = self._open(run)
            while len(self._opened) > _OPEN:
                # Another thread may have done so.
                self._opened.pop(next(iter(self._opened)), None)
        return opened[place]

    def _open(self, run: int) -> list[str]:
        packed = self._packed[self._stops[run] : self._stops[run + 1]]
        return zstandard.ZstdDecompressor().decompress(packed).decode().split(_END)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the texts."""
        return list, (list(self),)


class JoinedTexts(Texts):
    """Columns of text, one after another."""

    def __init__(self, parts: Sequence[Sequence[str]]) -> None:
        self._parts = parts
        self._stops = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        """Return the number of items."""
        return int(self._stops[-1]) if len(self._stops) else 0

    def __iter__(self) -> Iterator[str]:
        """Yield the texts in order."""
        return chain.from_iterable(self._parts)

    def _text(self, at: int) -> str:
        part = int(np.searchsorted(self._stops, at, side="right"))
        return self._parts[part][at - int(self._stops[part - 1] if part else 0)]
