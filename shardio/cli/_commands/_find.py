"""Commands to find records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shardio.cli._command import Takes, command
from shardio.cli._console import CLEAN, Console
from shardio.cli._given import Given, report
from shardio.cli._values import parse_key
from shardio.display import count, plural, size

if TYPE_CHECKING:
    from shardio.keys import KeysReport
    from shardio.tables import TableReport


@command(
    "keep small features next to the shards, as Parquet, for filters",
    Takes("shardio:build_table"),
    examples={
        "shardio table s3://bucket/birds --features label,caption_length": "make it, or add what is new",
        "shardio table s3://bucket/birds --files": "where it is, for DuckDB, Polars and pandas",
    },
)
def table(
    given: Given,
    console: Console,
    *,
    files: Annotated[
        bool, Parameter(help="print the Parquet files of the latest version, and do nothing else")
    ] = False,
) -> int:
    if files:
        return _files(given, console)
    return report("shardio:build_table", given, console, _print_table)


def _files(given: Given, console: Console) -> int:
    import shardio

    ds = given.call(shardio.open, split="all", features=None)
    files = ds.table_files()
    if console.json:
        console.document({"url": given.url, "version": ds.version, "shards": ds.num_shards, "files": files})
        return CLEAN
    for file in files:
        console.line(file)
    if len(files) < ds.num_shards:
        console.note(f"{plural(ds.num_shards - len(files), 'shard')} of {count(ds.num_shards)} have no table")
    return CLEAN


def _print_table(console: Console, report: TableReport) -> None:
    done = "would be read" if report.dry_run else "read"
    amount = f"{plural(report.built, 'shard')}, {count(report.records)} records {done}"
    console.line(f"{', '.join(report.features)}: {amount}")
    if report.dry_run:
        console.line("nothing was changed")
    elif not report.built:
        console.line(f"there was nothing to do; this is version {report.version}")
    else:
        console.line(f"{size(report.stored_bytes)} in all; this is version {report.version}")


_SHOWN = 5


@command(
    "index the keys of records, and find records by key",
    Takes("shardio:build_keys"),
    Takes("shardio:open", only=("split",)),
    examples={
        "shardio keys s3://bucket/birds --feature id": "make it, or add what is new",
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
    if keys:
        return _find(given, console, keys, feature)
    if feature is None:
        raise ValueError("--feature NAME says which feature holds the keys")
    return report("shardio:build_keys", given, console, _print_keys)


def _find(given: Given, console: Console, keys: list[str], feature: str | None) -> int:
    import shardio

    ds = shardio.open(**given.options(shardio.open))
    splits = ds if isinstance(ds, shardio.DatasetDict) else {ds.split: ds}
    found: list[dict[str, Any]] = []
    for text in keys:
        for split, part in splits.items():
            key = parse_key(text, part.key_features, feature)
            for position in part.find_all(key, feature=feature).tolist():
                place = part.locate(position)
                found.append(
                    {
                        "key": text,
                        "split": split,
                        "position": position,
                        "shard": place.shard,
                        "row": place.row,
                    }
                )
    missing = [text for text in keys if text not in {each["key"] for each in found}]
    if console.json:
        console.document({"url": given.url, "version": ds.version, "found": found, "missing": missing})
    else:
        rows = [[str(value) for value in each.values()] for each in found]
        if rows:
            console.table(rows, head=tuple(found[0]), right=(2, 4))
        for text in missing:
            console.line(f"no record has the key {text!r}")
    return CLEAN


def _print_keys(console: Console, report: KeysReport) -> None:
    if report.dry_run:
        console.line(
            f"{plural(report.read, 'shard')} of {count(report.shards)} would be read; nothing was changed"
        )
        return
    if not report.read:
        console.line("there are no new shards")
    else:
        console.line(f"{plural(report.read, 'shard')} read")
    console.line(
        f"{count(report.keys)} keys in {plural(report.runs, 'run')}, {size(report.stored_bytes)}; "
        f"this is version {report.version}"
    )
    if report.duplicate_records:
        console.line(f"{count(report.duplicate_records)} records share their key with another one, such as")
        for each in report.duplicates[:_SHOWN]:
            places = ", ".join(f"{shard} row {row}" for shard, row in each.places)
            console.line(f"  {each.key!r}: {plural(each.records, 'record')}, {places}")
