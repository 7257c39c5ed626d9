"""Erase records for good: their shards are rewritten without them, and every earlier version expires."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardio.arguments import checked_options
from shardio.catalog import Catalog, Version, find_losses
from shardio.errors import CommitConflictError, StorageError
from shardio.format import Framing
from shardio.lifecycle._report import DeleteReport, change_facts, records_of
from shardio.lifecycle._rewrite import Group, block_bytes_of, replace_shards, stored_keys, write_groups
from shardio.lifecycle._targets import Targets, find_targets, numbers_of, shards_of
from shardio.metadata import Manifest, naming
from shardio.progress import displayed
from shardio.reader import ReadOptions, deleted_rows
from shardio.storage import Address, BlockCache, CacheOptions, Place
from shardio.writer import Layout


@dataclass(frozen=True)
class EraseReport(DeleteReport):
    """Result of `erase`.

    Attributes:
        expired_versions: every version before the new one that had not expired yet.
        dropped_tags: tags of these versions, with their numbers.
        pending_gc: objects that may hold bytes of the records until `shardio gc`, with their sizes in bytes:
            all shards and tables that only expired versions name.
        external_copies: URLs of third-party shards that only expired versions name, and that may hold them.
        lost_for_good: number of lost records by shard that a mirror can no longer restore afterwards.
            Repair from the mirror first, if there is one.
    """

    expired_versions: tuple[int, ...] = ()
    dropped_tags: Mapping[str, int] = field(default_factory=dict)
    pending_gc: Mapping[str, int] = field(default_factory=dict)
    external_copies: tuple[str, ...] = ()
    lost_for_good: Mapping[str, int] = field(default_factory=dict)


@checked_options
def erase(  # noqa: PLR0913 - the options are the public contract
    url: Place,
    rows: ArrayLike | Iterable[int] | None = None,
    *,
    where: str | Callable[[dict[str, Any]], Any] | NDArray[np.bool_] | None = None,
    keys: Sequence[Any] | None = None,
    feature: str | None = None,
    split: str | None = None,
    version: int | str | None = None,
    features: Sequence[str] | None = None,
    drop_tags: bool = False,
    cache: CacheOptions | None = None,
    executor: Executor | None = None,
    dry_run: bool = False,
    progress: bool | Callable[[Any], None] = False,
) -> EraseReport:
    """Erase records for good, for takedowns: rewrite their shards, and expire every earlier version.

    One commit puts shards without the records in the place of those that hold them, and expires every
    version before it. `shardio gc` then removes the bytes; the report names the objects. Copies elsewhere
    are not known here: exports, other datasets, and block caches on other machines.

    Args:
        url: of the dataset; or a `shardio.Address`, or a reader.
        rows: positions of the records, integers from 0 as `ds[i]` takes them, each once, in any order.
        where: a condition, as `ds.filter` takes it: text such as `"label = 3"`, `f(columns)` that returns a
            bool for each record, or a mask, bool [records].
        keys: of the records, each once, as `ds.find` takes them; every record that has one is meant.
        feature: which feature's keys these are; None for the only one with an index of keys.
        split: which positions count: of one split; of the only one by default; of "all", joined.
        version: whose positions are meant, a number or a tag; None for the latest.
        features: which are read for `where`.
        drop_tags: drop the tags of the versions that expire; else a tag refuses the erasure.
        cache: a block cache on local disk that is emptied.
        executor: any `concurrent.futures.Executor` that rewrites the shards; None for this process.
        dry_run: change nothing, only report what would be erased.
        progress: True for a display on stderr, or a function of how far it has come: `done` and `total`,
            records that `where` has looked at, then those whose shards are rewritten.

    Returns:
        The report; `version` is None where no record was meant.

    Raises:
        IndexError, ValueError, TypeError, NotFoundError: as in `shardio.delete`.
        CommitConflictError: a shard with such a record is no longer part of the dataset, another writer
            changed it meanwhile, or an earlier version has a tag.
        StorageError: the records are in third-party shards, which are never rewritten.
        CommitOutcomeUnknownError: see `shardio.commit`.

    Examples:
        >>> import shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/numbers"
        >>> _ = shardio.from_generator(({"n": n} for n in range(10)), url)
        >>> report = shardio.erase(url, [3, 5])
        >>> report.deleted, report.expired_versions, len(shardio.open(url))
        (2, (1,), 8)
        >>> shardio.gc(url, dry_run=False).deleted  # the old shard, its index and its list
        3
    """
    catalog = Catalog(Address.of(url).connect())
    read, targets = find_targets(
        catalog,
        url,
        rows,
        where=where,
        keys=keys,
        feature=feature,
        split=split,
        version=version,
        features=features,
        progress=progress,
    )

    def attempt(latest: Version) -> EraseReport:
        groups, erased = _groups(catalog, latest, targets, read)
        number, before = None, records_of(latest.manifest)
        after, table = dict(before), catalog.table(latest)
        for group in groups:
            after[table.split[group.numbers[0]]] -= len(group.leave_out)
        expiring = _find_expiring(catalog, latest, targets) if targets else {}
        _check_tags(catalog, latest, drop_tags=drop_tags or not targets)
        if targets and not dry_run:
            with displayed(progress, "erase") as show:
                written = write_groups(
                    catalog,
                    latest,
                    groups,
                    ReadOptions.at(Address.of(url), decode=False),
                    executor=executor,
                    workers=None if executor else 1,
                    show=show,
                )

            def finish(base: Version, manifest: Manifest) -> Manifest:
                nonlocal expiring
                _check_tags(catalog, base, drop_tags=drop_tags)
                if base.number != latest.number:
                    expiring = _find_expiring(catalog, base, targets)
                expiry = replace(manifest.expiry, expired_versions=tuple(range(1, base.number + 1)))
                return replace(manifest, expiry=expiry, tags={})

            stored = stored_keys(written)
            base, committed = replace_shards(
                catalog, latest, written, stored, operation="erase", finish=finish
            )
            number = committed.number
            before, after = records_of(base.manifest), records_of(committed.manifest)
        if cache is not None and not dry_run:
            BlockCache(cache).clear()
        return EraseReport(
            **change_facts(catalog, "erase", latest, number, before=before, after=after, dry_run=dry_run),
            read_version=read.number,
            deleted=sum(erased.values()),
            already_deleted=sum(map(len, targets.values())) - sum(erased.values()),
            shards=erased,
            **expiring,
        )

    return catalog.reading(attempt)


def _check_tags(catalog: Catalog, latest: Version, *, drop_tags: bool) -> None:
    """Refuse to expire versions that have tags."""
    tags = latest.manifest.tags
    if tags and not drop_tags:
        name, number = min(tags.items())
        raise CommitConflictError(
            f"version {number} has the tag {name!r}, and erasing expires every earlier version",
            url=catalog.store.url,
            found=f"tags {', '.join(sorted(tags))}",
            advice="drop_tags=True drops these tags; or remove them first (`shardio tag`)",
        )


def _groups(
    catalog: Catalog, latest: Version, targets: Targets, read: Version
) -> tuple[list[Group], dict[str, int]]:
    """Return the shards to rewrite, and of each key how many live records it loses."""
    table = catalog.table(latest)
    advice = (
        "look the records up in the latest version, and erase them there; what only "
        "earlier versions hold goes when these expire: `shardio gc URL --expire N`"
    )
    numbers = numbers_of(catalog, latest, table, targets, read, advice=advice)
    adopted = [shard for shard, i in numbers.items() if table[i].adopted]
    if adopted:
        framed = all(table[numbers[shard]].framing is Framing.TFRECORD for shard in adopted)
        copied = (
            "`shardio compact URL --adopted` copies them into the dataset, where erasing works"
            if framed
            else "`shardio convert URL NEW` copies them into a dataset of its own, where erasing works"
        )
        raise StorageError(
            "the records are in third-party shards, which are never rewritten",
            url=catalog.store.url,
            shard=adopted[0].key,
            found=f"{len(adopted)} of {len(targets)} shards",
            advice=f"{copied}; the original files stay, and are yours to remove. Deleting without erasing "
            "hides the records",
        )
    groups, erased = [], {}
    for shard, i in sorted(numbers.items(), key=lambda item: item[1]):
        entry = table[i]
        gone = deleted_rows(catalog.store, entry, catalog.limits)
        live = np.setdiff1d(targets[shard], gone)
        erased[entry.key] = len(live)
        groups.append(
            Group(
                numbers=(i,),
                # The rank of a live row among the live ones is its position in the shard.
                leave_out=live - np.searchsorted(gone, live),
                layout=Layout(
                    compression=entry.compression,
                    block_bytes=block_bytes_of(entry),
                    shard_bytes=sys.maxsize,
                ),
            )
        )
    return groups, erased


def _find_expiring(catalog: Catalog, latest: Version, rewritten: Targets) -> dict[str, Any]:
    """Return what expires with all versions up to one of which some shards are rewritten, for the report."""
    already = set(latest.manifest.expiry.expired_versions)
    table = catalog.table(latest)
    here = zip(shards_of(latest, table), table, strict=True)
    staying = {shard: entry for shard, entry in here if shard not in rewritten}
    kept = {key for entry in staying.values() for key in (entry.key, entry.table_key)}
    old: dict[str, int] = {}
    external: set[str] = set()
    seen: set[str] = set()
    versions = {version.number: version for version in (latest, *catalog.between(1, latest.number - 1))}
    for version in versions.values():
        for ref in version.manifest.lists:
            if ref.key in seen:
                continue
            seen.add(ref.key)
            shards = catalog.find_shards(ref) if version.number in already else catalog.shards_of(ref)
            for entry, shard in zip(shards, shards_of(version, shards), strict=True) if shards else ():
                old[entry.table_key] = entry.table_bytes
                if not entry.adopted:
                    old[entry.key] = entry.stored_bytes
                elif shard not in staying:
                    external.add(f"{(shard.root or catalog.store.url).rstrip('/')}/{shard.key}")
    return {
        "expired_versions": tuple(sorted({*versions} - already)),
        "dropped_tags": dict(latest.manifest.tags),
        "pending_gc": _stored(catalog, {key: old[key] for key in old.keys() - kept - {""}}, kept),
        "external_copies": tuple(sorted(external)),
        "lost_for_good": {
            loss.entry.key: rows for loss in find_losses(catalog, versions) if (rows := loss.lost_rows[0])
        },
    }


def _stored(catalog: Catalog, old: Mapping[str, int], kept: Container[str]) -> dict[str, int]:
    """Return which objects are still there, with what lost attempts of the same sessions have stored."""
    store = catalog.store
    if not store.can_list:
        return dict(old)
    sessions = {name.session_id for key in old if (name := naming.DataKey.parse(key)) is not None}
    found = {}
    for info in (*store.list(naming.DATA), *store.list(naming.TABLES)):
        name = None if info.key.endswith(naming.INDEX_SUFFIX) else naming.DataKey.parse(info.key)
        if info.key in old or (name is not None and name.session_id in sessions and info.key not in kept):
            found[info.key] = info.size
    return found
