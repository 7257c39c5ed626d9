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
    from shardio import codecs as codecs, errors as errors
    from shardio.adoption import adopt as adopt
    from shardio.catalog import Version as Version, commit as commit, gc as gc, log as log
    from shardio.codecs import (
        CenterCrop as CenterCrop,
        ImageOptions as ImageOptions,
        RandomResizedCrop as RandomResizedCrop,
    )
    from shardio.convert import (
        convert_dataset as convert_dataset,
        export_dataset as export_dataset,
        from_arrow as from_arrow,
        from_generator as from_generator,
        from_pandas as from_pandas,
        from_polars as from_polars,
        pack_dataset as pack_dataset,
    )
    from shardio.errors import ShardioError as ShardioError
    from shardio.format import Limits as Limits
    from shardio.joins import join as join
    from shardio.keys import build_keys as build_keys
    from shardio.lifecycle import (
        compact as compact,
        delete as delete,
        diff as diff,
        erase as erase,
        remove_split as remove_split,
        rename_split as rename_split,
        repair as repair,
        restore as restore,
        set_schema as set_schema,
        tag as tag,
        tags as tags,
        untag as untag,
    )
    from shardio.maintenance import fill_cache as fill_cache, verify as verify
    from shardio.metadata import Feature as Feature, Schema as Schema
    from shardio.order import Plan as Plan
    from shardio.packing import pack as pack, pack_columns as pack_columns, unpack as unpack
    from shardio.parallel import WriteSession as WriteSession, write_dataset as write_dataset
    from shardio.reader import (
        DatasetDict as DatasetDict,
        DatasetReader as DatasetReader,
        Location as Location,
        ShardReader as ShardReader,
        Span as Span,
        open as open,  # noqa: A004 - the public name
        open_shard as open_shard,
    )
    from shardio.storage import Address as Address, CacheOptions as CacheOptions
    from shardio.streaming import (
        Stream as Stream,
        StreamOptions as StreamOptions,
        audit as audit,
        bench as bench,
        mix as mix,
        plan_report as plan_report,
        stream as stream,
    )
    from shardio.tables import build_table as build_table
    from shardio.writer import DatasetWriter as DatasetWriter, ShardWriter as ShardWriter

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
    "shardio.joins": "join",
    "shardio.keys": "build_keys",
    "shardio.lifecycle": (
        "compact delete diff erase remove_split rename_split repair restore set_schema tag tags untag"
    ),
    "shardio.maintenance": "fill_cache verify",
    "shardio.metadata": "Feature Schema",
    "shardio.order": "Plan",
    "shardio.packing": "pack pack_columns unpack",
    "shardio.parallel": "WriteSession write_dataset",
    "shardio.reader": "DatasetDict DatasetReader Location ShardReader Span open open_shard",
    "shardio.storage": "Address CacheOptions",
    "shardio.streaming": "Stream StreamOptions audit bench mix plan_report stream",
    "shardio.tables": "build_table",
    "shardio.writer": "DatasetWriter ShardWriter",
    "shardio.adoption": "adopt",
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
