"""Which files are shards, which split each belongs to, and where the dataset goes.

The dataset goes beside its shards, where the caller says, or to the cache folder of the user where the
place of the shards cannot be written.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import sys
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from shardio.adoption._commit import known_as
from shardio.adoption._shard import FoundShard
from shardio.catalog import Catalog, check_place
from shardio.errors import NotFoundError, ShardioError, UnsafeNameError
from shardio.metadata import ShardEntry, naming
from shardio.sources import (
    Division,
    FoundFile,
    Listing,
    MdsShard,
    Peek,
    SplitRules,
    SplitUrl,
    TfdsFolder,
    TfdsSplitFile,
    check_sets,
    claim_files,
    claim_other,
    common_folder,
    find_files,
    folder_of,
    format_of_name,
    is_data,
    is_mds_name,
    left_notes,
    rank_claims,
    refuse_compressed,
    same_columns,
    told_splits,
)
from shardio.storage import RemoteStore, Store, connect

# Kinds that a framer cuts where they are; lines of text are taken where they are named.
_FRAMED = [
    partial(claim_files, kind) for kind in ("tfrecord", "webdataset", "jsonl", "codewithgpu", "mds", "tfds")
]
_INDEXES = (".shardidx", ".idx", ".index")
# Names of files that describe shards and are beside them.
_DESCRIPTIONS = (*_INDEXES, ".md", ".json", ".labels.txt", ".md5", ".sha256", "METADATA", "README", "LICENSE")


@dataclass
class ShardSearch:
    """What a search found.

    Attributes:
        shards: the files, each once, in the order of the patterns and by rising name within each.
        folders: the folder that each pattern begins in.
        unmatched: what matches nothing, or has a bad name, with the error that says so.
        ignored: URLs of what was found and is not a shard by its name.
        listings: what was searched, to tell which files are gone.
        tfds: what a folder of TensorFlow Datasets says of its files, where one was searched.
        told: of the shards, what that says of each.
        mds: of the shards, what an `index.json` of MDS says of each.
        notes: on files that are not taken although a caller may think that they are.
    """

    shards: dict[SplitUrl, FoundFile] = field(default_factory=dict)
    folders: list[SplitUrl] = field(default_factory=list)
    unmatched: list[tuple[Listing, Exception]] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    listings: list[Listing] = field(default_factory=list)
    tfds: TfdsFolder | None = None
    told: dict[SplitUrl, TfdsSplitFile] = field(default_factory=dict)
    mds: dict[SplitUrl, MdsShard] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def nothing(self) -> Exception:
        """The error where no shard was found."""
        return self.unmatched[0][1] if self.unmatched else NotFoundError("there is nothing to adopt")

    @property
    def mds_columns(self) -> list[tuple[str, str, int | None]] | None:
        """Name, encoding and size of the columns of samples; None where there is no MDS."""
        return same_columns(list(self.mds.values())) if self.mds else None

    def listings_without(self, place: SplitUrl) -> list[Listing]:
        """Return what would have found a file if it were there."""
        return [listing for listing in self.listings if listing.lacks(place)]


def find_shards(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    storage_options: Mapping[str, Any] | None = None,
    follow_links: bool = False,
    format: str | None = None,  # noqa: A002 - as in `ScanOptions`
) -> ShardSearch:
    """Find the shards that names, folders, patterns, braces and `@lists` stand for.

    A file that is named is a shard. A pattern takes what it matches but for indexes, hidden files and
    clutter; a folder takes the files whose names say that they are shards, or may be.

    Raises:
        NotFoundError: a list of names does not exist.
        FormatError: the description of a dataset of TensorFlow Datasets cannot be read.
        StorageError: a store cannot be listed, or did not answer.
        ValueError: a URL makes no sense, or there are several datasets of TensorFlow Datasets.
    """
    search, peek = ShardSearch(), Peek(storage_options)
    for listing in find_files(urls, storage_options=storage_options, follow_links=follow_links):
        search.listings.append(listing)
        search.notes += [*left_notes(listing), *peek.notes(listing)]
        search.ignored += listing.links
        for url in listing.bad_names:
            hidden = not is_data(url.removeprefix(listing.root.url).lstrip("/"))
            if listing.kind == "folder" and (hidden or format_of_name(url) in (None, "text")):
                search.ignored.append(url)
            else:
                search.unmatched.append((listing, _bad_name(url)))
        claimed: set[str] = set()
        # A file that is named or matched is taken; its scan finds its kind.
        for claim in rank_claims(_FRAMED, [listing], peek) if listing.kind == "folder" else ():
            if claim.kind == "tfds":
                _take_tfds(search, listing, claim.described)
            elif claim.kind == "mds":
                _take_mds(search, listing, claim.described)
            claimed.update(file.url for file in claim.files)
        if format is not None:  # the caller knows what they are
            claimed.update(file.url for file in listing.nameless)
        counting = set(listing.data)
        taken = [
            file
            for file in listing.files
            if _is_taken(search, listing, file, claimed, counts=file in counting)
        ]
        for file in taken:
            search.shards.setdefault(file.place, file)
        if taken:
            search.folders.append(listing.root)
        elif not listing.bad_names:
            search.unmatched.append((listing, listing.error or _no_shards(listing, peek)))
    return search


def _take_tfds(search: ShardSearch, listing: Listing, tfds: TfdsFolder) -> None:
    """Note what a folder of TensorFlow Datasets says of its files, and which are not there."""
    if search.tfds is not None and search.tfds.url != tfds.url:
        raise ValueError(f"{search.tfds.url} and {tfds.url} are two datasets of TFDS: adopt them one by one")
    search.tfds = tfds
    there = {file.key for file in listing.files}
    for file in tfds.files:
        key = tfds.prefix + file.name
        search.told[listing.root.join(key)] = file
        if key not in there:
            url = f"{tfds.url}/{file.name}"
            search.unmatched.append((listing, _missing(url, f"{tfds.url}/dataset_info.json")))


def _take_mds(search: ShardSearch, listing: Listing, shards: list[MdsShard]) -> None:
    """Note what indexes of MDS say of their shards, and which are not there.

    Raises:
        FormatError: they are compressed, or have different columns, and so are to be converted.
    """
    refuse_compressed(shards)
    search.unmatched += [
        (listing, _missing(each.url, each.index_url)) for each in shards if not each.is_there
    ]
    search.mds.update((listing.root.join(shard.key), shard) for shard in shards if shard.is_there)
    same_columns(list(search.mds.values()))


def _is_taken(
    search: ShardSearch, listing: Listing, file: FoundFile, claimed: Container[str], *, counts: bool
) -> bool:
    if listing.kind == "file" or file.url in claimed:
        return True
    described = search.tfds is not None and search.tfds.describes(file.key)
    if file.is_shardio or described or (search.mds and is_mds_name(file.key)):
        return False
    if counts and listing.kind == "pattern" and not file.key.endswith((*_INDEXES, "METADATA")):
        return True
    search.ignored.append(file.url)
    return False


def _missing(url: str, description: str) -> NotFoundError:
    what = "a file that a description names is not there"
    return NotFoundError(
        what, url=url, expected=f"the files of {description}", advice="fetch it, and run the command again"
    )


def _bad_name(url: str) -> UnsafeNameError:
    return UnsafeNameError(
        "a file of this name cannot stand in a dataset",
        url=url,
        expected="UTF-8 text without empty, . and .. components, control characters but the tab, and "
        "backslashes",
        advice="rename the file",
    )


def _no_shards(listing: Listing, peek: Peek) -> NotFoundError:
    other = claim_other([listing], peek)
    if other is not None:
        return NotFoundError(
            f"there are no shards of a known kind; this is {other.reason}",
            url=other.files[0].url,
            advice=other.advice,
        )
    return NotFoundError(
        "there are no shards of a known kind",
        url=listing.url,
        found=f"{len(listing.files)} other files",
        advice="check the address, or name the files with a pattern",
    )


class AdoptTarget(NamedTuple):
    """The dataset's own place.

    Attributes:
        place: its address.
        store: what writes there.
        options: storage options of it.
        note: why it is somewhere else than beside the shards, or "".
    """

    place: SplitUrl
    store: Store
    options: Mapping[str, Any] | None
    note: str


def choose_target(
    search: ShardSearch,
    into: str | None,
    *,
    storage_options: Mapping[str, Any] | None,
    into_options: Mapping[str, Any] | None,
) -> AdoptTarget:
    """Choose the dataset's place: what the caller says, the folder of the shards, or the user's cache.

    Raises:
        ShardioError: no shard was found, and there is no dataset that might have had any.
        ValueError: the shards have no folder in common, or that holds other files too, and the caller names
            no other one; or there is another dataset within the place.
        CommitConflictError: the place is within another dataset.
        StorageError: the caller's place cannot be written.
    """
    folders = search.folders or [listing.root for listing in search.listings]
    root = common_folder(folders)
    note = ""
    if into is not None:
        place = SplitUrl.parse(into)
        same_kind = any(folder.scheme == place.scheme for folder in folders)
        options = storage_options if into_options is None and same_kind else into_options
    elif root is not None:
        place, options = root, storage_options
        store = connect(root.url, storage_options=options if root.scheme else None)
        reason = _cannot_write(store) if search.shards else None
        if reason is not None:
            place, options = _cache_folder(root), None
            note = f"{root.url} cannot be written ({reason}), so the dataset is in {place.url}"
    elif search.shards:
        places = ", ".join(sorted({place.url for place in search.folders}))
        message = f"these shards have no folder in common ({places}): say where the dataset goes, with into="
        raise ValueError(message)
    else:
        raise search.nothing
    options = options if place.scheme else None
    target = AdoptTarget(place, connect(place.url, storage_options=options), options, note)
    if Catalog(target.store).latest() is None:
        if not search.shards:
            raise search.nothing
        _check_place(search, target)
        if (
            not note
            and into is None
            and not any(listing.kind == "folder" and listing.root == root for listing in search.listings)
        ):
            _check_alone(search, target)
    return target


def assign_shards(
    search: ShardSearch, target: AdoptTarget, rules: SplitRules, known: Mapping[tuple[str, str], ShardEntry]
) -> tuple[list[FoundShard], list[str], list[str]]:
    """Divide the shards among splits.

    Args:
        search: what was found.
        target: where the dataset goes.
        rules: how to divide.
        known: shards that are part of the dataset, by data root and key; they stay in their splits.

    Returns:
        The shards with their data roots, the URLs that no pattern of a split matches, and what the division
        rests on.

    Raises:
        ValueError: some names tell a split and others do not.
    """
    roots = _roots(search.folders)
    common = common_folder(search.folders)
    own = {"": target.place}
    known_roots = own | {root: SplitUrl.parse(root) for root in {root for root, _ in known} - {""}}
    places, names, existing = [], [], {}
    for place in search.shards:
        # Whatever folder it was found below before, a shard keeps the root and key that it has.
        root, key = known_as(place, known_roots, known) or ("", place.below(target.place))
        if key is None:
            folder = next(root for root in roots if place.below(root) is not None)
            root, key = folder.url, place.below(folder)
        assert key is not None  # noqa: S101 - for the type checker
        name = (None if common is None else place.below(common)) or key
        places.append((root, key))
        names.append(name)
        if (entry := known.get((root, key))) is not None:
            existing[name] = entry.split
    if search.told and rules.given is None:
        # Of a folder that names its files no others belong to a split.
        told = [search.told.get(place) for place in search.shards]
        division = Division([None if file is None else file.split for file in told], [])
        notes = []
    else:
        told_by_lists = told_splits(search.listings)
        files = zip(names, search.shards.values(), strict=True)
        by_lists = {name: told_by_lists[file.url] for name, file in files if file.url in told_by_lists}
        division = rules.divide(names, folder=folder_of(search.listings), existing=existing, told=by_lists)
        notes = check_sets(names)
    if division.silent:
        division.refuse(division.silent)
    shards, left = [], []
    for (place, found), (root, key), split in zip(
        search.shards.items(), places, division.splits, strict=True
    ):
        if split is None:
            left.append(place.url)
            continue
        shards.append(
            FoundShard(
                split=split,
                root=root,
                key=key,
                url=place.url,
                size=found.size,
                etag=found.etag,
                **_told_by_mds(search.mds.get(place)),
            )
        )
    return shards, left, [*division.notes, *notes, *search.notes]


def _told_by_mds(shard: MdsShard | None) -> dict[str, Any]:
    if shard is None:
        return {}
    hashes = shard.stored.get("hashes") or {}
    known = [(name, digest) for name, digest in hashes.items() if name in hashlib.algorithms_guaranteed]
    return {"format": "mds", "rows": shard.facts["samples"], "hashes": tuple(known)}


def _check_place(search: ShardSearch, target: AdoptTarget) -> None:
    """Refuse a new dataset within another one, or around one that was found."""
    check_place(target.store.url, target.options)
    for listing in search.listings:
        for file in listing.files:
            key = file.place.below(target.place) or ""
            inner, metadata, _ = key.partition(f"/{naming.METADATA}/")
            if metadata:
                raise ValueError(
                    f"{target.place.join(inner).url} is a dataset by itself, and a dataset at "
                    f"{target.place.url} would hold it: adopt the shards by patterns that leave it out, and "
                    "say where their dataset goes with into="
                )


def _check_alone(search: ShardSearch, target: AdoptTarget) -> None:
    """Refuse to make a folder a dataset that was not named, and holds other files than those found."""
    found = {file.place for listing in search.listings for file in listing.files}
    for info in target.store.list(linked=True):
        other = FoundFile(target.place.url, info.key, info.size, "")
        known = other.is_shardio or not is_data(info.key) or info.key.endswith(_DESCRIPTIONS)
        if not known and other.place not in found:
            raise ValueError(
                f"{target.place.url} would become the dataset, and holds other files too, such as "
                f"{info.key}: name the folder of the dataset with into= (--into), which may be this one"
            )


def _roots(folders: Iterable[SplitUrl]) -> list[SplitUrl]:
    """Return one data root a disk, bucket or web server."""
    groups: dict[tuple[str, str], list[SplitUrl]] = {}
    for folder in folders:
        groups.setdefault((folder.scheme, folder.parts[0] if folder.scheme else ""), []).append(folder)
    roots = []
    for group in groups.values():
        root = common_folder(group)
        roots += [root] if root is not None else list(dict.fromkeys(group))
    return roots


def _cannot_write(store: Store) -> str | None:
    """Return why nothing can be written, or None."""
    if store.read_only_reason is not None:
        return store.read_only_reason
    if store.is_local:
        folder = pathlib.Path(store.url)
        while not folder.exists():
            folder = folder.parent
        return None if os.access(folder, os.W_OK | os.X_OK) else "no permission"
    if isinstance(store, RemoteStore):
        try:
            store.probe()
        except ShardioError as error:
            return str(error.found or error.what)
    return None


def _cache_folder(root: SplitUrl) -> SplitUrl:
    """Return the folder in the user's cache for shards under a root."""
    home = pathlib.Path.home()
    cache = home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    digest = hashlib.sha256(root.url.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return SplitUrl.parse(str(cache / "shardio" / "adopted" / digest))
