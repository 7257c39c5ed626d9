"""Commands to find records."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from shardio.cli._command import Given, command, report
from shardio.cli._console import CLEAN, Console
from shardio.cli._options import Takes
from shardio.cli._values import parse_key
from shardio.display import count, plural


@command(
    Takes("shardio:build_table"),
    examples={
        "shardio table s3://bucket/birds --features label,caption_length": "make it, or add new shards",
        "shardio table s3://bucket/birds --files": "where it is, for DuckDB, Polars and pandas",
    },
)
def table(
    given: Given,
    console: Console,
    *,
    files: Annotated[bool, Parameter(help="only print the Parquet files of the latest version")] = False,
) -> int:
    import shardio

    if not files:
        return report("shardio:build_table", given, console)
    ds = given.call(shardio.open, split="all", features=None)
    found = ds.table_files()
    if console.json:
        console.document({"url": given.url, "version": ds.version, "shards": ds.num_shards, "files": found})
        return CLEAN
    for file in found:
        console.line(file)
    if len(found) < ds.num_shards:
        console.note(f"{plural(ds.num_shards - len(found), 'shard')} of {count(ds.num_shards)} have no table")
    return CLEAN


@command(
    Takes("shardio:build_keys"),
    Takes("shardio:open", only=("split",)),
    examples={
        "shardio keys s3://bucket/birds --feature id": "make it, or add new shards",
        "shardio keys s3://bucket/birds wren-17 robin-3": "where the records with these keys are",
    },
)
def keys(
    given: Given,
    console: Console,
    keys: Annotated[list[str] | None, Parameter(help="keys to find; without them, make the index")] = None,
    *,
    feature: Annotated[
        str | None, Parameter(help="feature whose values are the keys: text, bytes or integers")
    ] = None,
) -> int:
    import shardio

    if not keys:
        if feature is None:
            raise ValueError("--feature NAME is missing: the feature that holds the keys")
        return report("shardio:build_keys", given, console)
    ds = given.call(shardio.open)
    splits = ds if isinstance(ds, shardio.DatasetDict) else {ds.split: ds}
    found: list[dict[str, Any]] = []
    for text in keys:
        for split, reader in splits.items():
            key = parse_key(text, reader.key_features, feature)
            for position in reader.find_all(key, feature=feature).tolist():
                place = reader.locate(position)
                facts = {"key": text, "split": split, "position": position}
                found.append({**facts, "shard": place.shard, "row": place.row})
    missing = [text for text in keys if text not in {each["key"] for each in found}]
    if console.json:
        console.document({"url": given.url, "version": ds.version, "found": found, "missing": missing})
        return CLEAN
    if found:
        rows = [[str(value) for value in each.values()] for each in found]
        console.table(rows, head=tuple(found[0]), right=(2, 4))
    for text in missing:
        console.line(f"no record has the key {text!r}")
    return CLEAN
