"""What records that nobody described look like: the schema that the first of them show."""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING, Any

from shardio.errors import ShardioError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["seen_facts"]

_RECORDS = 100
_BYTES = 16 << 20


def seen_facts(
    url: str,
    options: Mapping[str, Any] | None,
    engine: str | None,
    *,
    shard: bool,
    version: int | None = None,
) -> dict[str, Any] | None:
    """Return what the first records show, or None where they are no Examples, damaged, or not to be had."""
    from shardio.codecs import infer_schema
    from shardio.reader import open as open_dataset
    from shardio.reader import open_shard

    try:
        with warnings.catch_warnings():
            # That a shard has no index is said beside this.
            warnings.simplefilter("ignore", UserWarning)
            if shard:
                records: Any = open_shard(url, storage_options=options, engine=engine)
            else:
                records = open_dataset(
                    url, "all", version=version, decode=False, storage_options=options, engine=engine
                )
            schema, report = infer_schema(_first(iter(records)))
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
