"""The commit of an adoption: an append of shards that others wrote; what was committed meanwhile stays.

The manifest is built again after each lost race: what another adoption has committed meanwhile is not added a
second time.
"""

from __future__ import annotations

import uuid
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from shardio.catalog import Base, Catalog, StoredLists, Version, publish
from shardio.errors import SchemaError
from shardio.metadata import Manifest, Schema, ShardEntry, ShardTable, usable_keys
from shardio.sources import SplitUrl


class RootedEntry(NamedTuple):
    """A shard of the dataset, there or to come: URL of its root ("" for the dataset's own), and its entry."""

    root: str
    entry: ShardEntry


def known_shards(catalog: Catalog, base: Version) -> dict[tuple[str, str], ShardEntry]:
    """Return the shards of a version by root URL and key."""
    roots = {0: "", **base.manifest.roots}
    return {(roots[entry.root], entry.key): entry for entry in catalog.table(base)}


def known_as(
    place: SplitUrl, roots: Mapping[str, SplitUrl], known: Container[tuple[str, str]]
) -> tuple[str, str] | None:
    """Return root and key by which a shard is known, whatever folder it was found below.

    Args:
        place: of the shard.
        roots: by URL, "" for the dataset's own.
        known: shards, by root URL and key.
    """
    for root, folder in roots.items():
        key = place.below(folder)
        if key is not None and (root, key) in known:
            return root, key
    return None


@dataclass(frozen=True, kw_only=True)
class Changeset:
    """What a commit does to a dataset.

    Attributes:
        additions: in order; those that are part of it already stay as they are.
        schema: of the dataset; used where it has none and no records yet, and where `replaces` says so.
        replaces: the schema takes the place of the one that the dataset has.
        metadata: added to the free metadata.
        update: shards whose index is another one now replace the old ones, in their places.
        dropped: shards that the dataset will no longer hold, by root URL and key.
    """

    additions: Sequence[RootedEntry]
    schema: Schema | None = None
    replaces: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    update: bool = False
    dropped: frozenset[tuple[str, str]] = frozenset()


def commit_shards(catalog: Catalog, change: Changeset, *, base: Version | None) -> Version:
    """Make a change to the dataset, as one new version.

    Args:
        catalog: of the dataset.
        change: what is to be done.
        base: version that the caller started from; None for no dataset.

    Raises:
        CommitConflictError, CommitOutcomeUnknownError, SchemaError: see the classes.
    """
    builder = _Builder(catalog, change)
    keys = [addition.entry.key for addition in change.additions if not addition.root]
    # An index may have been there already, and be doomed by now.
    keys += [addition.entry.usual_index_key for addition in change.additions]
    return publish(catalog, builder, bases=[Base.of(base)], keys=keys, lists=builder.lists)


def keeps_deletions(old: ShardEntry, new: ShardEntry) -> bool:
    """Tell whether the rows deleted of a shard are the same ones in what was indexed again."""
    return (old.crc32c, old.stored_bytes, old.framing, old.rows) == (
        new.crc32c,
        new.stored_bytes,
        new.framing,
        new.rows,
    )


def _index_of(entry: ShardEntry) -> tuple[str, bytes]:
    return entry.usual_index_key, entry.index_head_sha256


class _Builder:
    """Builds the manifest that follows a version; lists of shards are stored once."""

    def __init__(self, catalog: Catalog, change: Changeset) -> None:
        self._catalog = catalog
        self._change = change
        self.lists = StoredLists(catalog.store)

    def __call__(self, base: Version | None) -> Manifest | Version:
        old = base.manifest if base is not None else Manifest(dataset_uuid=uuid.uuid4().bytes)
        table = self._catalog.table(base) if base is not None else ShardTable.from_entries([])
        roots = dict(old.roots)
        numbers = {"": 0, **{url: number for number, url in roots.items()}}
        for addition in self._change.additions:
            if addition.root not in numbers:
                numbers[addition.root] = max(numbers.values()) + 1
                roots[numbers[addition.root]] = addition.root
        schemas, schema = self._schemas(old, table)
        replaced = base is not None and schemas != old.schemas
        urls = {number: url for url, number in numbers.items()}
        places = {
            (urls[number], key): i
            for i, (number, key) in enumerate(zip(table.root.tolist(), table.key, strict=True))
        }
        folders = {url: SplitUrl.parse(url or self._catalog.store.url) for url in numbers}
        fresh, changed = [], {}
        for addition in self._change.additions:
            entry = replace(addition.entry, root=numbers[addition.root], schema=schema)
            same = known_as(folders[addition.root].join_key(entry.key), folders, places)
            place = None if same is None else places[same]
            if place is None:
                fresh.append(entry)
            elif self._change.update and _index_of(table[place]) != _index_of(entry):
                entry = replace(entry, split=table.split[place])
                changed[place] = (
                    entry.with_deletions_of(table[place]) if keeps_deletions(table[place], entry) else entry
                )
        dropped = {places.get(shard) for shard in self._change.dropped} - {None}
        if base is not None and not (fresh or changed or dropped or replaced):
            return base
        lists = old.lists
        if changed or dropped or replaced:
            kept = [changed.get(i, entry) for i, entry in enumerate(table) if i not in dropped]
            if replaced:
                kept = [replace(entry, schema=schema) if entry.adopted else entry for entry in kept]
            table = ShardTable.from_entries(kept)
            lists = self.lists.extend(self._catalog, (), table, merge=False)
        metadata = dict(old.metadata)
        if fresh or changed:  # of what is added, it is not known
            metadata.pop("shuffled", None)
        added = ShardTable.from_entries(fresh)
        whole = ShardTable.concatenate([table, added])
        named = set(whole.root.tolist())
        return replace(
            old.carried,
            operation="adopt",
            sessions=old.named_sessions,
            schemas=schemas,
            metadata={**metadata, **self._change.metadata},
            roots={number: url for number, url in roots.items() if number in named},
            lists=self.lists.extend(self._catalog, lists, added, merge=not changed),
            splits=tuple(whole.totals().values()),
            deletions=any(whole.deletion_key),
            keys=usable_keys(old.keys, old.schemas, schemas),
        )

    def _schemas(self, old: Manifest, table: ShardTable) -> tuple[tuple[Schema, ...], int]:
        """Return the schemas of the new version, and the number of the new shards' one (0: none)."""
        wanted = self._change.schema
        if self._change.replaces:
            if wanted is None or wanted == old.schema:
                return (old.schemas, len(old.schemas)) if wanted is not None else ((), 0)
            # What shardio wrote keeps naming the schema that it was written with.
            own = any(not entry.adopted for entry in table)
            schemas = (*old.schemas, wanted) if own else (wanted,)
            return schemas, len(schemas)
        if old.schemas:
            kinds = {int(addition.entry.framing) for addition in self._change.additions}
            if len(table) and kinds - set(np.unique(table.framing).tolist()):
                raise SchemaError(
                    "the dataset has a schema, and the new shards hold records of another kind",
                    url=self._catalog.store.url,
                    advice="adopt them as a dataset of their own, with into=",
                )
            return old.schemas, len(old.schemas)
        if wanted is None or any(total.rows for total in old.splits):
            return (), 0
        return (wanted,), 1
