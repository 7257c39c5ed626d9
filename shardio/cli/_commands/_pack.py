"""`shardio pack`: documents become rows of one length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardio.cli._command import WHOLE, Argument, Command, Option, PlaceParam, flag, options
from shardio.cli._console import CLEAN, DAMAGE
from shardio.cli._options import STORAGE, allow_roots, allowed_roots_option, storage_options

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.cli._console import Console


def _run(arguments: SimpleNamespace, console: Console) -> int:
    import shardio

    given = {name: getattr(arguments, name) for name in ("shard_bytes", "block_bytes")}
    writer = {name: value for name, value in given.items() if value is not None}
    with console.progress("pack") as progress:
        report = shardio.pack_dataset(
            arguments.source,
            arguments.url,
            arguments.length,
            features=arguments.features or None,
            cut=arguments.cut,
            pad=arguments.pad,
            on_error="skip" if arguments.skip else "raise",
            mode=arguments.mode,
            allow_roots=allow_roots(arguments, arguments.source),
            storage_options=storage_options(arguments),
            progress=progress,
            compression=arguments.compression,
            **writer,
        )
    skipped = sum(each.records_skipped for each in report.splits.values())
    if console.json:
        console.document(report.to_dict())
        return DAMAGE if skipped else CLEAN
    for name, each in report.splits.items():
        for bad in each.skipped:
            console.line(f"left out: split {name}, {bad.where}: {console.in_flags(bad.reason)}")
    console.line(f"{report.url} is at version {report.version}")
    for name, each in report.splits.items():
        console.line(f"  {name}: {each}")
    return DAMAGE if skipped else CLEAN


_PARAMS = (
    Argument(["source"], metavar="SOURCE", type=PlaceParam(), help="dataset of documents: a path or URL"),
    Argument(["url"], metavar="URL", type=PlaceParam(), help="dataset of rows"),
    Option(["--length"], metavar="N", type=WHOLE, required=True, help="tokens of a row"),
    options(
        "--feature", "features", metavar="NAME",
        help="feature to pack; may be repeated; default: all numbers of differing length",
    ),
    flag("--cut", "cut documents that are longer than a row"),
    flag("--skip", "leave out documents that are too long or empty, and list them"),
    Option(["--pad"], metavar="N", type=WHOLE, default=0, help="value that fills up rows; default: 0"),
    Option(
        ["--mode"], type=click.Choice(("create", "append", "overwrite")), default="create",
        help="what happens to a dataset that is there; default: create, which refuses",
    ),
    Option(["--compression"], type=click.Choice(("zstd", "gzip", "zlib")), group="shards", help="of shards"),
    Option(
        ["--shard-bytes"], metavar="N", type=WHOLE, group="shards",
        help="stored bytes after which a shard is closed",
    ),
    Option(["--block-bytes"], metavar="N", type=WHOLE, group="shards", help="decoded bytes of a block"),
    allowed_roots_option("storage"),
    *STORAGE,
)  # fmt: skip

COMMAND = Command(
    name="pack",
    summary="pack documents into rows of one length",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio pack documents rows --length 4096 --cut": "longer documents become several pieces",
        "shardio pack s3://bucket/documents s3://bucket/rows --length 2048 --feature tokens": "one feature",
    },
)
