"""The schema of a dataset changed without touching a record: what readers see from the next version on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shardio.arguments import checked_options
from shardio.catalog import Catalog, Version
from shardio.errors import SchemaError
from shardio.lifecycle._report import Change, ChangeReport, make_change, records_of
from shardio.metadata import Schema, usable_keys
from shardio.storage import Address, Place


@dataclass(frozen=True)
class SchemaReport(ChangeReport):
    """What a change of the schema did, or would do.

    Attributes:
        schema: the schema now.
        changes: what readers see differently, a line each.
    """

    schema: Schema | None = None
    changes: list[str] = field(default_factory=list)


@checked_options
def set_schema(
    url: Place,
    features: Mapping[str, Any] | None = None,
    *,
    rename: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> SchemaReport:
    """Change how a dataset's records are read, in a new version; no shard is touched, adopted ones neither.

    Older records are read through the new schema. What it may be is what an append may bring: see
    docs/schema.md, "Change a schema".

    Args:
        url: of the dataset; or a `shardio.Address`, or a reader.
        features: those that change or are new, as in a schema. A new feature may be missing, with a default
            or without. Defaults, descriptions and names of classes may change. What a feature does not say
            stays as it is: classes, description, unit, stored name. None in place of a feature takes it
            away from readers. Of sequence examples `{"context": {...}, "feature_lists": {...}}`.
        rename: new names of features, by the old ones, done before the changes; records keep theirs. Where a
            feature of the context and a feature list of sequence examples have one name, the old name is
            `context/NAME` or `feature_lists/NAME`.
        dry_run: change nothing, only say what would change.

    Returns:
        What has changed. Without a change there is no new version.

    Raises:
        SchemaError: older records could not be read any more, a number would mean another class, or the
            dataset has no schema; names the feature. Nothing was changed.
        ValueError, TypeError: no feature, or there is none of that name.
        NotFoundError: there is no dataset.
        CommitOutcomeUnknownError, StorageError: see `shardio.commit`.

    Examples:
        >>> import shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/birds"
        >>> with shardio.DatasetWriter(url, schema={"name": "text", "class": "int64"}) as out:
        ...     out.write({"name": "wren", "class": 1})
        >>> label = shardio.Feature("int64", classes=["heron", "passerine"], default=-1)
        >>> report = shardio.set_schema(url, {"order": label}, rename={"class": "order"})
        >>> shardio.open(url).schema["order"].classes
        ('heron', 'passerine')
    """
    if not features and not rename:
        raise ValueError("give features= or rename=: there is nothing to change")
    catalog = Catalog(Address.of(url).connect())

    def plan(base: Version) -> Change:
        old = base.manifest
        try:
            schemas = _changed(old.schemas, features or {}, rename or {})
        except SchemaError as error:
            raise error.located(url=catalog.store.url) from error.__cause__
        new = replace(old, schemas=schemas, keys=usable_keys(old.keys, old.schemas, schemas))
        now, before = schemas[-1], old.schemas[-1]
        changes = list(now.changes_since(before))
        lost = [each.feature for each in old.keys if each not in new.keys]
        changes += [_without_keys(stored, now, before) for stored in lost]
        facts = {"schema": now, "changes": changes}
        return Change(base, lambda _: None if schemas == old.schemas else new, records_of(old), facts)

    return SchemaReport(**make_change(catalog, plan, operation="set schema", dry_run=dry_run))


def _without_keys(stored: str, now: Schema, before: Schema) -> str:
    """Return what becomes of lookups by a feature, known by its name in records, whose index is gone."""
    names, old = (
        {feature.stored_name or name: name for name, feature in schema.items()} for schema in (now, before)
    )
    if stored not in names:
        return f"{old[stored]}: its index of keys is gone, too"
    return f"{names[stored]}: its index of keys held another default and is gone; build_keys makes it again"


def _changed(
    schemas: tuple[Schema, ...], features: Mapping[str, Any], rename: Mapping[str, str]
) -> tuple[Schema, ...]:
    """Return the schemas of the dataset after the change."""
    if not schemas:
        raise SchemaError(
            "the dataset has no schema: its records are bytes",
            advice="give adopted shards one with `shardio adopt URL --schema`, or rewrite the records",
        )
    newest = schemas[-1].renamed(rename)
    return newest.changed(features).completed(newest).append_to(schemas)
