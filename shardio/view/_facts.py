"""What metadata says of a version, and what the first records show where there is no schema."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from shardio.codecs import infer_schema
from shardio.errors import ShardioError
from shardio.format import Compression, Framing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardio.catalog import Version
    from shardio.metadata import Schema, ShardTable

_RECORDS = 100
_BYTES = 16 << 20


def version_facts(url: str, version: Version, latest: Version) -> dict[str, Any]:
    """Return what the manifest of a version says; nothing is read.

    Args:
        url: of the dataset.
        version: which is described.
        latest: the latest version, which knows tags and which versions expired.
    """
    manifest = version.manifest
    schema = manifest.schema
    return {
        "kind": "dataset",
        "url": url,
        "version": version.number,
        "latest_version": latest.number,
        "tags": dict(sorted(latest.manifest.tags.items())),
        "expired_versions": list(latest.manifest.expiry.expired_versions),
        "digest": version.digest,
        "dataset_uuid": manifest.dataset_uuid.hex(),
        "operation": manifest.operation,
        "created_ms": manifest.created_ms,
        "writer": manifest.writer,
        "splits": {
            split.name: {
                "records": split.rows,
                "shards": split.shards,
                "stored_bytes": split.stored_bytes,
                "decoded_bytes": split.decoded_bytes,
            }
            for split in manifest.splits
        },
        "roots": list(manifest.roots.values()),
        "metadata": dict(manifest.metadata),
        "encoding": None if schema is None else schema.encoding,
        "schema": None if schema is None else feature_facts(schema),
    }


def log_facts(version: Version, latest: Version) -> dict[str, Any]:
    """Return what a list of versions says of one, with its tags and whether it has expired."""
    tags = [name for name, number in latest.manifest.tags.items() if number == version.number]
    expired = version.number in latest.manifest.expiry.expired_versions
    return {**version.to_dict(), "tags": sorted(tags), "expired": expired}


def shard_list_facts(table: ShardTable) -> dict[str, Any]:
    """Return what the lists of shards say beyond the manifest."""
    return {
        "compression": _names(Compression, table.compression.tolist()),
        "framing": _names(Framing, table.framing.tolist()),
        "deleted_records": int((table.rows - table.live_rows).sum()),
        "adopted_shards": sum(
            bool(etag) or bool(root) for etag, root in zip(table.etag, table.root, strict=True)
        ),
    }


def _names(kind: Any, numbers: Iterable[int]) -> list[str]:
    return sorted({kind(number).name.lower() for number in numbers})


def feature_facts(schema: Schema) -> list[dict[str, Any]]:
    """Return what is known of each feature; the names of feature lists begin with `[] `."""
    return [
        {
            "name": f"{prefix}{name}",
            "type": feature.short,
            "optional": feature.optional,
            "classes": None if feature.classes is None else list(feature.classes),
            "description": feature.description,
            "unit": feature.unit,
            "stored_name": f"{prefix}{feature.stored_name or name}",
        }
        for prefix, group in zip(("", "[] "), schema.groups, strict=True)
        for name, feature in group.items()
    ]


def seen_facts(payloads: Iterable[bytes]) -> dict[str, Any] | None:
    """Return what the first records show, or None where they are not Examples.

    Raises:
        ShardioError: they cannot be read.
    """
    records = list(_first(iter(payloads)))
    try:
        schema, report = infer_schema(records)
    except (ShardioError, ValueError, TypeError):  # a TypeError: values of an adopted tar file or of lines
        return None
    lists = [(f"[] {name}", feature) for name, feature in report.feature_lists.items()]
    features = [*report.features.items(), *lists]
    if not features:
        return None
    return {
        "records": report.records,
        "encoding": schema.encoding,
        "features": [
            {
                "name": name,
                "type": feature.type,
                "missing": feature.missing,
                "kinds": dict(feature.kinds),
                "shortest": feature.shortest,
                "longest": feature.longest,
                "notes": list(feature.notes),
            }
            for name, feature in features
        ],
    }


def _first(records: Iterator[bytes]) -> Iterator[bytes]:
    room = _BYTES
    for record in itertools.islice(records, _RECORDS):
        room -= len(record)
        yield record
        if room < 0:
            return
