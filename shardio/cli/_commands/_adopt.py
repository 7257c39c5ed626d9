"""`shardio adopt`: adopt shards that others wrote, where they are; `shardio-index` is a second name for it.

The last line printed is the line of Python that opens the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardio.cli._command import WHOLE, Argument, Command, Option, PlaceParam, Value, flag, options
from shardio.cli._console import CLEAN, DAMAGE
from shardio.cli._describe import feature_lines
from shardio.cli._options import (
    SCHEMA,
    allow_roots,
    allowed_roots_option,
    anonymous_option,
    pair,
    schema_option,
    splits,
    splits_option,
    storage_options,
    workers_option,
)
from shardio.display import count, plural, size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import SimpleNamespace

    from shardio.cli._console import Console
    from shardio_indexer import AdoptReport

_MOST_SHOWN = 20
# What the rooms below know, written out so that help needs none of them; a test holds both sides together.
_ENCODINGS = ("example", "sequence_example", "tensors", "array", "bytes")
_FORMATS = ("tfrecord", "tar", "jsonl", "text", "codewithgpu")


def _run(arguments: SimpleNamespace, console: Console) -> int:
    return _export(arguments, console) if arguments.export else _adopt(arguments, console)


def _adopt(arguments: SimpleNamespace, console: Console) -> int:
    from shardio_indexer import ScanOptions, adopt

    try:
        with console.progress("adopt") as progress:
            report = adopt(
                arguments.urls,
                into=arguments.into,
                split=splits(arguments),
                salvage=arguments.salvage,
                update=arguments.update,
                drop_missing=arguments.drop_missing,
                schema=_schema(arguments),
                encoding=arguments.encoding,
                scan=ScanOptions(
                    format=arguments.format,
                    record_crc=arguments.record_crc,
                    trust=arguments.trust,
                    use_index=arguments.use_index,
                    block_bytes=arguments.block_bytes,
                ),
                storage_options=storage_options(arguments, arguments.urls[0]),
                into_options=dict(arguments.into_option) or None,
                workers=arguments.workers,
                progress=progress,
            )
    except KeyboardInterrupt:
        console.note("what is done is kept; run it again to continue")
        raise
    console.report(report, lambda: _print(report, console))
    return CLEAN if report.ok else DAMAGE


def _export(arguments: SimpleNamespace, console: Console) -> int:
    from shardio_indexer import export_indexes

    if len(arguments.urls) != 1:
        raise ValueError("--export takes one dataset")
    written = export_indexes(
        arguments.urls[0],
        form=arguments.export,
        into=arguments.into,
        storage_options=storage_options(arguments, arguments.urls[0]),
        allow_roots=allow_roots(arguments, arguments.urls[0]),
    )
    if console.json:
        console.document({"written": written})
    else:
        console.line(f"{plural(len(written), 'index', 'indexes')} written")
    return CLEAN


def _print(report: AdoptReport, console: Console) -> None:
    lists: tuple[tuple[Sequence[Any], Any], ...] = (
        (report.refused, lambda refusal: f"refused: {refusal.error}"),
        (
            report.stale,
            lambda url: f"stale: {url} has changed since it was adopted; index it again with --update",
        ),
        (
            report.missing,
            lambda url: (
                f"missing: {url} is part of the dataset and no longer there; "
                "restore it, or take it out of the dataset with --drop-missing"
            ),
        ),
        (report.dropped, lambda url: f"dropped: {url} was no longer there"),
        (
            report.skipped,
            lambda part: f"left out: {part.where} bytes [{part.start}, {part.stop}): {part.reason}",
        ),
    )
    for items, text in lists:
        for item in items[:_MOST_SHOWN]:
            console.warn(text(item))
        if len(items) > _MOST_SHOWN:
            console.warn(f"... and {count(len(items) - _MOST_SHOWN)} more; --json lists all")
    if report.ignored:
        shown = ", ".join(report.ignored[:5]) + (", ..." if len(report.ignored) > 5 else "")
        files = "1 file was" if len(report.ignored) == 1 else f"{count(len(report.ignored))} files were"
        console.note(f"{files} found and not adopted: {shown}")
    for note in report.notes:
        console.note(note)
    counts = [f"{count(report.adopted)} adopted"]
    counts += [
        f"{count(number)} {what}"
        for number, what in (
            (report.known, "known"),
            (report.updated, "updated"),
            (len(report.refused), "refused"),
            (len(report.stale), "stale"),
            (len(report.missing), "missing"),
            (len(report.dropped), "dropped"),
        )
        if number
    ]
    if report.version is None:
        console.line(f"{report.url}: {', '.join(counts)}; there is no dataset")
        return
    rows_of = ", ".join(f"{name} {count(rows)}" for name, rows in report.splits.items())
    console.line(
        f"shards: {', '.join(counts)}; {plural(report.records, 'record')}, {size(report.stored_bytes)}"
    )
    console.line(f"version {report.version} of {report.url} ({rows_of})")
    for line in feature_lines(report.schema):
        console.line(line)
    console.line(report.opens)


def _schema(arguments: SimpleNamespace) -> Any:
    """Return what is said of features: None for nothing, False for no schema."""
    given = schema_option(arguments)
    if arguments.no_schema:
        if given is not None:
            raise ValueError("--no-schema leaves records as they are: leave out --schema and --type, or this")
        return False
    if given is None and arguments.encoding is not None:
        raise ValueError("--encoding says how records hold the features of --schema, which is missing")
    return given


_PARAMS = (
    Argument(
        ["urls"], metavar="URL...", nargs=-1, required=True, type=PlaceParam(),
        help="shard, folder, glob, braces, or @file with a URL a line",
    ),
    Option(
        ["--into"],
        metavar="URL",
        type=PlaceParam(),
        help="where the dataset goes; default: the folder named, or that of the files if it holds no others",
    ),
    splits_option(),
    Option(
        ["--format"], type=click.Choice(_FORMATS), help="what the shards are, if it cannot be detected"
    ),
    flag("--salvage", "index around damage and say what was left out"),
    flag("--update", "index shards again that have changed, or whose index is damaged or gone"),
    flag("--drop-missing", "take shards out of the dataset that are no longer there"),
    flag("--use-index", "take the records from the .index, .idx or .tar.idx next to a shard"),
    flag("--trust", "do not compute the checksums of records"),
    Option(
        ["--record-crc"], type=click.Choice(("crc32c", "crc32", "none")), default="crc32c",
        help="what the writer used; default: crc32c",
    ),
    *SCHEMA,
    Option(
        ["--encoding"], type=click.Choice(_ENCODINGS),
        help="how records hold the features of --schema, where that is not what is inferred; bytes takes "
        "lines as they are",
    ),
    flag("--no-schema", "infer none: records are bytes"),
    Option(
        ["--block-bytes"], metavar="N", type=WHOLE, default=64 << 10, help="size of a block; default: 65536"
    ),
    workers_option(),
    Option(
        ["--export"], type=click.Choice(("dali",)),
        help="write indexes for another program, from those of a dataset",
    ),
    options(
        "--storage-option", metavar="KEY=VALUE", type=Value(pair), group="storage",
        help="option of the shards' fsspec filesystem; may be repeated",
    ),
    options(
        "--into-option", metavar="KEY=VALUE", type=Value(pair), group="storage", help="the same for --into"
    ),
    anonymous_option(),
    allowed_roots_option("storage"),
)  # fmt: skip

COMMAND = Command(
    name="adopt",
    aliases=("index",),
    summary="adopt shards in place, without changing a byte of them",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio adopt s3://bucket/birds": "every shard below a folder, indexes beside them",
        "shardio adopt 's3://bucket/birds/*.tar' --split 'train=*train*' --split 'val=*val*'": (
            "two splits; quote patterns, or the shell expands them"
        ),
        "shardio adopt 'gs://public/x-{0000..1023}.tfrecord' --anon --into ~/x": (
            "a bucket of others; the dataset is in ~/x"
        ),
        "shardio adopt old/ --type caption=text --type debug=-": (
            "two features are other than what is inferred: text, and left out"
        ),
        "shardio adopt @urls.txt --into ~/web": "URLs of a web server, one a line",
        "shardio adopt s3://bucket/birds --export dali": "write the indexes that DALI reads",
    },
)
