"""Training data in plain TFRecord shards: verified, random-access, shuffled, exactly resumable.

Write with `DatasetWriter`, read with `open`, train with `stream` or `shardio.torch`; TensorFlow is not
needed. The rooms of the house, from the ground up: `errors`; `ranges`, `kernels`; `format`; `metadata`;
`codecs`, `storage`, `order`; `catalog`; `writer`, `reader`; `streaming`, `maintenance`; `torch`; `cli`.
Names are loaded when they are first used, so importing shardio starts nothing and needs neither protobuf nor
torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardio import codecs, errors
    from shardio.catalog import GcReport, Version, commit, gc, log
    from shardio.codecs import CenterCrop, ImageOptions, RandomResizedCrop
    from shardio.convert import (
        ConvertReport,
        ExportReport,
        PackDatasetReport,
        convert_dataset,
        export_dataset,
        from_arrow,
        from_generator,
        from_pandas,
        from_polars,
        pack_dataset,
    )
    from shardio.errors import ShardioError
    from shardio.format import Limits
    from shardio.lifecycle import (
        ChangeReport,
        CompactReport,
        DeleteReport,
        DiffReport,
        EraseReport,
        KeysReport,
        RepairReport,
        SchemaReport,
        TableReport,
        build_keys,
        build_table,
        compact,
        delete,
        diff,
        remove_split,
        rename_split,
        repair,
        restore,
        set_schema,
        tag,
        tags,
        untag,
    )
    from shardio.maintenance import Finding, VerifyReport, verify
    from shardio.metadata import Feature, Schema
    from shardio.order import Permutation, Plan
    from shardio.packing import PackedRows, PackReport, pack, pack_columns, unpack
    from shardio.parallel import write_dataset
    from shardio.reader import DatasetDict, DatasetReader, Location, ShardReader, join, open, open_shard  # noqa: A004 - the public name
    from shardio.storage import CacheOptions
    from shardio.streaming import (
        BenchReport,
        Mix,
        Stream,
        StreamOptions,
        audit,
        bench,
        mix,
        plan_report,
        stream,
    )
    from shardio.writer import DatasetWriter, ShardWriter
    from shardio_indexer import adopt

__version__ = "0.1.0"

_PLACES = {
    "ChangeReport": "shardio.lifecycle",
    "CompactReport": "shardio.lifecycle",
    "compact": "shardio.lifecycle",
    "DiffReport": "shardio.lifecycle",
    "diff": "shardio.lifecycle",
    "DeleteReport": "shardio.lifecycle",
    "EraseReport": "shardio.lifecycle",
    "delete": "shardio.lifecycle",
    "remove_split": "shardio.lifecycle",
    "rename_split": "shardio.lifecycle",
    "restore": "shardio.lifecycle",
    "set_schema": "shardio.lifecycle",
    "tag": "shardio.lifecycle",
    "tags": "shardio.lifecycle",
    "untag": "shardio.lifecycle",
    "BenchReport": "shardio.streaming",
    "CacheOptions": "shardio.storage",
    "CenterCrop": "shardio.codecs",
    "ConvertReport": "shardio.convert",
    "DatasetDict": "shardio.reader",
    "DatasetReader": "shardio.reader",
    "DatasetWriter": "shardio.writer",
    "ExportReport": "shardio.convert",
    "Feature": "shardio.metadata",
    "Finding": "shardio.maintenance",
    "GcReport": "shardio.catalog",
    "ImageOptions": "shardio.codecs",
    "KeysReport": "shardio.lifecycle",
    "Limits": "shardio.format",
    "Location": "shardio.reader",
    "Mix": "shardio.streaming",
    "PackDatasetReport": "shardio.convert",
    "PackReport": "shardio.packing",
    "PackedRows": "shardio.packing",
    "Permutation": "shardio.order",
    "Plan": "shardio.order",
    "RandomResizedCrop": "shardio.codecs",
    "RepairReport": "shardio.lifecycle",
    "Schema": "shardio.metadata",
    "SchemaReport": "shardio.lifecycle",
    "ShardReader": "shardio.reader",
    "ShardWriter": "shardio.writer",
    "ShardioError": "shardio.errors",
    "Stream": "shardio.streaming",
    "StreamOptions": "shardio.streaming",
    "TableReport": "shardio.lifecycle",
    "VerifyReport": "shardio.maintenance",
    "Version": "shardio.catalog",
    "adopt": "shardio_indexer",
    "audit": "shardio.streaming",
    "bench": "shardio.streaming",
    "build_keys": "shardio.lifecycle",
    "build_table": "shardio.lifecycle",
    "commit": "shardio.catalog",
    "convert_dataset": "shardio.convert",
    "export_dataset": "shardio.convert",
    "from_arrow": "shardio.convert",
    "from_generator": "shardio.convert",
    "from_pandas": "shardio.convert",
    "from_polars": "shardio.convert",
    "gc": "shardio.catalog",
    "join": "shardio.reader",
    "log": "shardio.catalog",
    "mix": "shardio.streaming",
    "open": "shardio.reader",
    "open_shard": "shardio.reader",
    "pack": "shardio.packing",
    "pack_columns": "shardio.packing",
    "pack_dataset": "shardio.convert",
    "plan_report": "shardio.streaming",
    "repair": "shardio.lifecycle",
    "stream": "shardio.streaming",
    "unpack": "shardio.packing",
    "verify": "shardio.maintenance",
    "write_dataset": "shardio.parallel",
}
_notebook: Any = None
_MODULES = ("codecs", "errors", "jax", "torch", "v1")

__all__ = [
    "BenchReport",
    "CacheOptions",
    "CenterCrop",
    "ChangeReport",
    "CompactReport",
    "ConvertReport",
    "DatasetDict",
    "DatasetReader",
    "DatasetWriter",
    "DeleteReport",
    "DiffReport",
    "EraseReport",
    "ExportReport",
    "Feature",
    "Finding",
    "GcReport",
    "ImageOptions",
    "KeysReport",
    "Limits",
    "Location",
    "Mix",
    "PackDatasetReport",
    "PackReport",
    "PackedRows",
    "Permutation",
    "Plan",
    "RandomResizedCrop",
    "RepairReport",
    "Schema",
    "SchemaReport",
    "ShardReader",
    "ShardWriter",
    "ShardioError",
    "Stream",
    "StreamOptions",
    "TableReport",
    "VerifyReport",
    "Version",
    "adopt",
    "audit",
    "bench",
    "build_keys",
    "build_table",
    "codecs",
    "commit",
    "compact",
    "convert_dataset",
    "delete",
    "diff",
    "errors",
    "export_dataset",
    "from_arrow",
    "from_generator",
    "from_pandas",
    "from_polars",
    "gc",
    "join",
    "log",
    "mix",
    "open",
    "open_shard",
    "pack",
    "pack_columns",
    "pack_dataset",
    "plan_report",
    "remove_split",
    "rename_split",
    "repair",
    "restore",
    "set_schema",
    "stream",
    "tag",
    "tags",
    "unpack",
    "untag",
    "verify",
    "write_dataset",
]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        value = getattr(importlib.import_module(_PLACES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"shardio.{name}")
    else:
        message = f"module 'shardio' has no attribute {name!r}"
        raise AttributeError(message)
    globals()[name] = value
    return value


def load_ipython_extension(ipython: Any) -> None:
    """Show records and batches as tables in notebooks: `%load_ext shardio`."""
    global _notebook  # noqa: PLW0603 - IPython loads an extension once in a process
    from shardio.display import Notebook

    _notebook = Notebook(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Show them as IPython does: `%unload_ext shardio`."""
    del ipython
    if _notebook is not None:
        _notebook.close()


def __dir__() -> list[str]:
    # The names of `__all__`, and the modules that load only when they are asked for.
    return sorted({*__all__, *_MODULES})
