"""Commands to bring data in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from shardio.cli._command import Takes, command
from shardio.cli._console import CLEAN, DAMAGE, Console
from shardio.cli._describe import DRY_RUN, code_of_skipped, feature_lines
from shardio.cli._given import Given, report, reported
from shardio.display import count, plural, size

if TYPE_CHECKING:
    from shardio.adoption import AdoptReport
    from shardio.convert import ConvertReport, PackDatasetReport


FORMATS = ("tfrecord", "tar", "jsonl", "text", "codewithgpu")  # a test holds them to the indexer's


@command(
    "adopt shards in place, without changing a byte of them",
    Takes(
        "shardio.adoption:adopt",
        places=("urls",),
        without=("types",),  # as in `schema`
    ),
    Takes(
        "shardio.adoption:ScanOptions",
        only=("format", "record_crc", "trust", "block_bytes"),
        choices={"format": FORMATS, "record_crc": ("crc32c", "crc32", "none")},
    ),
    Takes("shardio.adoption:export_indexes", only=("allow_roots",)),
    aliases=("index",),
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
def adopt(
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
        console.note("finished shards are kept; run it again to continue")
        raise
    console.report(report, lambda: _print_adopt(report, console))
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


def _print_adopt(report: AdoptReport, console: Console) -> None:
    gone = "would drop" if report.dry_run else "dropped"
    for lines in (
        [f"refused: {refusal.error}" for refusal in report.refused],
        [
            f"stale: {url} has changed since it was adopted; index it again with --update"
            for url in report.stale
        ],
        [
            f"missing: {url} is part of the dataset and no longer there; restore it, or take it out of the "
            "dataset with --drop-missing"
            for url in report.missing
        ],
        [f"{gone}: {url} is gone" for url in report.dropped],
        [
            f"left out: {each.where} bytes [{each.start}, {each.stop}): {each.reason}"
            for each in report.skipped
        ],
    ):
        console.items(lines, console.warn)
    console.ignored(report.ignored, "not adopted")
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


@command(
    "make a dataset from images, CSV, JSONL, Parquet, WebDataset, MDS, Megatron, TFRecord or TFDS",
    Takes(
        "shardio:convert_dataset",
        without=("splits", "options"),
        places=("source", "url"),
        choices={
            "kind": "shardio.convert:source_kinds",
            "encoding": ("example", "tensors", "array", "bytes"),
        },
    ),
    Takes("shardio.convert:ReadingOptions", choices={"partitions": ("hive",)}),
    examples={
        "shardio convert photos/ s3://bucket/photos": "an image folder: class/name.jpg",
        "shardio convert lines.jsonl lines --type score=float32": "JSON lines; a type by hand",
        "shardio convert table.csv table --type zip=text": "CSV; a column by hand",
        "shardio convert ~/tensorflow_datasets/mnist/3.0.1 mnist": "TensorFlow Datasets (TFDS)",
        "shardio convert old/ new --split train=0.9 --split test=0.1": "TFRecord files, divided again",
        "shardio convert list.txt birds --fn my_module:load": "a list, with a function of your own",
    },
)
def convert(given: Given, console: Console) -> int:
    from shardio.convert import ReadingOptions

    options = given.options(ReadingOptions) or None
    return report("shardio:convert_dataset", given, console, _print_convert, code_of_skipped, options=options)


def _print_convert(console: Console, report: ConvertReport) -> None:
    console.left_out(report)
    console.ignored(report.ignored, "not converted, of another kind or split")
    if report.dry_run:
        parts = ", ".join(f"{name} {size(amount)}" for name, amount in report.source_bytes.items())
        console.line(f"would convert {size(sum(report.source_bytes.values()))} of {report.kind} ({parts})")
        for line in feature_lines(report.schema):
            console.line(line)
        console.line(DRY_RUN)
        return
    total = plural(sum(report.records.values()), "record")
    parts = ", ".join(f"{name} {rows:,}" for name, rows in sorted(report.records.items()))
    console.line(f"{report.url} is at version {report.version}: {total} from {report.kind} ({parts})")
    for line in feature_lines(report.schema):
        console.line(line)
    if report.skipped:
        console.line(f"{plural(len(report.skipped), 'record')} left out")


def _code(report: PackDatasetReport) -> int:
    return DAMAGE if any(each.records_skipped for each in report.splits.values()) else CLEAN


@reported(
    "pack documents into rows of one length",
    Takes("shardio:pack_dataset", without=("splits",), places=("source", "url")),
    code=_code,
    examples={
        "shardio pack documents rows --length 4096 --cut": "longer documents become several pieces",
        "shardio pack s3://bucket/documents s3://bucket/rows --length 2048 --features tokens": "one feature",
    },
)
def pack(console: Console, report: PackDatasetReport) -> None:
    for name, each in report.splits.items():
        for bad in each.skipped:
            console.line(f"left out: split {name}, {bad.where}: {bad.reason}")
    done = f"is at version {report.version}" if not report.dry_run else f"would hold these; {DRY_RUN}"
    console.line(f"{report.url} {done}")
    for name, each in report.splits.items():
        console.line(f"  {name}: {each}")


@command(
    "commit the tasks of a job array as one new version",
    Takes("shardio:commit"),
    examples={
        "shardio commit s3://bucket/birds --session run7 --tasks 512": "names the tasks that are missing; "
        "doing it twice is harmless",
    },
)
def commit(given: Given, console: Console) -> int:
    import shardio

    if given.dry_run:
        found: Any = given.call(shardio.commit)
        if console.json:
            console.document({"url": given.url, "records": found, "dry_run": True})
            return CLEAN
        total = plural(sum(found.values()), "record")
        console.line(f"session {given.session} is complete, {total}; {DRY_RUN}")
        return CLEAN
    version = given.call(shardio.commit)
    records = {split.name: split.rows for split in version.manifest.splits}
    if console.json:
        facts = {"url": given.url, "version": version.number, "digest": version.digest}
        console.document({**facts, "records": records, "dry_run": False})
        return CLEAN
    total = plural(sum(records.values()), "record")
    console.line(f"{given.url} is at version {version.number}, {total} ({version.digest})")
    return CLEAN
