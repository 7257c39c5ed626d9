"""What suits what: the shards of a split hold records of one kind, and a schema reads them all."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from shardio.errors import FormatError, NotFoundError, ShardioError
from shardio.format import Framing
from shardio.metadata import Schema, ShardTable
from shardio.storage import connect
from shardio_indexer._infer import JSON_LINES, Inferred, check_reads, infer
from shardio_indexer._sniff import format_of_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardio.catalog import Version
    from shardio.metadata import ShardEntry
    from shardio.storage import Store
    from shardio_indexer._scan import ScanOptions
    from shardio_indexer._shard import Outcome
    from shardio_indexer._target import Target

__all__ = ["Settled", "settle_schema", "sort_out"]

_METADATA_BYTES = 1 << 20


class Settled(NamedTuple):
    """The schema of the new shards, what goes into the free metadata, and what deserves a word."""

    inferred: Inferred
    metadata: dict[str, Any]
    notes: list[str]


def sort_out(outcomes: Iterable[Outcome], known: Iterable[ShardEntry]) -> tuple[list[Outcome], list[Outcome]]:
    """Return the outcomes that can be committed, and those that cannot, each with its error.

    A split holds records of one kind: that of the shards it has, else that of most of the new ones.
    """
    kinds: dict[str, Counter[Framing]] = {}
    settled = {entry.split: entry.framing for entry in known}
    given = list(outcomes)
    for outcome in given:
        if outcome.entry is not None:
            kinds.setdefault(outcome.shard.split, Counter())[outcome.entry.framing] += 1
    for split, counts in kinds.items():
        settled.setdefault(split, counts.most_common(1)[0][0])
    good, bad = [], []
    for outcome in given:
        entry = outcome.entry
        if entry is None:
            bad.append(outcome)
        elif entry.framing is not settled[outcome.shard.split]:
            error = FormatError(
                f"split {outcome.shard.split!r} holds records of another kind",
                url=outcome.shard.url,
                expected=settled[outcome.shard.split].name,
                found=entry.framing.name,
                advice="give it a split of its own (--split), or a dataset of its own (--into)",
            )
            bad.append(replace(outcome, entry=None, error=error))
        else:
            good.append(outcome)
    return good, bad


def settle_schema(
    good: list[Outcome],
    wanted: Any,
    base: Version | None,
    target: Target,
    options: ScanOptions,
    data_options: Mapping[str, Any] | None,
) -> Settled:
    """Find the schema of the new shards.

    Raises:
        SchemaError: they do not fit the schema that the dataset has.
        ValueError, TypeError: what the caller gave is no schema.
    """
    entries = [outcome.entry for outcome in good if outcome.entry is not None]
    framings = {entry.framing for entry in entries}
    stores, table = _open(good, target, data_options)
    metadata, notes = _codewithgpu(good, stores, table)
    old = base.manifest if base is not None else None
    if not entries:
        return Settled(Inferred(None, None), metadata, notes)
    if old is not None and old.schema is not None:
        check_reads(old.schema, table, stores)
        return Settled(Inferred(None, None), metadata, notes)
    if wanted is False:
        return Settled(Inferred(None, None), metadata, notes)
    if wanted is not None:
        encoding = "bytes" if framings == {Framing.LINES} and not isinstance(wanted, Schema) else None
        schema = Schema.parse(wanted, encoding=encoding)
        check_reads(schema, table, stores)
        return Settled(Inferred(schema, None), metadata, notes)
    if framings == {Framing.LINES}:
        json_lines = options.format == "jsonl" or (
            options.format is None and all(format_of_name(entry.key) == "jsonl" for entry in entries)
        )
        return Settled(Inferred(JSON_LINES if json_lines else None, None), metadata, notes)
    if framings != {Framing.TFRECORD}:
        return Settled(Inferred(None, None), metadata, notes)
    inferred = infer(table, stores)
    if inferred.schema is None and int(table.rows.sum()):
        notes.append("the records are no tf.train.Examples that could be described: they are read as bytes")
    elif inferred.report is not None:
        total = int(table.rows.sum())
        notes.append(f"the schema was inferred from {inferred.report.records:,} of {total:,} records")
        notes += inferred.report.notes()
    return Settled(inferred, metadata, notes)


def _open(
    good: list[Outcome], target: Target, data_options: Mapping[str, Any] | None
) -> tuple[dict[int, Store], ShardTable]:
    """Return the stores of the data roots by number, and the new shards as a table with these numbers."""
    stores: dict[int, Store] = {0: target.store}
    numbers = {"": 0}
    entries = []
    for outcome in good:
        root = outcome.shard.root
        if root not in numbers:
            numbers[root] = len(numbers)
            given = data_options if "://" in root else None
            stores[numbers[root]] = connect(root, storage_options=given)
        if outcome.entry is not None:
            entries.append(replace(outcome.entry, root=numbers[root]))
    return stores, ShardTable.of(entries)


def _codewithgpu(
    good: list[Outcome], stores: Mapping[int, Store], table: ShardTable
) -> tuple[dict[str, Any], list[str]]:
    """Return codewithgpu's METADATA for the free metadata, and whether its count of entries is right."""
    folders: Counter[tuple[int, str]] = Counter()
    for number in range(len(table)):
        if int(table.framing[number]) == int(Framing.RAW):
            folder = table.key[number].rpartition("/")[0]
            folders[int(table.root[number]), folder] += int(table.rows[number])
    found: dict[str, Any] = {}
    notes = []
    for (root, folder), rows in folders.items():
        key = f"{folder}/METADATA" if folder else "METADATA"
        try:
            content = json.loads(stores[root].get(key, max_bytes=_METADATA_BYTES))
        except NotFoundError:
            continue
        except (ShardioError, ValueError) as error:
            notes.append(f"{stores[root].url_of(key)} cannot be read: {error}")
            continue
        found[folder or "."] = content
        entries = content.get("entries") if isinstance(content, dict) else None
        if isinstance(entries, int) and entries != rows:
            notes.append(f"{stores[root].url_of(key)} speaks of {entries} records, found {rows}")
    del good
    return ({"codewithgpu": found} if found else {}), notes
