"""From the receipts of a session's tasks to the manifest of the next version.

An append keeps the lists of the version that it follows and adds one, merged with small ones at the end; an
overwrite drops them.  The manifest is built again after each lost race.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardio.catalog._catalog import Catalog
from shardio.catalog._commit import Base, publish
from shardio.catalog._lists import StoredLists
from shardio.catalog._schemas import merge_onto
from shardio.catalog._version import Version
from shardio.errors import CommitConflictError, SchemaError
from shardio.metadata import (
    Manifest,
    MergedSession,
    Receipt,
    Schema,
    ShardTable,
    SplitTotals,
    session_digest,
    usable_keys,
)

MODES = ("create", "append", "overwrite")


@dataclass
class _Merge:
    """Receipts on their way into a version; builds the manifest again after each lost race."""

    catalog: Catalog
    receipts: Sequence[Receipt]
    mode: str

    def __post_init__(self) -> None:
        self.base_version = min(receipt.base_version for receipt in self.receipts)
        self.table = ShardTable.concatenate([receipt.table for receipt in self.receipts])
        self.sha256 = session_digest((receipt.task, receipt.splits) for receipt in self.receipts)
        self.session = self.receipts[0].session
        self.written = _written(self.receipts, self.catalog.store.url, append=self.mode == "append")
        self.metadata = {key: value for receipt in self.receipts for key, value in receipt.metadata.items()}
        self.lists = StoredLists(self.catalog.store)
        self._races = 0

    def __call__(self, base: Version | None) -> Manifest | Version:
        merged = self.catalog.merged(base, self.session) if base else None
        if base is not None and merged is not None:
            if merged.sha256 == self.sha256:
                return base
            raise CommitConflictError(
                f"session {self.session!r} is already part of version {merged.version}, with other records",
                url=self.catalog.store.url,
                expected=f"SHA-256 {merged.sha256.hex()}",
                found=f"SHA-256 {self.sha256.hex()}",
                advice="a session's id names one write: choose a new one",
            )
        self._check_base(base)
        old = base.manifest if base else Manifest(dataset_uuid=uuid.uuid4().bytes)
        kept = old.carried
        if self.mode != "append":
            kept = replace(
                kept, metadata={}, roots={}, lists=(), splits=(), deletions=False, table=(),
                keys=(),
            )  # fmt: skip
        schemas, number = self._schemas(base if self.mode == "append" else None)
        rows = {name: total.rows for name, total in self.table.totals().items()}
        session = MergedSession(
            self.session, self.sha256, len(self.receipts), (base.number if base else 0) + 1, rows
        )
        session_lists, named = old.session_lists, old.named_sessions
        # After a lost race only its own list is added, which is stored once; the next commit merges.
        new = self.table.with_schema(number)
        lists = self.lists.extend(self.catalog, kept.lists, new, merge=self._races == 0)
        if self._races == 0:
            session_lists, named = self.lists.move_sessions(self.catalog, session_lists, named)
        self._races += 1
        metadata = dict(kept.metadata)
        if rows:  # of what is added, it is not known
            metadata.pop("shuffled", None)
        metadata |= self.metadata
        return replace(
            kept,
            operation=self.mode,
            sessions=(*named, session),
            session_lists=session_lists,
            schemas=schemas,
            metadata=metadata,
            lists=lists,
            splits=_with_totals(kept, self.table),
            keys=usable_keys(kept.keys, old.schemas, schemas),
        )

    def _check_base(self, base: Version | None) -> None:
        url = self.catalog.store.url
        if base is not None and self.session in base.manifest.rolled_back:
            raise CommitConflictError(
                f"session {self.session!r} was merged, and a restore of an earlier version rolled it back",
                url=url,
                advice="write its records under a new session, or restore a version that holds them "
                "(`shardio log`, `shardio restore`)",
            )
        if base is not None and base.manifest.expiry.abandons(self.session):
            raise CommitConflictError(
                f"session {self.session!r} was abandoned by garbage collection",
                url=url,
                advice="write its records again under a new session",
            )
        if self.mode == "create" and base is not None:
            raise CommitConflictError(
                "there is a dataset already",
                url=url,
                found=f"version {base.number}",
                advice='use mode="append" or "overwrite"',
            )
        if self.mode == "overwrite" and (base.number if base else 0) != self.base_version:
            raise CommitConflictError(
                "another writer committed while this overwrite was being written",
                url=url,
                expected=f"version {self.base_version} to be the latest",
                found=f"version {base.number if base else 0}",
                advice="look at what came in between (`shardio log`), then write again",
            )

    def _schemas(self, kept: Version | None) -> tuple[tuple[Schema, ...], int]:
        """Return the schemas of the new version, and the number of the receipts' one (0: none).

        Args:
            kept: the version that the new one adds to, or None.
        """
        old = kept.manifest.schemas if kept is not None else ()
        url = self.catalog.store.url
        if not self.written:
            if old and len(self.table):
                raise SchemaError("the dataset has a schema and the new records have none", url=url)
            return old, 0
        if kept is not None and not old and any(total.rows for total in kept.manifest.splits):
            raise SchemaError("the dataset has no schema and the new records have one", url=url)
        try:
            schema = self._merged_schema(kept) if old and kept is not None else self.written[0][1]
            # The records are read through what the dataset has by then.
            for _, each in self.written:
                schema.check_reads(each)
            schemas = schema.append_to(old)
        except SchemaError as error:
            raise error.located(url=url) from error
        return schemas, len(schemas)

    def _merged_schema(self, kept: Version) -> Schema:
        """Return the dataset's newest schema with what those of the records changed since they were begun."""
        newest = merged = kept.manifest.schemas[-1]
        for base, schema in self.written:
            if len(self.written) == 1 and base == kept.number:
                schema.completed(newest)
                return schema
            began = [*self.catalog.between(base, base)] if base else []
            try:
                merged = merge_onto(merged, began[0].manifest.schema if began else None, schema)
            except SchemaError:
                # Above all, a number that both gave to a class.
                schema.completed(newest)
                raise
        return merged


