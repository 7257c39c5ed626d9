"""`shardio export`: a dataset becomes files that other programs read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import Command, Takes
from shardio.cli._console import Console
from shardio.cli._describe import DRY_RUN, code_of_skipped
from shardio.cli._given import reported
from shardio.display import plural

if TYPE_CHECKING:
    from shardio.convert import ExportReport


def _print(console: Console, report: ExportReport) -> None:
    console.left_out(report)
    total = plural(sum(report.records.values()), "record")
    if report.dry_run:
        console.line(f"would export {total} of version {report.version} to {report.target}; {DRY_RUN}")
        return
    console.line(
        f"{report.target}: {total} of version {report.version} in {plural(len(report.files), 'file')}"
    )


COMMAND = Command(
    name="export",
    summary="write a dataset as TFRecord, WebDataset, JSONL, Parquet, MDS or an image folder",
    takes=(
        Takes(
            "shardio:export_dataset",
            places=("url", "target"),
            choices={
                "kind": "shardio.convert:target_kinds",
                "compression": ("gzip", "zlib", "zstd", "snappy"),
            },
        ),
    ),
    run=reported("shardio:export_dataset", _print, code_of_skipped),
    examples={
        "shardio export s3://bucket/birds plain --kind tfrecord": "TFRecord files without index or manifest",
        "shardio export birds lines --kind jsonl --split test": "one split as JSON lines",
        "shardio export birds mds --kind mds --features image,label": "for MosaicML's streaming",
    },
)
