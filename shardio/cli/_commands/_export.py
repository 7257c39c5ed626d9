"""`shardio export`: a dataset becomes files that other programs read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardio.cli._command import CLEAN, DAMAGE, Command
from shardio.cli._humanize import plural
from shardio.cli._kinds import Kinds
from shardio.cli._options import allow_roots, storage_options
from shardio.cli._recorder import add_storage, add_url, recorded

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.cli._console import Console

__all__ = ["COMMAND"]

# `shardio.convert.TARGET_KINDS`, written out so that help needs none of what exporting needs.
_KINDS = ("tfrecord", "webdataset", "jsonl", "parquet", "images")


def _add_arguments(parser: Any) -> None:
    add_url(parser)
    parser.add_argument("target", metavar="TARGET", help="folder or URL; must not exist, or be empty")
    parser.add_argument(
        "--kind", choices=Kinds("TARGET_KINDS"), metavar="KIND", required=True, help="kind of the files"
    )
    parser.add_argument("--split", metavar="NAME", help="one split; default: all")
    parser.add_argument("--version", metavar="N", type=int, dest="version_number", help="default: latest")
    parser.add_argument(
        "--compression",
        choices=("gzip", "zlib", "zstd", "snappy"),
        help="of the files, where the kind has such",
    )
    parser.add_argument(
        "--shard-bytes", metavar="N", type=int, default=256 << 20, help="bytes of a file, about"
    )
    parser.add_argument(
        "--skip", action="store_true", help="leave out damaged records, and those that the kind cannot hold"
    )
    parser.add_argument(
        "--allow-root",
        metavar="URL",
        action="append",
        default=[],
        help="place of adopted shards that may be read",
    )
    add_storage(parser)


def _run(arguments: SimpleNamespace, console: Console) -> int:
    import shardio

    with console.progress("export") as progress:
        report = shardio.export_dataset(
            arguments.url,
            arguments.target,
            kind=arguments.kind,
            split=arguments.split,
            version=arguments.version_number,
            compression=arguments.compression,
            shard_bytes=arguments.shard_bytes,
            on_error="skip" if arguments.skip else "raise",
            storage_options=storage_options(arguments),
            allow_roots=allow_roots(arguments),
            progress=progress,
        )
    if console.json:
        document = report.to_dict()
        document["skipped"] = [
            {**each, "reason": console.in_flags(each["reason"])} for each in document["skipped"]
        ]
        console.document(document)
        return DAMAGE if report.skipped else CLEAN
    for skipped in report.skipped:
        console.line(f"left out: {skipped.where}: {console.in_flags(skipped.reason)}")
    for note in report.notes:
        console.note(note)
    total = plural(sum(report.records.values()), "record")
    console.line(
        f"{report.target}: {total} of version {report.version} in {plural(len(report.files), 'file')}"
    )
    return DAMAGE if report.skipped else CLEAN


COMMAND = Command(
    name="export",
    group="change",
    summary="write a dataset as TFRecord, WebDataset, JSONL, Parquet or an image folder",
    params=recorded(_add_arguments),
    run=_run,
    examples={
        "shardio export s3://bucket/birds plain --kind tfrecord": "TFRecord files without index or manifest",
        "shardio export birds lines --kind jsonl --split test": "one split as JSON lines",
    },
)
