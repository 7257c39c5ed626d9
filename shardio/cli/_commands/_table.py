"""`shardio table`: keep small features of every record beside the shards, as Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import Command, Option, Value, flag
from shardio.cli._console import CLEAN
from shardio.cli._options import BUILD, build_options, sidecar_options, url_argument
from shardio.display import count, plural, size

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.cli._console import Console
    from shardio.lifecycle import TableReport


def _run(arguments: SimpleNamespace, console: Console) -> int:
    import shardio

    if arguments.files:
        return _files(arguments, console)
    with console.progress("table") as progress:
        report = shardio.build_table(
            arguments.url, arguments.features, progress=progress, **build_options(arguments)
        )
    console.report(report, lambda: _print(console, report))
    return CLEAN


def _files(arguments: SimpleNamespace, console: Console) -> int:
    import shardio

    ds = shardio.open(arguments.url, split="all", **sidecar_options(arguments))
    files = ds.table_files()
    if console.json:
        console.document(
            {"url": arguments.url, "version": ds.version, "shards": ds.num_shards, "files": files}
        )
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


def _names(text: str) -> list[str]:
    """Return names that commas separate."""
    found = [name.strip() for name in text.split(",")]
    if not all(found):
        message = f"expected names with commas between them, found {text!r}"
        raise ValueError(message)
    return found


_PARAMS = (
    url_argument(),
    Option(
        ["--features"],
        type=Value(_names),
        metavar="NAME,...",
        help="single values, and NAME_length of text, bytes, images and ragged features; "
        "default: those that the table has",
    ),
    flag("--files", "print the Parquet files of the latest version, for other programs, and do nothing else"),
    *BUILD,
)

COMMAND = Command(
    name="table",
    summary="keep small features next to the shards, as Parquet, for filters",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio table s3://bucket/birds --features label,caption_length": "make it, or add what is new",
        "shardio table s3://bucket/birds --files": "where it is, for DuckDB, Polars and pandas",
    },
)