def _written(receipts: Sequence[Receipt], url: str, *, append: bool) -> tuple[tuple[int, Schema], ...]:
    """Return the schemas of receipts, each with the version that the dataset had when it was taken up.

    Of an append there are several where another process changed the dataset's between its first tasks and
    others.
    """
    begun: dict[int, list[Receipt]] = {}
    for receipt in receipts:
        begun.setdefault(receipt.base_version if append else 0, []).append(receipt)
    found: dict[Schema | None, int] = {}
    for base in sorted(begun):
        found.setdefault(_one_schema(begun[base], url), base)
    if None in found and len(found) > 1:
        _one_schema(receipts, url)
    return tuple((base, schema) for schema, base in found.items() if schema is not None)


def _one_schema(receipts: Sequence[Receipt], url: str) -> Schema | None:
    """Return the schema of all receipts; of several that differ in words alone, the one with most classes."""
    schema = receipts[0].schema
    for receipt in receipts:
        other = receipt.schema
        if other == schema:
            continue
        # A task that began later may have found more classes in the dataset.
        if schema is not None and other is not None:
            if other.differs_in_annotations(schema):
                schema = other
                continue
            if schema.differs_in_annotations(other):
                continue
        raise SchemaError(
            f"task {receipt.task} was written with another schema than task {receipts[0].task}",
            url=url,
            expected=schema,
            found=receipt.schema,
            advice="write all tasks again under a new session, with one schema=",
        )
    return schema


def _with_totals(kept: Manifest, table: ShardTable) -> tuple[SplitTotals, ...]:
    totals = {total.name: total for total in kept.splits}
    for name, total in table.totals().items():
        before = totals.get(name)
        totals[name] = total if before is None else before + total
    return tuple(totals[name] for name in sorted(totals))


def commit_receipts(catalog: Catalog, receipts: Sequence[Receipt], *, mode: str) -> Version:
    """Make the shards of complete receipts, one per task, a new version.

    Args:
        catalog: of the dataset.
        receipts: of one session, complete, one per task, in order of their tasks.
        mode: "create", "append" or "overwrite".

    Returns:
        The new version; or the latest one, where the session with the same content was merged before.

    Raises:
        CommitConflictError, CommitOutcomeUnknownError, SchemaError: see the classes.
    """
    merge = _Merge(catalog, receipts, mode)
    bases = {Base(each.base_version, each.base_sha256) for each in receipts} if mode != "create" else ()
    return publish(catalog, merge, bases=bases, keys=merge.table.key, lists=merge.lists)
