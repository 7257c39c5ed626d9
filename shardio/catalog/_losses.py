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
class Loss:
    """A shard that a repair replaced by what was good of it, or dropped.

    Attributes:
        version: the last one that names it.
        entry: as that version lists it.
        split: name of its split in the latest version.
        salvaged: its intact records, as version `salvaged_version` lists them; None if there were none.
        salvaged_version: that version.
    """

    version: Version
    entry: ShardEntry
    split: str
    salvaged: ShardEntry | None = None
    salvaged_version: Version | None = None

    @property
    def lost_rows(self) -> int:
        """How many of its records were lost."""
        return self.entry.live_rows - (0 if self.salvaged is None else self.salvaged.rows)


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
    return [loss for loss in history[latest.number] if loss.lost_rows > 0]


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
    # A shard that came back replaces its salvaged records, and those salvaged from them.
    back: set[bytes] = set()
    for each in losses:
        if each.entry.uuid in here or each.entry.uuid in back:
            back |= {each.entry.uuid, each.salvaged.uuid if each.salvaged else b""}
    losses = [each for each in losses if each.entry.uuid not in back]
    for rewrite in manifest.rewrites:
        old = entries[rewrite.old[0]]
        if old.uuid in back:
            continue
        new = next((here[uuid] for uuid in rewrite.new if uuid in here and uuid not in back), None)
        for k, each in enumerate(losses):
            # Of a salvaged shard without deleted rows the first loss says all.
            if each.salvaged is not None and each.salvaged.uuid == old.uuid and not old.deleted_rows:
                losses[k] = replace(each, salvaged=new, salvaged_version=later)
                break
        else:
            losses.append(Loss(before, old, old.split, new, later))
    # A salvaged shard may have come back itself, to another place: that one can be read.
    return [
        replace(each, salvaged=here[each.salvaged.uuid], salvaged_version=later)
        if each.salvaged is not None and each.salvaged.uuid in here
        else each
        for each in losses
    ]
