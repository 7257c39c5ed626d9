"""`shardio table`: keep small features of every record beside the shards, as Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from shardio.cli._command import Command, Takes
from shardio.cli._console import CLEAN, Console
from shardio.cli._given import Given, reported
from shardio.display import count, plural, size

if TYPE_CHECKING:
    from shardio.lifecycle import TableReport


def _run(
    given: Given,
    console: Console,
    *,
    files: Annotated[
        bool, Parameter(help="print the Parquet files of the latest version, and do nothing else")
    ] = False,
) -> int:
    if files:
        return _files(given, console)
    return reported("shardio:build_table", _print)(given, console)


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


def _print(console: Console, report: TableReport) -> None:
    done = "would be read" if report.dry_run else "read"
    amount = f"{plural(report.built, 'shard')}, {count(report.records)} records {done}"
    console.line(f"{', '.join(report.features)}: {amount}")
    if report.reused:
        console.line(f"{plural(report.reused, 'table')} found that an earlier build had stored")
    if report.dry_run:
        console.line("nothing was changed")
    elif not report.built and not report.reused:
        console.line(f"there was nothing to do; this is version {report.version}")
    else:
        console.line(f"{size(report.stored_bytes)} in all; this is version {report.version}")


COMMAND = Command(
    name="table",
    summary="keep small features next to the shards, as Parquet, for filters",
    takes=(Takes("shardio:build_table"),),
    run=_run,
    examples={
        "shardio table s3://bucket/birds --features label,caption_length": "make it, or add what is new",
        "shardio table s3://bucket/birds --files": "where it is, for DuckDB, Polars and pandas",
    },
)
