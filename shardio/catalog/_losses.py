"""Records that earlier repairs lost, followed from the repair to the latest version.

Promises: what was lost with a shard, and nothing else, is known whatever became of what was salvaged: rows
deleted, compacted, salvaged again, dropped, the split renamed. A version that takes shards out otherwise,
such as an overwrite, ends it, and so does expiry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
class Salvaged:
    """A shard with what was good of another one.

    Attributes:
        version: the last one that names it.
        entry: as that version lists it.
        merged: a compaction put its live records into other shards.
    """

    version: Version
    entry: ShardEntry
    merged: bool = False

    @property
    def spent_rows(self) -> int:
        """How many of its rows don't come back: those that were deleted, or are in other shards."""
        return self.entry.rows if self.merged else self.entry.deleted_rows


@dataclass(frozen=True)
class Loss:
    """A shard that a repair replaced by what was good of it, or dropped.

    Attributes:
        version: the last one that names it.
        entry: as that version lists it.
        split: name of its split in the latest version.
        salvaged: what was good of it; then what was good of that, and so on.
        place: UUID of the last of these while no compaction merged it and no repair dropped it.
    """

    version: Version
    entry: ShardEntry
    split: str
    salvaged: tuple[Salvaged, ...] = ()
    place: bytes | None = None

    @property
    def recovered_rows(self) -> int:
        """How many records the shard has when it is back."""
        return self.entry.live_rows - sum(each.spent_rows for each in self.salvaged)

    @property
    def lost_rows(self) -> int:
        """How many of its records no shard has now."""
        held = 0 if self.place is None else self.salvaged[-1].entry.live_rows
        return self.recovered_rows - held

    def holds(self, uuid: bytes) -> bool:
        """Tell whether a shard was salvaged from this one."""
        return any(each.entry.uuid == uuid for each in self.salvaged)


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
    here = {entry.uuid: entry for entry in catalog.table(latest)}
    found = []
    for loss in history[latest.number]:
        # Nor where what was salvaged has come back by itself: its records would be there twice.
        if any(stage.entry.uuid in here for stage in loss.salvaged):
            continue
        if loss.place is None:
            found.append(loss)
        elif loss.place in here:
            found.append(_salvaged(loss, latest, here[loss.place], loss.place))
    return [loss for loss in found if loss.lost_rows > 0]


def _follow(
    catalog: Catalog, before: Version, later: Version, history: Mapping[int, list[Loss]]
) -> list[Loss]:
    """Return what is lost in a version, by what was lost in those before."""
    manifest, repairs = later.manifest, later.operation == "repair"
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
    if not manifest.rewrites and not repairs:
        return losses
    entries = {entry.uuid: entry for entry in catalog.table(before)}
    there = {entry.uuid for entry in catalog.table(later)} if repairs else set()
    back = [each for each in losses if each.entry.uuid in there]
    losses = [
        each for each in losses if each not in back and not any(one.holds(each.entry.uuid) for one in back)
    ]
    for rewrite in manifest.rewrites:
        new = [uuid for uuid in rewrite.new if all(uuid != each.entry.uuid for each in back)]
        place = new[0] if repairs and new else None
        # A shard that came back ends what was salvaged from it.
        returned = next((each.entry.uuid for each in back if each.place in rewrite.old), None)
        for k, each in enumerate(losses):
            if each.place is None or each.place not in rewrite.old:
                continue
            if returned is not None and each.holds(returned):
                uuids = [stage.entry.uuid for stage in each.salvaged]
                salvaged = each.salvaged[: uuids.index(returned)]
                losses[k] = replace(each, salvaged=salvaged, place=returned)
            else:
                losses[k] = _salvaged(each, before, entries[each.place], place, merged=not repairs)
        if repairs and returned is None:
            entry = entries[rewrite.old[0]]
            losses.append(Loss(before, entry, entry.split, (), place))
    return losses


def _salvaged(
    loss: Loss, version: Version, entry: ShardEntry, place: bytes | None, *, merged: bool = False
) -> Loss:
    """Return a loss of which one more shard was salvaged."""
    return replace(loss, salvaged=(*loss.salvaged, Salvaged(version, entry, merged)), place=place)
