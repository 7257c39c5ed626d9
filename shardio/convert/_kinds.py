"""What kind of source is at a place: told by index files and by names, and of tables by their columns."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardio.convert._codewithgpu import CodeWithGpu
from shardio.convert._csv import CsvTables, TsvTables, first_rows
from shardio.convert._datasets import load_by_datasets
from shardio.convert._images import ImageFolder
from shardio.convert._jsonl import JsonLines
from shardio.convert._listing import ListSource, names_images
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
from shardio.formats import File, FileSource, ForeignSource, SourceOptions, found_at, read_whole
from shardio.sources import FoundFile, Listing, find_other, find_tfds, is_nameless, kind_of_bytes

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


# Kinds that the name of a file tells. An `.idx` may be of anything, and tables and text may be data or lists.
_MOST_HEADS = 16
_BY_NAME: dict[str, type[FileSource]] = {
    "images": ImageFolder, "csv": CsvTables, "tsv": TsvTables, "jsonl": JsonLines, "text": TextFiles,
    "parquet": ArrowFiles, "webdataset": WebDataset, "tfrecord": TfRecords,
}  # fmt: skip


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
    if not isinstance(place, str):
        names = options.fn is None and all(isinstance(each, str) for each in place)
        endings = {_by_ending(each) for each in place} if names else set()
        if endings & {None, "images", "list"} and any(map(_stands_for_files, place)):
            endings = {_of_names(place, options)}
        kind = endings.pop() if len(endings) == 1 else None
        return "list" if kind is None or kind == "images" else kind
    return _of_names(place, options)


def _stands_for_files(text: str) -> bool:
    """Tell whether a text among several is not an item of a list: `@names`, or a pattern."""
    return text.startswith("@") or any(mark in text for mark in "*?[{")


def _of_names(place: Any, options: SourceOptions) -> str:
    listings = found_at(place, options)
    found = [file for listing in listings for file in listing.files]
    unnamed = [url for listing in listings for url in listing.bad_names]
    if unnamed and not found:
        raise FormatError("the name is not UTF-8 text", url=unnamed[0], advice="rename it")
    if any(file.key.startswith("_shardio/manifests/") for file in found):
        return "shardio"
    inside = next((file.url for file in found if "/_shardio/manifests/" in file.key), None)
    if inside is not None:
        dataset = inside.partition("/_shardio/manifests/")[0]
        raise ValueError(
            f"{place}: there is a dataset of shardio within it, {dataset}: convert that, or name the other "
            "files by a pattern"
        )
    found = [file for listing in listings for file in listing.data]
    names = {file.key.rpartition("/")[2] for file in found}
    if "dataset_info.json" in names and any(find_tfds(each, options.storage_options) for each in listings):
        return "tfds"
    by_url = {file.url: file for file in found}

    def read(url: str) -> bytes:
        file = by_url[url]
        return read_whole(file.root, file.key, options.storage_options, max_bytes=64 << 20)

    for own, source in _SOURCES.items():
        if source.recognises(list(by_url), read):
            return own
    single = [listing.kind for listing in listings] == ["file"]
    if single and found[0].key.lower().endswith(".txt") and options.fn is not None:
        return "list"
    kinds = Counter(kind for file in found if (kind := _by_ending(file.key)) is not None)
    # Text, lists and tables often are beside data of other kinds: as notes, labels and licences.
    sets = ({"text", "list", "csv", "tsv"}, {"text"}, set[str]())
    main = next((rest for beside in sets if (rest := [kind for kind in kinds if kind not in beside])), [])
    if {*main} <= sets[0]:
        kind = _of_bytes(listings, options) or (
            _of_others(listings, options) if main in ([], ["text"]) else None
        )
        if kind is not None:
            return kind
    if main in (["csv"], ["tsv"]):
        return _of_tables([file for file in found if _by_ending(file.key) in main], main[0], options)
    if len(main) == 1:
        return main[0]
    others = REGISTRY.others_taking(list(by_url), read) if not main else []
    if len(others) == 1:
        return others[0]
    main += others
    raise ValueError(
        f"{place}: what kind of source this is cannot be told by its names"
        + (f" (there are {', '.join(main)})" if main else "")
        + f'; give kind=, one of {", ".join(REGISTRY.kinds())}: "datasets" reads HDF5, XML, audio and video'
    )


def _of_bytes(listings: Sequence[Listing], options: SourceOptions) -> str | None:
    """Return the kind of source that files are by their first bytes whose names tell nothing, or None.

    Of a folder only names without an ending are looked at; what is named or matched is meant.
    """
    for listing in listings:
        meant = listing.kind != "folder" and not any(_by_ending(file.key) for file in listing.data)
        silent = [file for file in listing.data if meant or is_nameless(file.key)]
        for file in silent[:_MOST_HEADS]:
            kind = kind_of_bytes(file.root, file.key, options.storage_options)
            if kind is not None:
                return kind
    return None


def _of_others(listings: Sequence[Listing], options: SourceOptions) -> str | None:
    """Return the kind of source that a file is by its first bytes, or say what it is."""
    for listing in listings:
        found = find_other(listing, options.storage_options)
        if found is None:
            continue
        file, other = found
        if other.source is None:
            what = f"this is {other.name}, which is not converted as it is"
            raise FormatError(what, url=file.url, advice=other.way)
        return other.source
    return None


def _of_tables(files: Sequence[FoundFile], kind: str, options: SourceOptions) -> str:
    """Return "list" where a function takes the rows, or where the one file names images; else the kind."""
    if options.fn is not None:
        return "list"
    if len(files) > 1:
        return kind
    (file,) = files
    rows = first_rows(File(file.root, file.key, file.size, file.key), options, tabs=kind == "tsv")
    return "list" if len(rows) == 2 and names_images(*rows) else kind


def _by_ending(key: str) -> str | None:
    if key.lower().endswith(".lst"):
        return "list"
    return next((kind for kind, source in _BY_NAME.items() if source.fits(key)), None)
