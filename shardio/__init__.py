"""Training data in plain TFRecord shards: verified, random-access, shuffled, exactly resumable.

Write with `DatasetWriter`, read with `open`, train with `stream` or `shardio.torch`; TensorFlow is not
needed. Names are loaded when they are first used, so importing shardio starts nothing and needs neither
protobuf nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# What editors and checkers of types see; `_OFFERED` has the same names for when they are first used.
if TYPE_CHECKING:
    from shardio import codecs as codecs
    from shardio import errors as errors
    from shardio.catalog import Version as Version
    from shardio.catalog import commit as commit
    from shardio.catalog import gc as gc
    from shardio.catalog import log as log
    from shardio.codecs import CenterCrop as CenterCrop
    from shardio.codecs import ImageOptions as ImageOptions
    from shardio.codecs import RandomResizedCrop as RandomResizedCrop
    from shardio.convert import convert_dataset as convert_dataset
    from shardio.convert import export_dataset as export_dataset
    from shardio.convert import from_arrow as from_arrow
    from shardio.convert import from_generator as from_generator
    from shardio.convert import from_pandas as from_pandas
    from shardio.convert import from_polars as from_polars
    from shardio.convert import pack_dataset as pack_dataset
    from shardio.errors import ShardioError as ShardioError
    from shardio.format import Limits as Limits
    from shardio.lifecycle import build_keys as build_keys
    from shardio.lifecycle import build_table as build_table
    from shardio.lifecycle import compact as compact
    from shardio.lifecycle import delete as delete
    from shardio.lifecycle import diff as diff
    from shardio.lifecycle import remove_split as remove_split
    from shardio.lifecycle import rename_split as rename_split
    from shardio.lifecycle import repair as repair
    from shardio.lifecycle import restore as restore
    from shardio.lifecycle import set_schema as set_schema
    from shardio.lifecycle import tag as tag
    from shardio.lifecycle import tags as tags
    from shardio.lifecycle import untag as untag
    from shardio.maintenance import fill_cache as fill_cache
    from shardio.maintenance import verify as verify
    from shardio.metadata import Feature as Feature
    from shardio.metadata import Schema as Schema
    from shardio.order import Plan as Plan
    from shardio.packing import pack as pack
    from shardio.packing import pack_columns as pack_columns
    from shardio.packing import unpack as unpack
    from shardio.parallel import write_dataset as write_dataset
    from shardio.reader import DatasetDict as DatasetDict
    from shardio.reader import DatasetReader as DatasetReader
    from shardio.reader import Location as Location
    from shardio.reader import ShardReader as ShardReader
    from shardio.reader import join as join
    from shardio.reader import open as open  # noqa: A004 - the public name
    from shardio.reader import open_shard as open_shard
    from shardio.storage import CacheOptions as CacheOptions
    from shardio.streaming import Stream as Stream
    from shardio.streaming import StreamOptions as StreamOptions
    from shardio.streaming import audit as audit
    from shardio.streaming import bench as bench
    from shardio.streaming import mix as mix
    from shardio.streaming import plan_report as plan_report
    from shardio.streaming import stream as stream
    from shardio.writer import DatasetWriter as DatasetWriter
    from shardio.writer import ShardWriter as ShardWriter
    from shardio_indexer import adopt as adopt

__version__ = "0.1.0"

# Where each name is.
_OFFERED = {
    "shardio.catalog": "Version commit gc log",
    "shardio.codecs": "CenterCrop ImageOptions RandomResizedCrop",
    "shardio.convert": (
        "convert_dataset export_dataset from_arrow from_generator from_pandas from_polars pack_dataset"
    ),
    "shardio.errors": "ShardioError",
    "shardio.format": "Limits",
    "shardio.lifecycle": (
        "build_keys build_table compact delete diff remove_split rename_split repair restore set_schema tag "
        "tags untag"
    ),
    "shardio.maintenance": "fill_cache verify",
    "shardio.metadata": "Feature Schema",
    "shardio.order": "Plan",
    "shardio.packing": "pack pack_columns unpack",
    "shardio.parallel": "write_dataset",
    "shardio.reader": "DatasetDict DatasetReader Location ShardReader join open open_shard",
    "shardio.storage": "CacheOptions",
    "shardio.streaming": "Stream StreamOptions audit bench mix plan_report stream",
    "shardio.writer": "DatasetWriter ShardWriter",
    "shardio_indexer": "adopt",
}
_PLACES = {name: module for module, names in _OFFERED.items() for name in names.split()}
# What users of other libraries try.
_ELSEWHERE = {
    **dict.fromkeys(("load", "load_dataset", "load_from_disk", "read"), "shardio.open(url) opens a dataset"),
    **dict.fromkeys(
        ("from_csv", "from_dict", "from_json", "from_list", "from_parquet", "read_csv", "read_parquet"),
        "shardio.convert_dataset(source, url) takes files, shardio.from_generator values in memory",
    ),
    **dict.fromkeys(
        ("concatenate_datasets", "interleave_datasets"), "shardio.mix draws from several datasets"
    ),
    **dict.fromkeys(("DataLoader", "StreamingDataLoader", "StreamingDataset"), "it is in shardio.torch"),
    "Dataset": "shardio.open(url) returns a DatasetReader",
    "Writer": "shardio.DatasetWriter(url, schema=...)",
}
_notebook: Any = None
_MODULES = ("codecs", "errors", "jax", "torch", "v1")

if not TYPE_CHECKING:
    __all__ = list(_PLACES)
    __all__ += ["codecs", "errors"]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        value = getattr(importlib.import_module(_PLACES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"shardio.{name}")
    else:
        from shardio.arguments import no_attribute

        raise no_attribute("module 'shardio'", name, __dir__(), _ELSEWHERE.get(name))
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
    # All that is offered, and the modules that load only when they are asked for.
    return sorted({*_PLACES, *_MODULES})
