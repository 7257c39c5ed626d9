"""`shardio adopt`: adopt shards that others wrote, where they are; `shardio-index` is a second name for it.

The last line printed is the line of Python that opens the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from shardio.cli._command import Command, Takes
from shardio.cli._console import CLEAN, DAMAGE, Console
from shardio.cli._describe import DRY_RUN, feature_lines
from shardio.cli._given import Given
from shardio.display import count, plural, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardio.adoption import AdoptReport

_MOST_SHOWN = 20
FORMATS = ("tfrecord", "tar", "jsonl", "text", "codewithgpu")  # a test holds them to the indexer's


def _run(
    given: Given,
    console: Console,
    *,
    no_schema: Annotated[bool, Parameter(help="infer none: records are bytes")] = False,
    export: Annotated[
        Literal["dali"] | None,
        Parameter(help="write indexes for another program, from those of a dataset"),
    ] = None,
) -> int:
    if export:
        return _export(given, console, export)
    return _adopt(given, console, infer=not no_schema)


def _adopt(given: Given, console: Console, *, infer: bool) -> int:
    from shardio.adoption import ScanOptions, adopt

    try:
        with console.progress("adopt") as progress:
            options = {"schema": _schema(given, infer=infer), "types": None, "scan": given.call(ScanOptions)}
            report = given.call(adopt, **options, progress=progress)
    except KeyboardInterrupt:
        console.note("what is done is kept; run it again to continue")
        raise
    console.report(report, lambda: _print(report, console))
    return CLEAN if report.ok else DAMAGE


def _export(given: Given, console: Console, form: str) -> int:
    from shardio.adoption import export_indexes

    if len(given.urls) != 1:
        raise ValueError("--export takes one dataset")
    if given.dry_run:
        raise ValueError("--export writes small files beside the shards and has no --dry-run: leave one out")
    written = given.call(export_indexes, url=given.urls[0], form=form)
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
        (report.dropped, lambda url: f"{'would drop' if report.dry_run else 'dropped'}: {url} is gone"),
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
    counts = [f"{count(report.adopted)} {'to adopt' if report.dry_run else 'adopted'}"]
    counts += [
        f"{count(number)} {what}"
        for number, what in (
            (report.known, "known"),
            (report.updated, "to index again" if report.dry_run else "updated"),
            (len(report.refused), "refused"),
            (len(report.stale), "stale"),
            (len(report.missing), "missing"),
            (len(report.dropped), "dropped"),
        )
        if number
    ]
    if report.dry_run:
        shards_of = ", ".join(f"{name} {count(shards)}" for name, shards in report.shards.items())
        console.line(f"{report.url}: {', '.join(counts)}, {size(report.stored_bytes)} ({shards_of})")
        console.line(DRY_RUN)
        return
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


def _schema(given: Given, *, infer: bool) -> Any:
    """Return what is said of features: None for nothing, False for no schema."""
    features = given.schema_given
    if not infer:
        if features is not None:
            raise ValueError("--no-schema leaves records as they are: leave out --schema and --type, or this")
        return False
    if features is None and given.encoding is not None:
        raise ValueError("--encoding says how records hold the features of --schema, which is missing")
    return features


COMMAND = Command(
    name="adopt",
    aliases=("index",),
    summary="adopt shards in place, without changing a byte of them",
    takes=(
        Takes(
            "shardio.adoption:adopt",
            places=("urls",),
            without=("types",),  # as in `schema`
        ),
        Takes(
            "shardio.adoption:ScanOptions",
            only=("format", "record_crc", "trust", "use_index", "block_bytes"),
            choices={"format": FORMATS, "record_crc": ("crc32c", "crc32", "none")},
        ),
        Takes("shardio.adoption:export_indexes", only=("allow_roots",)),
    ),
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
