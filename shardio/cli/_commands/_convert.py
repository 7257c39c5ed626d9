"""`shardio convert`: what people have becomes a dataset; what was left out is listed, a line each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from shardio.cli._command import WHOLE, Argument, Command, Option, PlaceParam, Value, flag, options
from shardio.cli._console import CLEAN, DAMAGE
from shardio.cli._describe import feature_lines
from shardio.cli._options import (
    SCHEMA,
    STORAGE,
    allow_roots,
    allowed_roots_option,
    name_and_value,
    once,
    schema_option,
    splits,
    splits_option,
    storage_options,
    url_argument,
    workers_option,
)
from shardio.display import plural

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.cli._console import Console

# `shardio.convert.SOURCE_KINDS`, written out so that help names them and loads nothing; a test compares both.
_KINDS = (
    "images", "list", "csv", "tsv", "jsonl", "text", "parquet", "arrow", "webdataset", "mds", "megatron",
    "torchrecord", "codewithgpu", "tfrecord", "tfds", "shardio",
)  # fmt: skip


def _run(arguments: SimpleNamespace, console: Console) -> int:
    import shardio

    given = {name: getattr(arguments, name) for name in ("shard_bytes", "block_bytes")}
    writer = {name: value for name, value in given.items() if value is not None}
    source_options = {
        name: _value(text) for name, text in once("--source-option", arguments.source_option).items()
    }
    with console.progress("convert") as progress:
        report = shardio.convert_dataset(
            arguments.source,
            arguments.url,
            kind=arguments.kind,
            schema=schema_option(arguments),
            process=_function(arguments.process),
            split=splits(arguments),
            shares=_shares(arguments.shares),
            on_error="skip" if arguments.skip else "raise",
            shuffle=arguments.shuffle,
            seed=arguments.seed,
            shards=arguments.shards,
            workers=arguments.workers,
            root=arguments.root,
            classes=arguments.classes or None,
            metadata={name: _value(text) for name, text in once("--metadata", arguments.metadata).items()},
            partitions=None if arguments.no_partitions else "hive",
            check_images=not arguments.no_image_check,
            encoding=arguments.encoding,
            mode=arguments.mode,
            session=arguments.session,
            progress=progress,
            source_options=source_options or None,
            allow_roots=allow_roots(arguments, arguments.source, options=source_options),
            storage_options=storage_options(arguments),
            compression=arguments.compression,
            **writer,
        )
    if console.skipped(report):
        return DAMAGE if report.skipped else CLEAN
    if report.ignored:
        shown = ", ".join(report.ignored[:5]) + (", ..." if len(report.ignored) > 5 else "")
        console.note(
            f"{plural(len(report.ignored), 'file')} not converted, of another kind or split: {shown}"
        )
    total = plural(sum(report.records.values()), "record")
    parts = ", ".join(f"{name} {rows:,}" for name, rows in sorted(report.records.items()))
    console.line(f"{arguments.url} is at version {report.version}: {total} from {report.kind} ({parts})")
    for line in feature_lines(report.schema):
        console.line(line)
    if report.skipped:
        console.line(f"{plural(len(report.skipped), 'record')} left out")
    return DAMAGE if report.skipped else CLEAN


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _function(name: str | None) -> Any:
    """Return the function that `package.module:name` means."""
    if name is None:
        return None
    import importlib
    import sys

    module, colon, attribute = name.partition(":")
    if not colon:
        message = f"--process {name}: expected MODULE:FUNCTION"
        raise ValueError(message)
    # A module in the current folder is found, as `python -m` would find it.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        message = f"--process {name}: {error}"
        raise ValueError(message) from error


def _shares(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    pairs = [(name.strip(), share) for name, _, share in (part.partition("=") for part in text.split(","))]
    shares = once("--shares", pairs)
    try:
        return {name: float(share) for name, share in shares.items()}
    except ValueError:
        message = f"--shares {text}: expected shares such as train=0.9,test=0.1"
        raise ValueError(message) from None


_PARAMS = (
    Argument(
        ["source"], metavar="SOURCE", type=PlaceParam(),
        help="file, folder or pattern: a local path or any fsspec URL",
    ),
    url_argument(),
    Option(
        ["--kind"], type=click.Choice(_KINDS), help="kind of the source; default: told by the names of files"
    ),
    *SCHEMA,
    Option(
        ["--process"], metavar="MODULE:FUNCTION", help="for lists: makes records of a line or row"
    ),
    Option(
        ["--root"],
        metavar="URL",
        type=PlaceParam(),
        help="for lists: folder that relative paths start from",
    ),
    splits_option(),
    Option(
        ["--shares"], metavar="NAME=SHARE,...", help="divide the records among splits: train=0.9,test=0.1"
    ),
    options(
        "--class", "--classes", "classes", metavar="NAME",
        help="name of a class, in the order of the labels; may be repeated; default: those found, sorted",
    ),
    options(
        "--metadata", metavar="NAME=VALUE", type=Value(name_and_value),
        help="free metadata of the dataset; the value is JSON, or else text; may be repeated",
    ),
    flag("--skip", "leave out what cannot become a record, and list it"),
    flag("--no-partitions", "make no features of the names of folders such as year=2020"),
    flag("--no-image-check", "do not decode every image once"),
    flag("--shuffle", "shuffle all records while writing"),
    Option(
        ["--seed"], metavar="N", type=WHOLE, default=0, help="of --shuffle and --shares; default: 0"
    ),
    workers_option(),
    Option(
        ["--mode"], type=click.Choice(("create", "append", "overwrite")), default="create",
        help="what happens to a dataset that is there; default: create, which refuses",
    ),
    Option(["--session"], metavar="S", help="id of this write, by which a rerun continues"),
    Option(
        ["--compression"], type=click.Choice(("zstd", "gzip", "zlib")), group="shards",
        help="of shards",
    ),
    Option(
        ["--shard-bytes"], metavar="N", type=WHOLE, group="shards",
        help="stored bytes after which a shard is closed",
    ),
    Option(
        ["--shards"], metavar="N", type=WHOLE, group="shards",
        help="cut each split into so many shards instead",
    ),
    Option(["--block-bytes"], metavar="N", type=WHOLE, group="shards", help="decoded bytes of a block"),
    Option(
        ["--encoding"], type=click.Choice(("example", "tensors", "array", "bytes")), group="shards",
        help="of the records",
    ),
    options(
        "--source-option", metavar="KEY=VALUE", type=Value(name_and_value),
        help="option of the source's fsspec filesystem; may be repeated",
    ),
    allowed_roots_option("storage"),
    *STORAGE,
)  # fmt: skip

COMMAND = Command(
    name="convert",
    summary="make a dataset from images, CSV, JSONL, Parquet, WebDataset, MDS, Megatron, TFRecord or TFDS",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio convert photos/ s3://bucket/photos": "an image folder: class/name.jpg",
        "shardio convert lines.jsonl lines --type score=float32": "JSON lines; a type by hand",
        "shardio convert table.csv table --type zip=text": "CSV; a column by hand",
        "shardio convert ~/tensorflow_datasets/mnist/3.0.1 mnist": "TensorFlow Datasets (TFDS)",
        "shardio convert old/ new --shares train=0.9,test=0.1": "TFRecord files, divided again",
        "shardio convert list.txt birds --process my_module:load": "a list, with a function of your own",
    },
)
