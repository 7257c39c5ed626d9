"""`shardio convert`: what people have becomes a dataset; what was left out is listed, a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import Command, Takes
from shardio.cli._console import Console
from shardio.cli._describe import DRY_RUN, code_of_skipped, feature_lines
from shardio.cli._given import reported
from shardio.display import plural, size

if TYPE_CHECKING:
    from shardio.convert import ConvertReport


def _print(console: Console, report: ConvertReport) -> None:
    console.left_out(report)
    if report.ignored:
        shown = ", ".join(report.ignored[:5]) + (", ..." if len(report.ignored) > 5 else "")
        console.note(
            f"{plural(len(report.ignored), 'file')} not converted, of another kind or split: {shown}"
        )
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


COMMAND = Command(
    name="convert",
    summary="make a dataset from images, CSV, JSONL, Parquet, WebDataset, MDS, Megatron, TFRecord or TFDS",
    takes=(
        Takes(
            "shardio:convert_dataset",
            without=("splits",),
            places=("source", "url"),
            choices={
                "kind": "shardio.convert:source_kinds",
                "partitions": ("hive",),
                "encoding": ("example", "tensors", "array", "bytes"),
            },
        ),
    ),
    run=reported("shardio:convert_dataset", _print, code_of_skipped),
    examples={
        "shardio convert photos/ s3://bucket/photos": "an image folder: class/name.jpg",
        "shardio convert lines.jsonl lines --type score=float32": "JSON lines; a type by hand",
        "shardio convert table.csv table --type zip=text": "CSV; a column by hand",
        "shardio convert ~/tensorflow_datasets/mnist/3.0.1 mnist": "TensorFlow Datasets (TFDS)",
        "shardio convert old/ new --fractions train=0.9,test=0.1": "TFRecord files, divided again",
        "shardio convert list.txt birds --fn my_module:load": "a list, with a function of your own",
    },
)
