"""Which split a record goes to, where the caller wants other splits than the source has.

The choice hangs on the seed and on where the record comes from, and on nothing else: converting again, with
more workers or a longer source, sends every record to the split it went to before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from shardio.metadata import check_split

__all__ = ["Splitter"]

_WORDS = 1 << 64


@dataclass(frozen=True)
class Splitter:
    """Send records to splits.

    Args:
        wanted: None keeps the source's splits; a name takes all records; a mapping of names to shares
            divides them.
        seed: another seed divides them another way.
    """

    wanted: str | Mapping[str, float] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.wanted, Mapping):
            shares = list(self.wanted.values())
            if not shares or min(shares) < 0 or not 0.999 < sum(shares) < 1.001:
                message = f"shares={dict(self.wanted)!r} must not be negative, and their sum must be 1"
                raise ValueError(message)
            for name in self.wanted:
                check_split(name)
        elif self.wanted is not None:
            check_split(self.wanted)

    @classmethod
    def of(cls, split: str | None, shares: Mapping[str, float] | None, seed: int) -> Splitter:
        """Return the splitter for what a caller says.

        Raises:
            TypeError: shares in place of a name.
            UnsafeNameError: not a name for a split.
            ValueError: both are given, or shares that make no sense.
        """
        if isinstance(split, Mapping):
            message = f"split={dict(split)!r} must be a name; shares are given as shares={dict(split)!r}"
            raise TypeError(message)
        if split is not None and shares is not None:
            raise ValueError("split= names one split and shares= divides among several: give one of them")
        return cls(split if shares is None else dict(shares), seed)

    def __call__(self, where: str, split: str) -> str:
        """Return the split of the record that came from `where`."""
        if self.wanted is None:
            return split
        if isinstance(self.wanted, str):
            return self.wanted
        digest = hashlib.blake2b(f"{self.seed}/{where}".encode(errors="backslashreplace"), digest_size=8)
        place = int.from_bytes(digest.digest(), "little") / _WORDS * sum(self.wanted.values())
        edge = 0.0
        for name, share in self.wanted.items():
            edge += share
            if place < edge:
                return name
        return name
