"""Commands to bring data in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from shardio.cli._command import Given, command, report, reporting
from shardio.cli._console import CLEAN, DAMAGE, Console
from shardio.cli._options import Takes

if TYPE_CHECKING:
    from shardio.convert import ConvertReport, ExportReport

FORMATS = ("tfrecord", "tar", "jsonl", "text", "codewithgpu")  # a test compares them with the indexer's


@command(
    Takes("shardio:adopt", places=("urls",), without=("types",)),  # `types` is in `schema`
    Takes(
        "shardio.adoption:ScanOptions",
        only=("format", "record_crc", "trust", "block_bytes"),
        choices={"format": FORMATS, "record_crc": ("crc32c", "crc32", "none")},
    ),
    Takes("shardio.adoption:export_indexes", only=("allow_roots",)),
    examples={
        "shardio adopt s3://bucket/birds": "every shard below a folder, indexes beside them",
        "shardio adopt 's3://bucket/birds/*.tar' --split 'train=*train*' --split 'val=*val*'": (
            "two splits; quote patterns, or the shell expands them"
        ),
        "shardio adopt 'gs://public/x-{0000..1023}.tfrecord' --anon --into ~/x": (
            "a third-party bucket; the dataset is in ~/x"
        ),
        "shardio adopt old/ --type caption=text --type debug=-": (
            "change the inferred type of one feature and exclude another"
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
    from shardio import adoption

    if export:
        if len(given.urls) != 1 or given.dry_run:
            raise ValueError("--export takes one dataset and no --dry-run")
        written = given.call(adoption.export_indexes, url=given.urls[0], form=export)
        console.facts({"written": written})
        return CLEAN
    features: Any = given.features()
    if no_schema and features is not None:
        raise ValueError("--no-schema can't be combined with --schema or --type")
    if not no_schema and features is None and given.encoding is not None:
        raise ValueError("--encoding needs --schema: it says how records encode the features")
    options = {"schema": False if no_schema else features, "types": None}
    try:
        with console.progress("adopt") as progress:
            scan = given.call(adoption.ScanOptions)
            result = given.call(adoption.adopt, **options, scan=scan, progress=progress)
    except KeyboardInterrupt:
        console.note("finished shards are kept; run it again to continue")
        raise
    zeros = [name for name in ("known", "updated") if not getattr(result, name)]
    shards = () if result.dry_run else ("shards",)
    console.report(result, hide=("digest", "opens", *zeros, *shards))
    if result.opens and not (console.json or result.dry_run):
        console.line(result.opens)
    return CLEAN if result.ok else DAMAGE


def code_of_skipped(result: ConvertReport | ExportReport) -> int:
    """Return the exit code of what may skip records."""
    return DAMAGE if result.skipped else CLEAN


@command(
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
        "shardio convert old/ new --split train=0.9 --split test=0.1": "TFRecord files, split at random",
        "shardio convert list.txt birds --fn my_module:load": "a list, with a function of your own",
    },
)
def convert(given: Given, console: Console) -> int:
    from shardio.convert import ReadingOptions

    options = given.options(ReadingOptions) or None
    return report("shardio:convert_dataset", given, console, code_of_skipped, options=options)


reporting(
    "pack",
    Takes("shardio:pack_dataset", without=("splits",), places=("source", "url")),
    code=code_of_skipped,
    examples={
        "shardio pack documents rows --length 4096 --cut": "cut longer documents into several pieces",
        "shardio pack s3://bucket/documents s3://bucket/rows --length 2048 --features tokens": "one feature",
    },
)


@command(
    Takes("shardio:commit"),
    examples={
        "shardio commit s3://bucket/birds --session run7 --tasks 512": "names the missing tasks; idempotent"
    },
)
def commit(given: Given, console: Console) -> int:
    import shardio

    result: Any = given.call(shardio.commit)
    facts: dict[str, Any] = {"url": given.url, "records": result, "dry_run": True}
    if not given.dry_run:
        records = {split.name: split.rows for split in result.manifest.splits}
        facts = {"url": given.url, "version": result.number, "digest": result.digest, "records": records}
        facts["dry_run"] = False
    console.facts(facts)
    return CLEAN
