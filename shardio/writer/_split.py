"""One split of a dataset under construction."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardio.writer._spool import ShardSpool

__all__ = ["OpenSplit"]


class OpenSplit:
    """One split under construction: the shard that takes the next record, and how many came before it."""

    __slots__ = ("add", "before", "blocks", "spool")

    def __init__(self, before: int, spool: ShardSpool) -> None:
        self.renew(before, spool)

    def renew(self, before: int, spool: ShardSpool) -> None:
        """Go on with a new shard."""
        self.before = before
        self.spool = spool
        # Bound once: a record costs few calls.
        self.blocks = spool.blocks
        self.add = spool.blocks.add

    @property
    def rows(self) -> int:
        """Number of records so far."""
        return self.before + self.spool.rows
