"""`shardio export`: a dataset becomes files that other programs read."""

from __future__ import annotations

from shardio.cli._command import Command
from shardio.cli._console import CLEAN, DAMAGE, Console
from shardio.cli._describe import DRY_RUN
from shardio.cli._given import Given
from shardio.cli._signature import Takes
from shardio.display import plural


def _run(given: Given, console: Console) -> int:
    import shardio

    with console.progress("export") as progress:
        report = given.call(shardio.export_dataset, progress=progress)
    if console.skipped(report):
        return DAMAGE if report.skipped else CLEAN
    total = plural(sum(report.records.values()), "record")
    if report.dry_run:
        console.line(f"would export {total} of version {report.version} to {report.target}; {DRY_RUN}")
        return CLEAN
    console.line(
        f"{report.target}: {total} of version {report.version} in {plural(len(report.files), 'file')}"
    )
    return DAMAGE if report.skipped else CLEAN


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
    run=_run,
    examples={
        "shardio export s3://bucket/birds plain --kind tfrecord": "TFRecord files without index or manifest",
        "shardio export birds lines --kind jsonl --split test": "one split as JSON lines",
        "shardio export birds mds --kind mds --features image,label": "for MosaicML's streaming",
    },
)
