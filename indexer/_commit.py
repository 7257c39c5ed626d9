"""The commit of an adoption: an append that names shards which others wrote, and never drops anybody's.

The manifest is built again after each lost race: what another adoption has committed meanwhile is not added a
second time.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.catalog import Catalog, StoredLists, Version, publish
from shardio.errors import SchemaError
from shardio.metadata import (
    ListRef,
    Manifest,
    ShardTable,
    is_random_session,
    seal_list,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardio.metadata import Schema, ShardEntry

__all__ = ["Addition", "commit_shards", "known_shards"]

_LIST_SHARDS = 50_000


@dataclass(frozen=True)
class Addition:
    """One shard to be added: its root's URL ("" for the dataset's own), and what a list says of it."""

    root: str
    entry: ShardEntry


def known_shards(catalog: Catalog, base: Version | None) -> dict[tuple[str, str], ShardEntry]:
    """Return the shards of a version by root URL and key."""
    if base is None:
        return {}
    roots = {0: "", **base.manifest.roots}
    return {(roots[entry.root], entry.key): entry for entry in catalog.table(base)}


def commit_shards(
    catalog: Catalog,
    additions: Sequence[Addition],
    *,
    schema: Schema | None,
    metadata: Mapping[str, Any] | None = None,
    update: bool = False,
    seen: int = 0,
) -> Version:
    """Make shards part of the dataset.

    Args:
        catalog: of the dataset.
        additions: in order; those that are part of it already stay as they are.
        schema: of a dataset that has none and holds no records yet.
        metadata: added to the free metadata.
        update: shards whose index is another one now replace the old ones, in their places.
        seen: version that the caller started from.

    Raises:
        CommitConflictError, CommitOutcomeUnknownError, SchemaError: see the classes.
    """
    builder = _Builder(catalog, list(additions), schema, dict(metadata or {}), update=update)
    keys = [addition.entry.key for addition in additions if not addition.root]
    # An index may have been there already, and be doomed by now.
    keys += [addition.entry.usual_index_key for addition in additions]
    return publish(catalog, builder, seen=seen, keys=keys, lists=builder.lists)


class _Builder:
    """Builds the manifest that follows a version; lists of shards are stored once."""

    def __init__(
        self,
        catalog: Catalog,
        additions: list[Addition],
        schema: Schema | None,
        metadata: dict[str, Any],
        *,
        update: bool,
    ) -> None:
        self._catalog = catalog
        self._additions = additions
        self._schema = schema
        self._metadata = metadata
        self._update = update
        self.lists = StoredLists(catalog.store)

    def __call__(self, base: Version | None) -> Manifest | Version:
        old = base.manifest if base is not None else None
        table = self._catalog.table(base) if base is not None else ShardTable.of([])
        roots = dict(old.roots) if old is not None else {}
        numbers = {"": 0, **{url: number for number, url in roots.items()}}
        for addition in self._additions:
            if addition.root not in numbers:
                numbers[addition.root] = max(numbers.values()) + 1
                roots[numbers[addition.root]] = addition.root
        schemas, schema = self._schemas(old, table)
        places = {place: i for i, place in enumerate(zip(table.root.tolist(), table.key, strict=True))}
        fresh, changed = [], {}
        for addition in self._additions:
            entry = replace(addition.entry, root=numbers[addition.root], schema=schema)
            place = places.get((entry.root, entry.key))
            if place is None:
                fresh.append(entry)
            elif self._update and table[place].index_head_sha256 != entry.index_head_sha256:
                changed[place] = replace(entry, split=table.split[place])
        if base is not None and not fresh and not changed:
            return base
        lists = old.lists if old is not None else ()
        if changed:
            table = ShardTable.of([changed.get(i, entry) for i, entry in enumerate(table)])
            lists = self._lists(table)
        added = ShardTable.of(fresh)
        whole = ShardTable.concatenate([table, added])
        return Manifest(
            dataset_uuid=old.dataset_uuid if old is not None else uuid.uuid4().bytes,
            version=0,
            parent_version=0,
            parent_sha256=b"",
            write_id=b"",
            operation="adopt",
            sessions=tuple(i for i in (old.sessions if old else ()) if not is_random_session(i.session)),
            schemas=schemas,
            metadata={**(old.metadata if old is not None else {}), **self._metadata},
            roots={number: url for number, url in roots.items() if number in set(whole.root.tolist())},
            lists=(*lists, *self._lists(added)),
            splits=tuple(total for _, total in sorted(whole.totals().items())),
            expiry=replace(old.expiry, doomed_keys=()) if old is not None else Manifest.expiry,
            deletions=any(whole.deletion_key),
        )

    def _schemas(self, old: Manifest | None, table: ShardTable) -> tuple[tuple[Schema, ...], int]:
        """Return the schemas of the new version, and the number of the new shards' one (0: none)."""
        if old is not None and old.schemas:
            kinds = {int(addition.entry.framing) for addition in self._additions}
            if len(table) and kinds - set(np.unique(table.framing).tolist()):
                raise SchemaError(
                    "the dataset has a schema, and the new shards hold records of another kind",
                    url=self._catalog.store.url,
                    advice="adopt them as a dataset of their own, with --into",
                )
            return old.schemas, len(old.schemas)
        if self._schema is None or (old is not None and any(total.rows for total in old.splits)):
            return (), 0
        return (self._schema,), 1

    def _lists(self, table: ShardTable) -> tuple[ListRef, ...]:
        """Store lists of shards, once for each content."""
        refs = []
        for first in range(0, len(table), _LIST_SHARDS):
            part = table.take(np.arange(first, min(first + _LIST_SHARDS, len(table))))
            refs.append(self.lists.put(*seal_list(part), len(part)))
        return tuple(refs)
