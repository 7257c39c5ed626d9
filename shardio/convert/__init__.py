"""From what people have, and back: converters of foreign data sets, and exports.

`convert_dataset` reads image folders, lists, tables, JSON lines, text, Parquet and Arrow, WebDataset, MDS,
Megatron, TorchRecord, codewithgpu, TFRecord and TensorFlow Datasets; `export_dataset` writes TFRecord,
WebDataset, JSON lines, Parquet, MDS and image folders.  One file per source; pyarrow and lmdb load when they
are first needed. Other packages register kinds of their own: see docs/export.md.
"""

from __future__ import annotations

from shardio.convert._convert import (
    ArrowEncoder as ArrowEncoder,
    ConvertReport as ConvertReport,
    convert_dataset as convert_dataset,
)
from shardio.convert._export import (
    ExportReport as ExportReport,
    export_dataset as export_dataset,
    target_kinds as target_kinds,
)
from shardio.convert._kinds import source_kinds as source_kinds
from shardio.convert._memory import (
    from_arrow as from_arrow,
    from_generator as from_generator,
    from_pandas as from_pandas,
    from_polars as from_polars,
)
from shardio.convert._pack import PackDatasetReport as PackDatasetReport, pack_dataset as pack_dataset
from shardio.convert._schema import (
    Inferred as Inferred,
    MdsLayout as MdsLayout,
    infer_records as infer_records,
    resolve_records as resolve_records,
    without_skip as without_skip,
)
from shardio.convert._stream import write_stream as write_stream
from shardio.formats import ReadingOptions as ReadingOptions
