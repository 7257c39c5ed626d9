"""Which split a record goes to, where the caller wants other splits than the source has.

The choice hangs on the seed and on where the record comes from, and on nothing else: converting again, with
more workers or a longer source, sends every record to the split it went to before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

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
                message = (
                    f"split={dict(self.wanted)!r}: the shares must not be negative, and their sum must be 1"
                )
                raise ValueError(message)

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
