"""What differs between two versions of a dataset: records by split and shard, schema, metadata, tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardio.arguments import checked_options
from shardio.catalog import Catalog, Version
from shardio.lifecycle._targets import TargetShard, shards_of
from shardio.metadata import Schema, ShardEntry
from shardio.reader import deleted_rows
from shardio.reports import Report
from shardio.storage import Address, Place


@dataclass(frozen=True)
class SplitDiff(Report):
    """What differs in one split.

    Attributes:
        before, after: live records; None where the split is not there.
        added, removed: records that only the later, or only the earlier version has. What was rewritten
            (see `DiffReport.rewritten`) counts as both.
        shards_added, shards_removed: of each shard that only one of them has, its live records.
        shards_changed: of each shard that both have, records added and removed, where rows were deleted or
            are there again.
    """

    before: int | None
    after: int | None
    added: int
    removed: int
    shards_added: Mapping[str, int]
    shards_removed: Mapping[str, int]
    shards_changed: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class DiffReport(Report):
    """What differs between two versions.

    Attributes:
        url: of the dataset.
        first, second: numbers of the versions.
        operations: of the versions after the earlier one, up to the later one, by number.
        splits: those that differ, by name. A renamed split is removed under its old name and added under the
            new one.
        rewritten: shards were compacted, erased or repaired in between, or a restore went back over that, so
            the same records may be in other shards.
        schema: of each feature that differs, its type before and after; None where it is not there.
        metadata: of each key that differs, its value before and after; None where it is not there.
        tags: of each version's own tags, those of the first and those of the second.
    """

    url: str
    first: int
    second: int
    operations: Mapping[int, str]
    splits: Mapping[str, SplitDiff]
    rewritten: bool
    schema: Mapping[str, tuple[str | None, str | None]]
    metadata: Mapping[str, tuple[Any, Any]]
    tags: tuple[tuple[str, ...], tuple[str, ...]]


@checked_options
def diff(
    url: Place,
    first: int | str,
    second: int | str | None = None,
) -> DiffReport:
    """Say what differs between two versions; reads manifests and lists of shards, and no record.

    Args:
        url: of the dataset; or a `shardio.Address`, or a reader.
        first: a version, by number or tag.
        second: another one; None for the latest.

    Raises:
        NotFoundError: there is no dataset, or no such version.
        FormatError, StorageError: the metadata cannot be read.

    Examples:
        >>> import shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/birds"
        >>> for name in (b"wren", b"robin"):
        ...     with shardio.DatasetWriter(url, mode="append") as out:
        ...         out.write(name)
        >>> part = shardio.diff(url, 1, 2).splits["train"]
        >>> part.added, part.removed
        (1, 0)
    """
    catalog = Catalog(Address.of(url).connect())

    def attempt(latest: Version) -> DiffReport:
        one, two = catalog.load(first), catalog.load(second)
        low, high = sorted((one.number, two.number))
        between = list(catalog.between(low + 1, high))
        # A restore leads over the versions from the one that it restored.
        restored = [v.manifest.restored_version for v in between if v.manifest.restored_version]
        crossed = [*catalog.between(min(restored, default=low) + 1, low), *between]
        tags = latest.manifest.tags
        metadata = [dict(version.manifest.metadata) for version in (one, two)]
        return DiffReport(
            url=catalog.store.url,
            first=one.number,
            second=two.number,
            operations={version.number: version.operation for version in between},
            splits=_splits(catalog, one, two),
            rewritten=any(version.manifest.rewrites for version in crossed),
            schema=_differences(_features(one.manifest.schema), _features(two.manifest.schema)),
            metadata=_differences(*metadata),
            tags=(
                tuple(sorted(name for name, number in tags.items() if number == one.number)),
                tuple(sorted(name for name, number in tags.items() if number == two.number)),
            ),
        )

    return catalog.reading(attempt)


def _differences(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        key: (one.get(key), two.get(key))
        for key in sorted({*one, *two})
        if key not in one or key not in two or one[key] != two[key]
    }


def _features(schema: Schema | None) -> dict[str, str]:
    if schema is None:
        return {}
    shown = schema.shown.items()
    return {"": schema.encoding} | {name: each.short + " optional" * each.optional for name, each in shown}


def _splits(catalog: Catalog, one: Version, two: Version) -> dict[str, SplitDiff]:
    before, after = (_shards_by_split(catalog, version) for version in (one, two))
    out = {}
    for name in sorted({*before, *after}):
        part = _split(catalog, before.get(name), after.get(name))
        there = part.before is not None and part.after is not None
        if not there or part.added or part.removed or part.shards_added or part.shards_removed:
            out[name] = part
    return out


def _shards_by_split(catalog: Catalog, version: Version) -> dict[str, dict[TargetShard, ShardEntry]]:
    table = catalog.table(version)
    found: dict[str, dict[TargetShard, ShardEntry]] = {total.name: {} for total in version.manifest.splits}
    for entry, shard in zip(table, shards_of(version, table), strict=True):
        found[entry.split][shard] = entry
    return found


def _split(
    catalog: Catalog, one: dict[TargetShard, ShardEntry] | None, two: dict[TargetShard, ShardEntry] | None
) -> SplitDiff:
    before, after = one or {}, two or {}
    added = {shard.key: entry.live_rows for shard, entry in after.items() if shard not in before}
    removed = {shard.key: entry.live_rows for shard, entry in before.items() if shard not in after}
    changed = {}
    for shard in before.keys() & after.keys():
        if before[shard].deletion_sha256 != after[shard].deletion_sha256:
            both = before[shard], after[shard]
            was, now = (deleted_rows(catalog.store, entry, catalog.limits) for entry in both)
            changed[shard.key] = (len(np.setdiff1d(was, now)), len(np.setdiff1d(now, was)))
    return SplitDiff(
        before=None if one is None else sum(entry.live_rows for entry in one.values()),
        after=None if two is None else sum(entry.live_rows for entry in two.values()),
        added=sum(added.values()) + sum(both[0] for both in changed.values()),
        removed=sum(removed.values()) + sum(both[1] for both in changed.values()),
        shards_added=added,
        shards_removed=removed,
        shards_changed=dict(sorted(changed.items())),
    )
