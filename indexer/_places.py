"""From what a caller typed to the objects that are meant: folders, names, globs, braces, lists.

A URL is taken apart as text.  Only the part before the first glob character is ever opened, and what a store
lists is compared with the pattern here, so no filesystem expands anything.
"""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from shardio.errors import NotFoundError, StorageError
from shardio.storage import connect
from shardio_indexer._braces import expand_braces
from shardio_indexer._glob import MAGIC, glob_expression
from shardio_indexer._place import Place
from shardio_indexer._sniff import format_of_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardio.storage import ObjectInfo, Store

__all__ = ["Found", "Search", "explain_listing", "find_shards", "read_list"]

_MOST_HEADS = 8
_LIST_BYTES = 256 << 20
_INDEXES = (".shardidx", ".idx", ".index")
_OWN = "_shardio"


class Found(NamedTuple):
    """One object.

    Attributes:
        place: where it lies.
        size: bytes.
        stamp: ETag, generation or mtime; "unknown" where the server tells none.
    """

    place: Place
    size: int
    stamp: str


@dataclass
class Search:
    """What a search found.

    Attributes:
        shards: the objects, each once, in the order of the patterns and by rising name within each.
        folders: the folder that each pattern begins in.
        missing: one error a pattern that matches nothing.
        notes: what deserves a word.
    """

    shards: dict[Place, Found] = field(default_factory=dict)
    folders: list[Place] = field(default_factory=list)
    missing: list[Exception] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_list(name: str, *, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Return the lines of a list of URLs, without blank lines and those that begin with `#`.

    Raises:
        NotFoundError, StorageError: the list cannot be read.
    """
    place = Place.parse(name)
    folder, key = Place(place.scheme, place.parts[:-1]), place.parts[-1]
    store = connect(folder.url, storage_options=storage_options if place.scheme else None)
    lines = store.get(key, max_bytes=_LIST_BYTES).decode("utf-8-sig").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def find_shards(urls: Iterable[str], *, storage_options: Mapping[str, Any] | None = None) -> Search:
    """Find the objects that URLs, globs, braces and `@lists` stand for.

    Raises:
        StorageError: a store cannot be listed, or did not answer.
        ValueError: a URL makes no sense.
    """
    search = Search()
    names: dict[Place, list[str]] = {}
    for url in _expand(urls, storage_options):
        place = Place.parse(url)
        magic = next((k for k, part in enumerate(place.parts) if MAGIC.search(part)), None)
        if magic is None or _is_object(place, storage_options):
            folder = Place(place.scheme, place.parts[:-1])
            if len(place.parts) == 1:
                _add_folder(search, place, storage_options)
            else:
                names.setdefault(folder, []).append(place.parts[-1])
            continue
        if place.is_web:
            message = f"{url}: a web server cannot be listed; give the URLs in a file, as @list.txt"
            raise ValueError(message)
        _add_matches(search, Place(place.scheme, place.parts[:magic]), place.parts[magic:], storage_options)
    for folder, wanted in names.items():
        _add_names(search, folder, wanted, storage_options)
    return search


def _expand(urls: Iterable[str], storage_options: Mapping[str, Any] | None) -> Iterable[str]:
    for url in urls:
        if url.startswith("@"):
            for line in read_list(url[1:], storage_options=storage_options):
                yield from expand_braces(line)
        else:
            yield from expand_braces(url)


def _connect(place: Place, storage_options: Mapping[str, Any] | None) -> Store:
    return connect(place.url, storage_options=storage_options if place.scheme else None)


def _is_object(place: Place, storage_options: Mapping[str, Any] | None) -> bool:
    """Tell whether a name with glob characters is just a name."""
    if len(place.parts) < 2:
        return False
    folder = Place(place.scheme, place.parts[:-1])
    return _connect(folder, storage_options).head(place.below(folder) or "") is not None


def _add(search: Search, folder: Place, info: ObjectInfo, *, key: str | None = None) -> None:
    place = Place(folder.scheme, (*folder.parts, *(key or info.key).split("/")))
    search.shards.setdefault(place, Found(place, info.size, info.stamp or "unknown"))


def _add_names(
    search: Search, folder: Place, wanted: list[str], storage_options: Mapping[str, Any] | None
) -> None:
    """Add objects by name; what is no object is looked at as a folder."""
    store = _connect(folder, storage_options)
    listed: dict[str, ObjectInfo] | None = None
    if len(wanted) > _MOST_HEADS and store.can_list:
        listed = {info.key: info for info in store.list() if "/" not in info.key}
    found = False
    for name in dict.fromkeys(wanted):
        key = urllib.parse.unquote(name) if folder.is_web else name
        info = listed.get(key) if listed is not None else store.head(key)
        if info is not None:
            found = True
            _add(search, folder, info, key=name)
        elif store.can_list:
            _add_folder(search, Place(folder.scheme, (*folder.parts, name)), storage_options)
        else:
            search.missing.append(NotFoundError("there is no such shard", url=store.url_of(key)))
    if found:
        search.folders.append(folder)


def _add_folder(search: Search, folder: Place, storage_options: Mapping[str, Any] | None) -> None:
    """Add every shard below a folder whose name says what it is."""
    store = _connect(folder, storage_options)
    count = len(search.shards)
    infos = list(store.list())
    for info in infos:
        if not _is_ours(info.key) and format_of_name(info.key) not in (None, "text"):
            _add(search, folder, info)
    if len(search.shards) == count:
        found = f"{len(infos)} other files" if infos else "nothing"
        advice = "check the address, or name the files with a pattern"
        what = "there are no shards of a known kind"
        search.missing.append(NotFoundError(what, url=store.url, found=found, advice=advice))
    else:
        search.folders.append(folder)


def _add_matches(
    search: Search, folder: Place, parts: tuple[str, ...], storage_options: Mapping[str, Any] | None
) -> None:
    """Add what a glob matches below a folder."""
    if not folder.parts:
        raise ValueError(f"{folder.url}{'/'.join(parts)}: a pattern must begin below a bucket or a folder")
    store = _connect(folder, storage_options)
    matches = re.compile(glob_expression(parts)).fullmatch
    literal = MAGIC.split(parts[0])[0]
    skipped = 0
    count = len(search.shards)
    for info in store.list(literal):
        if not matches(info.key) or _is_ours(info.key):
            continue
        if info.key.endswith(_INDEXES) or info.key.rpartition("/")[2] == "METADATA":
            skipped += 1
            continue
        _add(search, folder, info)
    if skipped:
        search.notes.append(f"{skipped} indexes of other programs were not taken for shards")
    if len(search.shards) == count:
        what = "the pattern matches nothing"
        url = f"{folder.url}/{'/'.join(parts)}"
        search.missing.append(
            NotFoundError(what, url=url, advice="check the address; quote it for the shell")
        )
    else:
        search.folders.append(folder)


def _is_ours(key: str) -> bool:
    return key.endswith(".shardidx") or _OWN in key.split("/")


def explain_listing(error: StorageError) -> StorageError:
    """Return the error for a bucket that may not be listed, with what to do instead."""
    advice = "if it may be read but not listed, give the shards by name, or their URLs in a file: @list.txt"
    located = StorageError(error.what, **{**error.fields(), "advice": advice})
    located.__cause__ = error
    return located
