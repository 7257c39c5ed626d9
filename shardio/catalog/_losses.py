"""Records that earlier repairs lost, followed from the repair to the latest version.

Promises: what was lost with a shard, and nothing else, is known whatever became of what was salvaged: rows
deleted, compacted, salvaged again, dropped, the split renamed. A version that takes shards out otherwise,
such as an overwrite, ends it, and so does expiry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from shardio.catalog._version import Version
from shardio.metadata import ShardEntry

if TYPE_CHECKING:
    from shardio.catalog._catalog import Catalog

# Operations that take shards out by `Manifest.rewrites` or with their split, and in no other way.
_STEADY = {
    "adopt", "append", "compact", "delete", "gc", "keys", "remove split", "rename split", "repair",
    "set schema", "table", "tag", "untag",
}  # fmt: skip


@dataclass(frozen=True)
class Loss:
    """A shard that a repair replaced by its intact records, or dropped.

    Attributes:
        shards: the damaged shard, then each shard that was salvaged from the one before it; each with the
            last version that lists it, as listed there.
        dropped: nothing was salvaged from the last of these.
        split: name of its split in the latest version.
    """

    shards: tuple[tuple[Version, ShardEntry], ...]
    dropped: bool
    split: str

    @property
    def version(self) -> Version:
        """The last version that lists the shard."""
        return self.shards[0][0]

    @property
    def entry(self) -> ShardEntry:
        """The shard, as that version lists it."""
        return self.shards[0][1]

    @property
    def uuids(self) -> list[bytes]:
        """UUIDs of the shard and of those that were salvaged from it."""
        return [entry.uuid for _, entry in self.shards]

    @property
    def lost_rows(self) -> list[int]:
        """How many records each repair lost."""
        rows = [entry.live_rows - later.rows for (_, entry), (_, later) in pairwise(self.shards)]
        return [*rows, self.shards[-1][1].live_rows] if self.dropped else rows


def find_losses(catalog: Catalog, versions: Mapping[int, Version]) -> list[Loss]:
    """Return what earlier repairs lost and is still lost, oldest first, while it can come back.

    Args:
        catalog: of the dataset.
        versions: by number, the latest too; those before a gap, or before one that expired, are ignored.

    Raises:
        FormatError, NotFoundError: a list of these versions cannot be read.
    """
    latest = versions[max(versions)]
    expired, first = latest.manifest.expiry.expired_versions, latest.number
    while first - 1 in versions and first - 1 not in expired:
        first -= 1
    numbers = range(first + 1, latest.number + 1)
    if not any(versions[k].operation == "repair" and versions[k].manifest.rewrites for k in numbers):
        return []
    history: dict[int, list[Loss]] = {first: []}
    for number in numbers:
        history[number] = _follow(catalog, versions[number - 1], versions[number], history)
    return [loss for loss in history[latest.number] if sum(loss.lost_rows)]


def _follow(
    catalog: Catalog, before: Version, later: Version, history: Mapping[int, list[Loss]]
) -> list[Loss]:
    """Return what is lost in a version, by what was lost in those before."""
    manifest = later.manifest
    if manifest.restored_version:
        return history.get(manifest.restored_version, [])
    if later.operation not in _STEADY:
        return []
    losses = history[before.number]
    if later.operation.endswith("split"):
        one, two = ({total.name for total in each.manifest.splits} for each in (before, later))
        names = dict.fromkeys(one - two, next(iter(two - one), ""))
        losses = [replace(each, split=names.get(each.split, each.split)) for each in losses]
        return [each for each in losses if each.split]
    if later.operation != "repair":
        return losses
    entries = {entry.uuid: entry for entry in catalog.table(before)}
    here = {entry.uuid: entry for entry in catalog.table(later)}
    # A shard that came back holds the records of all that was salvaged from it.
    back = {uuid for loss in losses if loss.entry.uuid in here for uuid in loss.uuids}
    losses = [loss for loss in losses if loss.entry.uuid not in back]
    new: dict[bytes, Loss] = {}
    for rewrite in manifest.rewrites:
        old = entries[rewrite.old[0]]
        if old.uuid in back:
            continue
        salvaged = [(later, here[uuid]) for uuid in rewrite.new if uuid in here and uuid not in back]
        new[old.uuid] = Loss(((before, old), *salvaged[:1]), not salvaged, old.split)
    losses = [_extend(loss, new.get(loss.shards[-1][1].uuid)) for loss in losses]
    return [_cut(loss, later, here) for loss in [*losses, *new.values()]]


def _extend(loss: Loss, end: Loss | None) -> Loss:
    """Return a loss with what became of the last of its shards."""
    return (
        loss if end is None else replace(loss, shards=(*loss.shards[:-1], *end.shards), dropped=end.dropped)
    )


def _cut(loss: Loss, version: Version, here: Mapping[bytes, ShardEntry]) -> Loss:
    """Return a loss up to the first salvaged shard that a version lists: it may have come back itself."""
    for number, uuid in enumerate(loss.uuids):
        if uuid in here:
            return replace(loss, shards=(*loss.shards[:number], (version, here[uuid])), dropped=False)
    return loss
