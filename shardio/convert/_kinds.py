"""What kind of source is at a place: the kind whose claim on its files ranks first, see `shardio.sources`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardio.convert._codewithgpu import CodeWithGpu
from shardio.convert._csv import CsvTables, TsvTables
from shardio.convert._datasets import load_by_datasets
from shardio.convert._images import ImageFolder
from shardio.convert._jsonl import JsonLines
from shardio.convert._listing import ListSource
from shardio.convert._mds import MdsFolder
from shardio.convert._megatron import MegatronDataset
from shardio.convert._parquet import ArrowFiles, ArrowTable, HuggingFaceDataset
from shardio.convert._registry import Registry
from shardio.convert._text import TextFiles
from shardio.convert._tfds import TfdsDataset
from shardio.convert._tfrecord import ShardioDataset, ShardioValues, TfRecords
from shardio.convert._torchrecord import TorchRecord
from shardio.convert._webdataset import WebDataset
from shardio.errors import FormatError
from shardio.formats import Claim, FileSource, ForeignSource, Score, SourceOptions, found_at
from shardio.sources import Listing, claim_other, kind_of_name, rank_claims

_SOURCES: dict[str, type[ForeignSource]] = {
    "images": ImageFolder,
    "list": ListSource,
    "csv": CsvTables,
    "tsv": TsvTables,
    "jsonl": JsonLines,
    "text": TextFiles,
    "parquet": ArrowFiles,
    "arrow": ArrowFiles,
    "webdataset": WebDataset,
    "mds": MdsFolder,
    "megatron": MegatronDataset,
    "torchrecord": TorchRecord,
    "codewithgpu": CodeWithGpu,
    "tfrecord": TfRecords,
    "tfds": TfdsDataset,
    "datasets": HuggingFaceDataset,
    "shardio": ShardioDataset,
}
REGISTRY = Registry("shardio.sources", _SOURCES, FileSource)


def source_kinds() -> tuple[str, ...]:
    """Return the names of the kinds of sources, those that other packages register last."""
    return REGISTRY.kinds()


def open_source(place: Any, kind: str | None, options: SourceOptions) -> ForeignSource:
    """Return the source at a place.

    Args:
        place: name of a file or folder, a pattern, an `@list`, several of them, or a list of items.
        kind: its kind, or None to tell by the names of what is there.
        options: what the caller says about it.

    Raises:
        ValueError: no such kind, or it cannot be told.
        NotFoundError: there is nothing.
        TypeError: a stream of Hugging Face's `datasets`.
    """
    if HuggingFaceDataset.takes(place):
        if kind not in (None, HuggingFaceDataset.kind):
            message = f"kind={kind!r}: this is a dataset of Hugging Face's `datasets`; leave kind= out"
            raise ValueError(message)
        return HuggingFaceDataset(place, options)
    if ArrowTable.takes(place):
        if kind not in (None, ArrowTable.kind):
            raise ValueError(f"kind={kind!r}: this is a table in memory; leave kind= out")
        return ArrowTable(place, options)
    if isinstance(place, Path):
        place = os.fspath(place)
    elif isinstance(place, Sequence) and not isinstance(place, str):
        place = [os.fspath(each) if isinstance(each, Path) else each for each in place]
    if kind is None:
        kind = _detect_kind(place, options)
    if kind == HuggingFaceDataset.kind:
        return HuggingFaceDataset(load_by_datasets(place, options.storage_options), options)
    source: ForeignSource = REGISTRY.get(kind)(place, options)
    if isinstance(source, ShardioDataset) and source.reader.source.holds_objects:
        return ShardioValues(place, options)
    return source


def _detect_kind(place: Any, options: SourceOptions) -> str:
    if isinstance(place, str):
        kind = _choose(place, options).kind
        return "list" if options.fn is not None and kind in ("csv", "tsv", "text") else kind
    if options.fn is not None:
        return "list"
    endings = {kind_of_name(each) if isinstance(each, str) else None for each in place}
    if endings & {None, "images", "list"} and any(map(_stands_for_files, place)):
        endings = {_choose(place, options).kind}
    only = endings.pop() if len(endings) == 1 else None
    # Names of images are the items of a list.
    return "list" if only is None or only == "images" else only


def _stands_for_files(item: Any) -> bool:
    """Tell whether one of several is not an item of a list: `@names`, or a pattern."""
    return isinstance(item, str) and (item.startswith("@") or any(mark in item for mark in "*?[{"))


def _choose(place: Any, options: SourceOptions) -> Claim:
    """Return the highest-ranked claim on the files at a place.

    Raises:
        FormatError: it is of a kind that is not read.
        ValueError: two kinds claim it alike, or none does; or there is a dataset of shardio's within it.
    """
    listings = found_at(place, options)
    unnamed = [url for listing in listings for url in listing.bad_names]
    if unnamed and not any(listing.files for listing in listings):
        raise FormatError("the name is not UTF-8 text", url=unnamed[0], advice="rename it")
    claims = rank_claims(
        [source.claim for source in dict.fromkeys(_SOURCES.values())], listings, options.peek
    )
    if not claims or claims[0].score < Score.DATASET:
        _refuse_inner(place, listings)
    if not claims or claims[0].score < Score.TABLE:
        # Packages of others are imported where no kind of shardio's own is certain.
        others = [source.claim for source in REGISTRY.others()]
        claims += rank_claims([*others, claim_other], listings, options.peek)
        claims.sort(key=lambda claim: -claim.score)
    best = [claim for claim in claims if claim.score == claims[0].score]
    if len(best) == 1:
        (claim,) = best
        if not claim.kind:
            what = f"this is {claim.reason}, which is not converted as it is"
            raise FormatError(what, url=claim.files[0].url, advice=claim.advice)
        return claim
    found = f" (there are {', '.join(claim.kind for claim in best)})" if best else ""
    raise ValueError(
        f"{place}: the kind of this source is not clear from its file names{found}"
        f'; give kind=, one of {", ".join(REGISTRY.kinds())}: "datasets" reads HDF5, XML, audio and video'
    )


def _refuse_inner(place: Any, listings: Sequence[Listing]) -> None:
    """Refuse a folder that holds a dataset of shardio's."""
    files = (file.url for listing in listings for file in listing.files)
    inside = next((url for url in files if "/_shardio/manifests/" in url), None)
    if inside is not None:
        dataset = inside.partition("/_shardio/manifests/")[0]
        raise ValueError(
            f"{place}: there is a dataset of shardio within it, {dataset}: convert that, or name the other "
            "files by a pattern"
        )
