"""A lost latest manifest, made again of what is left: earlier versions, receipts, lists and indexes.

Promises: what an earlier version holds is certain; what was stored and is in no version that can be read
is not, because nothing but the manifest says whether it was committed.  It is named, session by session, and
taken only where the caller says so.  What was given up, dropped or never finished is never taken, where
that can be told: of a job of many tasks whose last ones left nothing, what is there looks whole.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from shardio.catalog import Base, Catalog, StoredLists, Version, complete_tasks, find_safe_work, publish
from shardio.errors import CommitConflictError, FormatError, SchemaError, ShardioError
from shardio.lifecycle._repair_metadata import Metadata, entries_of
from shardio.metadata import (
    Manifest,
    MergedSession,
    Receipt,
    Schema,
    ShardEntry,
    ShardTable,
    naming,
    parse_list,
    parse_sessions,
    session_digest,
    usable_keys,
)
from shardio.storage import read_intact


@dataclass
class _Session:
    """A session that is in no version that can be read."""

    name: str
    entries: list[ShardEntry]
    receipts: list[Receipt] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(entry.live_rows for entry in self.entries)


@dataclass
class Remains:
    """What is left where the latest manifest is gone.

    Attributes:
        base: the last version that can be read, or None.
        sessions: those that may have been committed since, in the order of their names.
        deletions: shards of `base` of which a list that no version names has more rows deleted, by key.
        deleted: how many rows these are.
        notes: what was found and is not taken, in words.
    """

    base: Version | None
    sessions: list[_Session] = field(default_factory=list)
    deletions: Mapping[str, ShardEntry] = field(default_factory=dict)
    deleted: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def uncertain(self) -> dict[str, int]:
        """Records that may or may not belong to the dataset, by session."""
        found = {f"session {each.name}": each.rows for each in self.sessions}
        if self.deletions and self.base is not None:
            found["deleted since"] = self.deleted
        return found


def find_remains(catalog: Catalog, found: Metadata) -> Remains:
    """Look through what is stored for what may have been committed after the last readable version."""
    store = catalog.store
    number = max(found.versions, default=0)
    base = found.versions.get(number)
    out = Remains(base)
    named, merged, abandoned = _known(catalog, found)
    by_session: dict[str, dict[str, naming.DataKey]] = {}
    for info in store.list(naming.DATA):
        parts = naming.DataKey.parse(info.key)
        if parts is not None and not info.key.endswith(naming.INDEX_SUFFIX) and info.key not in named:
            by_session.setdefault(parts.session, {})[info.key] = parts
    listed = _listed_entries(catalog, found)
    gap = len(found.versions) < number  # a version before may hold what one after it took out again
    receipts = {
        key.session for info in store.list(naming.SESSIONS) if (key := naming.ReceiptKey.parse(info.key))
    }
    number_of_schema = len(base.manifest.schemas) if base is not None else 0
    alone = base is None and len(by_session) == 1
    for name, keys in sorted(by_session.items()):
        if name in merged or name in abandoned:
            continue  # what lost attempts of a merged session left, or what was given up
        shards = f"its {len(keys)} shards are left alone"
        if naming.is_rewriting_session(name):
            why = f"holds records of other shards, rewritten: {shards}; where records were erased, "
            why += "erase them again"
        elif gap and naming.is_random_session(name):
            why = "may be part of a lost earlier version, so it is left alone"
        else:
            made = _of_receipts if name in receipts else _of_indexes
            session = made(catalog, name, keys, number_of_schema)
            # A list is stored once the session was finished.
            if session is None or not (
                session.receipts or all(each.key in listed for each in session.entries)
            ):
                why = f"was not finished, or was written more than once: {shards}"
            elif not alone and any(each.mode == "overwrite" for each in session.receipts):
                why = "replaces everything before it, so it is left alone"
            else:
                entries = session.entries
                session.entries = [
                    replace(listed.get(each.key, each), schema=each.schema) for each in entries
                ]
                out.sessions.append(session)
                continue
        out.notes.append(f"session {name} {why}")
    if base is not None:
        changed = [
            (entry.live_rows, listed[entry.key])
            for entry in catalog.table(base)
            if entry.key in listed and listed[entry.key].live_rows < entry.live_rows
        ]
        out.deletions = {entry.key: entry for _, entry in changed}
        out.deleted = sum(live - entry.live_rows for live, entry in changed)
    if base is None and any(not each.receipts for each in out.sessions):
        out.notes.append("no schema is left of sessions without receipts: their records are read as bytes")
    return out


def _known(catalog: Catalog, found: Metadata) -> tuple[set[str], set[str], set[str]]:
    """Return the keys that versions name or have doomed, the sessions they merged, and those they gave up."""
    keys: set[str] = set()
    merged: set[str] = set()
    abandoned: set[str] = set()
    for version in found.versions.values():
        manifest = version.manifest
        keys |= set(manifest.expiry.doomed_keys)
        merged |= {session.session for session in manifest.sessions}
        abandoned |= {*manifest.expiry.abandoned_sessions, *manifest.rolled_back}
        for ref in manifest.lists:
            try:
                table = catalog.find_shards(ref)
            except FormatError:
                continue
            keys |= set(table.key) if table is not None else set()
        for ref in manifest.session_lists:
            merged |= set(catalog.sessions_of(ref))
    return keys, merged, abandoned


def _listed(catalog: Catalog, key: str) -> ShardTable:
    """Return the shards of a list; none of a list of sessions."""
    data = catalog.store.get(key, max_bytes=catalog.limits.manifest)
    try:
        return parse_list(data)[0]
    except FormatError:
        parse_sessions(data)
        return ShardTable.from_entries([])


def _listed_entries(catalog: Catalog, found: Metadata) -> dict[str, ShardEntry]:
    """Return own shards of lists that no version names, by key: as the one with the most deleted rows."""
    named = {ref.key for version in found.versions.values() for ref in version.manifest.lists}
    out: dict[str, ShardEntry] = {}
    for info in catalog.store.list(naming.LISTS):
        if not naming.is_list_key(info.key) or info.key in named:
            continue
        try:
            table = read_intact(partial(_listed, catalog, info.key))
        except (ShardioError, ValueError):
            continue
        for entry in table:
            known = out.get(entry.key)
            if not entry.adopted and (known is None or entry.live_rows < known.live_rows):
                out[entry.key] = replace(entry.without_table(), schema=0)
    return out


def _of_receipts(
    catalog: Catalog, name: str, keys: Mapping[str, naming.DataKey], schema: int
) -> _Session | None:
    """Return a session of which every task that left anything has a complete receipt."""
    tasks = complete_tasks(catalog, name)
    begun = {key.task for key in keys.values()}
    if not tasks or tasks | begun != set(range(len(tasks))):
        return None
    receipts = []
    for task in sorted(tasks):
        work = find_safe_work(catalog, name, task)
        if work is None:
            return None
        receipts.append(work.receipt)
    if any(catalog.store.head(key) is None for receipt in receipts for key in receipt.table.key):
        return None
    entries = [replace(entry, schema=schema) for receipt in receipts for entry in receipt.table]
    return _Session(name, entries, receipts)


def _of_indexes(
    catalog: Catalog, name: str, keys: Mapping[str, naming.DataKey], schema: int
) -> _Session | None:
    """Return a session without receipts, of which each task was written by one attempt without a gap."""
    entries = entries_of(catalog.store, keys, schema)
    if len(entries) != len(keys):
        return None
    tasks: dict[int, list[naming.DataKey]] = {}
    for key in keys.values():
        tasks.setdefault(key.task, []).append(key)
    for parts in tasks.values():
        if len({key.attempt for key in parts}) > 1:
            return None
        if sorted(key.sequence for key in parts) != list(range(len(parts))):
            return None
    return _Session(name, entries)


class _Unhinted(Catalog):
    """The versions under a root, whatever the hint says: its version is the one that is gone."""

    def latest(self) -> Version | None:
        """Return the highest version there is."""
        return self._highest(self.hinted())


def commit_remains(catalog: Catalog, remains: Remains, *, take: bool) -> Version:
    """Commit a version of what is left; with `take`, of what is uncertain, too.

    Raises:
        CommitConflictError: another repair was faster.
        SchemaError: the schemas of what is left do not fit each other.
    """
    base = remains.base
    lists = StoredLists(catalog.store)
    unhinted = _Unhinted(catalog.store, limits=catalog.limits)
    sessions = remains.sessions if take else []

    def build(now: Version | None) -> Manifest:
        if (now.sha256 if now else b"") != (base.sha256 if base else b""):
            raise CommitConflictError(
                "another repair made a manifest meanwhile", url=catalog.store.url, advice="run it again"
            )
        old = now.manifest if now is not None else _first(sessions)
        schemas = old.schemas
        entries: list[ShardEntry] = []
        bytes_alone = now is not None and not schemas
        for session in sessions:
            schemas, number = _add_schema(schemas, session, catalog.store.url, bytes_alone)
            bytes_alone = bytes_alone or bool(session.receipts and not schemas)
            entries += [replace(entry, schema=number) for entry in session.entries]
        table = ShardTable.from_entries(entries)
        known = ShardTable.from_entries([]) if now is None else catalog.table(now)
        changed = remains.deletions if take else {}
        if changed:
            known = ShardTable.from_entries(
                [each.with_deletions_of(changed.get(each.key, each)) for each in known]
            )
        whole = ShardTable.concatenate([known, table])
        if now is None or changed:
            refs = lists.extend(catalog, (), whole, merge=False)
        else:
            refs = lists.extend(catalog, old.lists, table, merge=False) if entries else old.lists
        version = (now.number if now else 0) + 1
        recovered = tuple(_merged(session, version) for session in sessions if session.receipts)
        return replace(
            old.carried,
            operation="repair",
            sessions=(*old.named_sessions, *recovered),
            schemas=schemas,
            lists=refs,
            splits=tuple(whole.totals().values()),
            deletions=whole.holds("deletion_key"),
            keys=usable_keys(old.keys, old.schemas, schemas),
        )

    keys = [entry.key for session in sessions for entry in session.entries]
    return publish(unhinted, build, bases=[Base.of(base)], keys=keys, lists=lists)


def _first(sessions: list[_Session]) -> Manifest:
    """Return the manifest of no version yet, with what the receipts say of the dataset."""
    return Manifest(
        dataset_uuid=uuid.uuid4().bytes,
        metadata={
            k: v for session in sessions for each in session.receipts for k, v in each.metadata.items()
        },
    )


def _merged(session: _Session, version: int) -> MergedSession:
    rows = {name: total.rows for name, total in ShardTable.from_entries(session.entries).totals().items()}
    digest = session_digest((receipt.task, receipt.splits) for receipt in session.receipts)
    return MergedSession(session.name, digest, len(session.receipts), version, rows)


def _add_schema(
    schemas: tuple[Schema, ...],
    session: _Session,
    url: str,
    bytes_alone: bool,  # noqa: FBT001 - one of two
) -> tuple[tuple[Schema, ...], int]:
    """Return the schemas of the new version, and the number of a session's.

    `bytes_alone` says that what is there already was written without a schema.
    """
    if not session.receipts:
        return schemas, len(schemas)
    schema = session.receipts[0].schema
    if schema in schemas:
        return schemas, schemas.index(schema) + 1
    if bool(schemas) if schema is None else bytes_alone:
        has, lacks = ("no schema", "one") if schema is not None else ("a schema", "none")
        what = f"the dataset has {has} and session {session.name} has {lacks}"
        raise SchemaError(what, url=url, advice='leave it with uncertain="leave"')
    if schema is None:
        return schemas, 0
    for each in schemas:
        schema.check_reads(each)
    return (*schemas, schema), len(schemas) + 1
