"""`shardio export`: a dataset becomes files that other programs read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardio.cli._command import WHOLE, Argument, Command, Option, PlaceParam, flag
from shardio.cli._console import CLEAN, DAMAGE
from shardio.cli._options import (
    STORAGE,
    VERSION_VALUE,
    allow_roots,
    allowed_roots_option,
    storage_options,
    url_argument,
)
from shardio.display import plural

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.cli._console import Console

# `shardio.convert.TARGET_KINDS`, written out so that help names them and loads nothing; a test compares both.
_KINDS = ("tfrecord", "webdataset", "jsonl", "parquet", "mds", "images")


def _run(arguments: SimpleNamespace, console: Console) -> int:
    import shardio

    with console.progress("export") as progress:
        report = shardio.export_dataset(
            arguments.url,
            arguments.target,
            kind=arguments.kind,
            features=[name for name in arguments.features.split(",") if name] if arguments.features else None,
            split=arguments.split,
            version=arguments.version_number,
            compression=arguments.compression,
            shard_bytes=arguments.shard_bytes,
            on_error="skip" if arguments.skip else "raise",
            storage_options=storage_options(arguments),
            allow_roots=allow_roots(arguments),
            progress=progress,
        )
    if console.skipped(report):
        return DAMAGE if report.skipped else CLEAN
    total = plural(sum(report.records.values()), "record")
    console.line(
        f"{report.target}: {total} of version {report.version} in {plural(len(report.files), 'file')}"
    )
    return DAMAGE if report.skipped else CLEAN


_PARAMS = (
    url_argument(),
    Argument(
        ["target"], metavar="TARGET", type=PlaceParam(), help="folder or URL that does not exist or is empty"
    ),
    Option(["--kind"], type=click.Choice(_KINDS), required=True, help="kind of the files"),
    Option(["--features"], metavar="A,B", help="only these; default: all"),
    Option(["--split"], metavar="NAME", help="one split; default: all"),
    Option(["--version", "version_number"], metavar="N|TAG", type=VERSION_VALUE, help="default: latest"),
    Option(
        ["--compression"], type=click.Choice(("gzip", "zlib", "zstd", "snappy")),
        help="of the files, if the kind has it",
    ),
    Option(["--shard-bytes"], metavar="N", type=WHOLE, default=256 << 20, help="bytes of a file, roughly"),
    flag("--skip", "leave out damaged records, and those that the kind cannot hold"),
    allowed_roots_option("options"),
    *STORAGE,
)  # fmt: skip

COMMAND = Command(
    name="export",
    summary="write a dataset as TFRecord, WebDataset, JSONL, Parquet, MDS or an image folder",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio export s3://bucket/birds plain --kind tfrecord": "TFRecord files without index or manifest",
        "shardio export birds lines --kind jsonl --split test": "one split as JSON lines",
        "shardio export birds mds --kind mds --features image,label": "for MosaicML's streaming",
    },
)
