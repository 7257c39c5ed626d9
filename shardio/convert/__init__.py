"""From what people have, and back: converters of foreign data sets, and exports.

`convert_dataset` reads image folders, lists, tables, JSON lines, text, Parquet and Arrow, WebDataset, MDS,
Megatron, TorchRecord, codewithgpu, TFRecord and TensorFlow Datasets; `export_dataset` writes TFRecord,
WebDataset, JSON lines, Parquet, MDS and image folders.  One file per source; pyarrow and lmdb load when they
are first needed. Other packages register kinds of their own: see docs/formats.md.
"""

from __future__ import annotations

from shardio.convert._convert import ArrowEncoder, ConvertReport, convert_dataset
from shardio.convert._export import ExportReport, export_dataset, target_kinds
from shardio.convert._files import FileSource, read_whole
from shardio.convert._kinds import source_kinds
from shardio.convert._memory import from_arrow, from_generator, from_pandas, from_polars
from shardio.convert._pack import PackDatasetReport, pack_dataset
from shardio.convert._schema import infer_from_payloads
from shardio.convert._source import Piece, Sample
from shardio.convert._targets import TargetWriter
from shardio.errors import BadRecord

__all__ = [
    "ArrowEncoder",
    "BadRecord",
    "ConvertReport",
    "ExportReport",
    "FileSource",
    "PackDatasetReport",
    "Piece",
    "Sample",
    "TargetWriter",
    "convert_dataset",
    "export_dataset",
    "from_arrow",
    "from_generator",
    "from_pandas",
    "from_polars",
    "infer_from_payloads",
    "pack_dataset",
    "read_whole",
    "source_kinds",
    "target_kinds",
]
