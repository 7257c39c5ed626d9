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
from shardio_indexer._sniff import format_of_name, may_be_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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
        doubtful: of the shards, those whose names do not say that they are any.
        ignored: URLs of what was found and is no shard by its name.
        looked: what was searched, to tell which objects are gone.
    """

    shards: dict[Place, Found] = field(default_factory=dict)
    folders: list[Place] = field(default_factory=list)
    missing: list[Exception] = field(default_factory=list)
    doubtful: set[Place] = field(default_factory=set)
    ignored: list[str] = field(default_factory=list)
    looked: list[Looked] = field(default_factory=list)

    def lacks(self, place: Place) -> bool:
        """Tell whether an object would have been found if it were there."""
        return any(looked.lacks(place) for looked in self.looked)


@dataclass(frozen=True)
class Looked:
    """One look at a store.

    Attributes:
        folder: below which objects were listed.
        there: the keys that were found.
        matches: tells of a key whether the look was for it.
    """

    folder: Place
    there: frozenset[str]
    matches: Callable[[str], object]

    def lacks(self, place: Place) -> bool:
        """Tell whether this look was for an object, and it is not there."""
        key = place.below(self.folder)
        return key is not None and key not in self.there and bool(self.matches(key))


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


def _add(search: Search, folder: Place, info: ObjectInfo, *, key: str | None = None) -> Place:
    place = Place(folder.scheme, (*folder.parts, *(key or info.key).split("/")))
    search.shards.setdefault(place, Found(place, info.size, info.stamp or "unknown"))
    return place


def _add_names(
    search: Search, folder: Place, wanted: list[str], storage_options: Mapping[str, Any] | None
) -> None:
    """Add objects by name; what is no object is looked at as a folder."""
    store = _connect(folder, storage_options)
    listed: dict[str, ObjectInfo] | None = None
    absent: set[str] = set()
    if len(wanted) > _MOST_HEADS and store.can_list:
        listed = {info.key: info for info in store.list(linked=True) if "/" not in info.key}
    found = False
    for name in dict.fromkeys(wanted):
        key = urllib.parse.unquote(name) if folder.is_web else name
        info = listed.get(key) if listed is not None else store.head(key)
        if info is not None:
            found = True
            _add(search, folder, info, key=name)
        elif store.can_list:
            absent.add(key)
            _add_folder(search, Place(folder.scheme, (*folder.parts, name)), storage_options)
        else:
            absent.add(key)
            search.missing.append(NotFoundError("there is no such shard", url=store.url_of(key)))
    if found:
        search.folders.append(folder)
    if absent:
        search.looked.append(Looked(folder, frozenset(), absent.__contains__))


def _add_folder(search: Search, folder: Place, storage_options: Mapping[str, Any] | None) -> None:
    """Add every shard below a folder whose name says what it is."""
    store = _connect(folder, storage_options)
    count = len(search.shards)
    infos = list(store.list(linked=True))
    search.looked.append(Looked(folder, frozenset(info.key for info in infos), bool))
    for info in infos:
        if _is_ours(info.key):
            continue
        hidden = info.key.rpartition("/")[2].startswith(".")
        if not hidden and format_of_name(info.key) not in (None, "text"):
            _add(search, folder, info)
        elif not hidden and may_be_shard(info.key):
            search.doubtful.add(_add(search, folder, info))
        else:
            search.ignored.append(store.url_of(info.key))
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
    count = len(search.shards)
    there = set()
    for info in store.list(literal, linked=True):
        if not matches(info.key) or _is_ours(info.key):
            continue
        there.add(info.key)
        if info.key.endswith(_INDEXES) or info.key.rpartition("/")[2] == "METADATA":
            search.ignored.append(store.url_of(info.key))
            continue
        _add(search, folder, info)
    search.looked.append(Looked(folder, frozenset(there), matches))
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
