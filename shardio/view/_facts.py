"""Facts about a version from its metadata, and about records without a schema from a sample."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from shardio.codecs import infer_schema
from shardio.errors import ShardioError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from shardio import Version

_RECORDS = 100
_BYTES = 16 << 20


def version_facts(url: str, version: Version, latest: Version) -> dict[str, Any]:
    """Return the facts in the manifest of a version, without a read.

    Args:
        url: of the dataset.
        version: to describe.
        latest: the latest version, which has the tags and expired versions.
    """
    return {
        "kind": "dataset",
        "url": url,
        "latest_version": latest.number,
        **version.facts(),
        "tags": latest.tags,
        "expired_versions": latest.expired_versions,
    }


def log_facts(version: Version, latest: Version) -> dict[str, Any]:
    """Return the facts about one version in a list, with its tags and whether it has expired."""
    tags = [name for name, number in latest.tags.items() if number == version.number]
    return {**version.to_dict(), "tags": tags, "expired": version.number in latest.expired_versions}


def shard_facts(shards: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary of the columns of `version.shards()`."""
    return {
        "compression": sorted({*shards["compression"]}),
        "framing": sorted({*shards["framing"]}),
        "deleted_records": int(shards["deleted"].sum()),
        "adopted_shards": int(shards["adopted"].sum()),
    }


def seen_facts(payloads: Iterable[bytes]) -> dict[str, Any] | None:
    """Return the features of the first records, or None if they are not Examples.

    Raises:
        ShardioError: they can't be read.
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
