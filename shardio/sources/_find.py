"""From what a caller typed to the files that are meant: names, folders, patterns, braces, `@lists`.

The one finder of adoption and conversion: what it finds is the same for both, and so is what it does not
find.  Each decides by itself which of the files it takes, and lists the others.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from shardio.display import plural
from shardio.errors import FormatError, NotFoundError, ShardioError, UnsafeNameError
from shardio.metadata import naming
from shardio.sources._hive import folder_key
from shardio.sources._lists import (
    MARKERS,
    TABLE_MARKERS,
    FolderList,
    is_marker,
    read_lists,
)
from shardio.sources._names import is_data, is_nameless, kind_of_name
from shardio.sources._urls import SplitUrl, expand_braces, glob_expression, has_pattern, literal_prefix
from shardio.storage import DeniedError, ObjectInfo, Store, connect, followed, is_link, url_text

_MOST_HEADS = 8
_LIST_BYTES = 256 << 20
_MOST_METADATA = 256 << 20
_OWN = "_shardio"


class FoundFile(NamedTuple):
    """One file.

    Attributes:
        root: URL of the folder in which the search for it began.
        key: its name below that folder.
        size: stored bytes.
        etag: ETag, generation or modification time; "unknown" where the server tells none.
    """

    root: str
    key: str
    size: int
    etag: str

    @property
    def url(self) -> str:
        """Its URL."""
        return f"{self.root.rstrip('/')}/{self.key}"

    @property
    def place(self) -> SplitUrl:
        """Its URL taken apart."""
        return SplitUrl.parse(self.root).join_key(self.key)

    @property
    def is_shardio(self) -> bool:
        """Whether it belongs to shardio's own bookkeeping: an index, or what is below `_shardio/`."""
        return self.key.endswith(".shardidx") or _OWN in self.key.split("/")


@dataclass
class Listing:
    """What one name, folder or pattern stands for.

    Attributes:
        url: the name, folder or pattern.
        kind: "file", "folder" or "pattern".
        root: the folder in which the search began.
        files: by rising key; of a name, one or none.
        bad_names: URLs, with escapes, of files that no key can name, see `naming.unsafe_part`.
        error: why there is nothing, or None.
        matches: tells of a key below `root` whether this listing is of it.
        spells_hidden: the pattern spells the beginning of a hidden name, as `_*.tar` does, and means such.
        beside: keys of lists that folders have of their own and that a pattern does not match.
        lists: what these say, the outermost folder's first.
        links: URLs of files that symbolic links lead to out of the folder, which are not taken.
    """

    url: str
    kind: str
    root: SplitUrl
    files: list[FoundFile] = field(default_factory=list)
    bad_names: list[str] = field(default_factory=list)
    error: ShardioError | None = None
    matches: Callable[[str], object] = bool
    spells_hidden: bool = False
    beside: list[str] = field(default_factory=list)
    lists: list[FolderList] = field(default_factory=list)
    links: list[str] = field(default_factory=list)

    @cached_property
    def data(self) -> list[FoundFile]:
        """The files that count: those that the lists of their folders name, else by their names."""
        return [file for file in self.files if self._counts(file)]

    @cached_property
    def named(self) -> dict[str | None, list[FoundFile]]:
        """The files that count by the kind of source that their names tell; None for those that tell none."""
        found: dict[str | None, list[FoundFile]] = {}
        for file in self.data:
            found.setdefault(kind_of_name(file.key), []).append(file)
        return found

    @cached_property
    def nameless(self) -> list[FoundFile]:
        """The files that count whose names tell nothing, so that the first bytes have to."""
        return [file for file in self.named.get(None, []) if is_nameless(file.key)]

    def _counts(self, file: FoundFile) -> bool:
        if self.kind == "file":
            return True
        key = file.key
        governing = [each for each in self.lists if key.startswith(each.folder)]
        if governing:
            return all(key in each.files for each in governing)
        return not file.is_shardio and (self.spells_hidden or is_data(key))

    def split_of(self, key: str) -> str | None:
        """Return the split that a list of its folder names for a file, or None."""
        return next((split for each in self.lists if (split := each.files.get(key)) is not None), None)

    def lacks(self, place: SplitUrl) -> bool:
        """Tell whether a file would have been found if it were there."""
        key = place.below(self.root)
        if key is None or not self.matches(key) or place.url in self.links:
            return False
        return all(file.key != key for file in self.files)


def find_files(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    storage_options: Mapping[str, Any] | None = None,
    follow_links: bool = False,
) -> list[Listing]:
    """Find the files that names, folders, patterns, braces and `@lists` stand for.

    A pattern holds `*`, `?`, `[...]`, or `**` for any number of folders; a name with such characters that
    exists is that file or folder. A folder stands for all files below it. `@names.txt` is a text file of
    names, folders and patterns, one a line; blank lines and those that begin with `#` are left out. Lines of
    a list that is not local resolve below its folder, and name nothing of other stores.

    Args:
        sources: what was typed.
        storage_options: as in fsspec.
        follow_links: take also files that symbolic links lead to out of the folder that was named.

    Returns:
        One listing for each name, folder and pattern, in the order given; the same file may be in several.
        Names that are not there have an empty listing with an error.

    Raises:
        NotFoundError: a list of names does not exist.
        FormatError: the list of a folder says that its files cannot be read one by one, see `_lists`.
        StorageError: a store cannot be listed, or did not answer.
        TypeError, ValueError: a URL that makes no sense.
    """
    given: Any = sources
    if not isinstance(sources, Iterable) or isinstance(sources, str | bytes | Mapping):
        given = [sources]
    found: list[Listing] = []
    names: dict[SplitUrl, list[Listing]] = {}
    for url in _expanded(map(url_text, given), storage_options):
        place = SplitUrl.parse(url)
        magic = next((number for number, part in enumerate(place.parts) if has_pattern(part)), None)
        if magic is None or _exists(place, storage_options):
            listing = Listing(url, "file", place.folder)
            if len(place.parts) < 2 if place.scheme else not place.parts:
                _list_folder(listing, place, storage_options)
            else:
                names.setdefault(place.folder, []).append(listing)
        else:
            listing = _matching(url, place, magic, storage_options)
        found.append(listing)
    for folder, listings in names.items():
        _look_up(folder, listings, storage_options)
    for listing in found:
        if listing.kind != "file":
            if not follow_links:
                _leave_links(listing)
            _read_lists(listing, storage_options)
            _explain_nothing(listing)
    return found


def _explain_nothing(listing: Listing) -> None:
    """Say why a listing with files has nothing that counts."""
    if listing.links and not listing.files:
        listing.error = NotFoundError(
            "all files are behind symbolic links that lead out of the folder",
            url=listing.root.url,
            found=listing.links[0],
            advice="follow_links=True takes them",
        )
    elif listing.files and not listing.data and not any(file.is_shardio for file in listing.files):
        listing.error = NotFoundError(
            "no file here counts as data",
            url=listing.root.url,
            found=f"{plural(len(listing.files), 'file')} such as {listing.files[0].key}",
            advice="hidden and temporary names are not data, and a folder's own list decides if it has one; "
            "files that are named themselves are taken",
        )


def _leave_links(listing: Listing) -> None:
    """Take out the local files that symbolic links lead to out of the folder."""
    if listing.root.scheme:
        return
    inside = followed(listing.root.url)
    # The Hub's cache is made of links to blobs beside the snapshots.
    cache = re.match(r"(.*/(?:datasets|models|spaces)--[^/]+)/snapshots/[^/]+(?=/|$)", inside)
    inside = (cache[1] if cache else inside).rstrip("/") + "/"
    real: dict[str, str] = {}
    kept: list[FoundFile] = []
    for file in listing.files:
        folder, _, name = file.url.rpartition("/")
        if folder not in real:
            real[folder] = followed(folder)
        target = followed(file.url) if is_link(file.url) else f"{real[folder]}/{name}"
        if target.startswith(inside):
            kept.append(file)
        else:
            listing.links.append(file.url)
    listing.files = kept


def _read_lists(listing: Listing, storage_options: Mapping[str, Any] | None) -> None:
    """Read the lists that folders of a listing have of their own."""
    store = _connect(listing.root, storage_options)

    def read(key: str) -> bytes:
        return store.get(key, max_bytes=_MOST_METADATA)

    keys = [file.key for file in listing.files]
    markers = [*listing.beside, *filter(is_marker, keys)]
    listing.lists = read_lists(listing.root.url, keys, markers, read, whole=listing.kind == "folder")
    above = listing.root
    while above.parts and folder_key(above.parts[-1]) is not None:
        above = above.folder
    if above != listing.root and above.parts:
        _refuse_part(listing.root, above, storage_options)


def _refuse_part(part: SplitUrl, table: SplitUrl, storage_options: Mapping[str, Any] | None) -> None:
    """Refuse a partition, `table/year=2020`, of a table whose list says which files count."""
    store = _connect(table, storage_options)
    for marker in TABLE_MARKERS:
        try:
            found = any(is_marker(info.key) for info in store.list(marker, linked=True))
        except DeniedError:  # A partition may be listed where the table may not.
            return
        if found:
            raise FormatError(
                f"this is a partition of a table whose {marker.rstrip('/')} says which files count",
                url=part.url,
                advice=f"convert the whole table, {table.url}",
            )


def find_governed(
    listings: Iterable[Listing], storage_options: Mapping[str, Any] | None
) -> dict[SplitUrl, str]:
    """Return which files of folders and patterns are shards of shardio's own writers, and of which dataset.

    Only the manifests of that dataset tell which of their records count: some were deleted, compacted, rolled
    back or never committed. A file that is named itself is meant as it is; so is one whose dataset is gone.
    """
    listings = list(listings)
    named = {file.place for listing in listings if listing.kind == "file" for file in listing.files}
    governed: dict[SplitUrl, str] = {}
    datasets: dict[str, bool] = {}
    for listing in listings:
        for file in listing.files:
            folder, data, name = file.url.rpartition(f"/{naming.DATA}")
            if (
                not data
                or naming.DataKey.parse(naming.DATA + name) is None
                or file.is_shardio
                or file.place in named
            ):
                continue
            if folder not in datasets:
                store = _connect(SplitUrl.parse(folder), storage_options)
                datasets[folder] = next(iter(store.list(f"{_OWN}/")), None) is not None
            if datasets[folder]:
                governed[file.place] = folder
    return governed


def left_notes(listing: Listing) -> list[str]:
    """Return notes on files that are not taken although a caller may think that they are."""
    notes = []
    if listing.links:
        count = plural(len(listing.links), "file")
        notes.append(
            f"{count} such as {listing.links[0]}: symbolic links lead out of {listing.root.url}, and are not "
            "followed; follow_links=True takes them"
        )
    for each in listing.lists:
        left = [
            file.url
            for file in listing.files
            # Descriptions are beside data everywhere.
            if file.key.startswith(each.folder) and file.key not in each.files and is_data(file.key)
            if not file.key.endswith((".json", ".md"))
        ]
        if left:
            count = plural(len(left), "file")
            notes.append(f"{count} such as {left[0]}: {each.name} does not name them, so they are not taken")
    return notes


def told_splits(listings: Iterable[Listing]) -> dict[str, str]:
    """Return the splits that lists of folders name, by the URL of a file."""
    return {
        file.url: split
        for listing in listings
        for file in (listing.files if listing.lists else ())
        if (split := listing.split_of(file.key)) is not None
    }


def find_links(
    files: Iterable[tuple[FoundFile, str | None]], known: Iterable[tuple[FoundFile, str | None]] = ()
) -> tuple[dict[str, FoundFile], list[str]]:
    """Return which local files, each with its split, are other names of one of their split by symbolic links.

    That is one of `known`, else the first that is not a link itself, else the first.

    Returns:
        By URL the file of which it is another name; and notes.
    """
    alike: dict[tuple[str | None, int, str], list[tuple[bool, FoundFile]]] = {}
    for new, each in ((False, known), (True, files)):
        for file, split in each:
            if "://" not in file.root:
                # A link has the size and time of its file, so that only such are looked at.
                alike.setdefault((split, file.size, file.etag), []).append((new, file))
    found: dict[str, FoundFile] = {}
    for group in alike.values():
        if len(group) > 1 and any(new for new, _ in group):
            real = {file.url: followed(file.url) for _, file in group}
            first: dict[str, FoundFile] = {}
            for _, file in sorted(group, key=lambda pair: (pair[0], real[pair[1].url] != pair[1].url)):
                first.setdefault(real[file.url], file)
            for new, file in group:
                if new and first[real[file.url]].url != file.url:
                    found[file.url] = first[real[file.url]]
    if not found:
        return found, []
    url, file = next(iter(found.items()))
    count = plural(len(found), "file")
    note = f"{count} such as {url}: a symbolic link makes it another name of {file.url}; each is taken once"
    return found, [note]


def _expanded(urls: Iterable[str], storage_options: Mapping[str, Any] | None) -> Iterator[str]:
    for url in urls:
        if url.startswith("@"):
            place = SplitUrl.parse(url[1:])
            for line in _lines_of(place, storage_options):
                for name in expand_braces(line):
                    yield _below_list(name, place) if place.scheme else name
        elif _exists(SplitUrl.parse(url), storage_options) if "{" in url else True:
            yield url
        else:
            yield from expand_braces(url)


def _below_list(name: str, place: SplitUrl) -> str:
    """Return the URL that a line of a remote list names; the options for the list are for its store alone.

    Raises:
        ValueError: it names a file of this machine, or of another store.
    """
    remote = "://" in name
    named = SplitUrl.parse(name) if remote else place.folder.join(name)
    outside = (not remote and name.startswith(("/", "~"))) or not {"..", "."}.isdisjoint(named.parts)
    if outside or named.below(SplitUrl(place.scheme, place.parts[:1])) is None:
        raise ValueError(
            f"{place.url} names {name}, which is not in the store of the list: download the list, and give "
            "it as a local file if that is meant"
        )
    return named.url


def _lines_of(place: SplitUrl, storage_options: Mapping[str, Any] | None) -> list[str]:
    store = _connect(place.folder, storage_options)
    text = store.get(place.parts[-1], max_bytes=_LIST_BYTES).decode("utf-8-sig")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _connect(place: SplitUrl, storage_options: Mapping[str, Any] | None) -> Store:
    return connect(place.url, storage_options=storage_options if place.scheme else None)


def _exists(place: SplitUrl, storage_options: Mapping[str, Any] | None) -> bool:
    """Tell whether a name with characters of patterns is that of a file, or of a folder with files in it."""
    if (
        place.is_web
        or not place.parts
        or (place.scheme and (len(place.parts) < 2 or has_pattern(place.parts[0])))
    ):
        return False
    store, key = _connect(place.folder, storage_options), place.below(place.folder) or ""
    try:
        if store.head(key) is not None:
            return True
        return store.can_list and next(iter(store.list(f"{key}/", linked=True)), None) is not None
    except DeniedError:  # Files that braces name may be read where nothing may be listed.
        return False


def _look_up(folder: SplitUrl, listings: list[Listing], storage_options: Mapping[str, Any] | None) -> None:
    """Find files by name; what is not a file is looked at as a folder."""
    store = _connect(folder, storage_options)
    keys = [SplitUrl.parse(listing.url).below(folder) or "" for listing in listings]
    listed: dict[str, ObjectInfo] | None = None
    if len(set(keys)) > _MOST_HEADS and store.can_list:
        with contextlib.suppress(DeniedError):  # what may not be listed may be readable
            listed = {info.key: info for info in store.list(linked=True) if "/" not in info.key}
    for listing, key in zip(listings, keys, strict=True):
        try:
            info = listed.get(key) if listed is not None else store.head(key)
        except UnsafeNameError:
            listing.bad_names.append(_shown(store, key))
            continue
        listing.matches = key.__eq__
        if info is not None:
            _add(listing, store, info)
        elif store.can_list:
            _list_folder(listing, folder.join(key), storage_options)
        else:
            listing.error = NotFoundError("there is no such file", url=store.url_of(key))


def _list_folder(listing: Listing, folder: SplitUrl, storage_options: Mapping[str, Any] | None) -> None:
    """Take every file below a folder."""
    store = _connect(folder, storage_options)
    infos = _listed(store)
    if infos:
        listing.kind, listing.root, listing.matches = "folder", folder, bool
    for info in infos:
        _add(listing, store, info)
    if not infos:
        if listing.kind == "file":
            # What is gone was a file, or a folder with files below it.
            name = folder.parts[-1]
            listing.matches = lambda key: key.split("/", 1)[0] == name
        advice = "check the address, or name the files with a pattern"
        listing.error = NotFoundError("there is no such file or folder", url=store.url, advice=advice)


def _matching(url: str, place: SplitUrl, magic: int, storage_options: Mapping[str, Any] | None) -> Listing:
    if place.is_web:
        raise ValueError(f"{url}: a web server cannot be listed; give the URLs in a file, as @list.txt")
    folder = SplitUrl(place.scheme, place.parts[:magic])
    if place.scheme and not folder.parts:
        raise ValueError(f"{url}: a pattern must begin below a bucket")
    pattern = "/".join(place.parts[magic:])
    matches = re.compile(glob_expression(pattern), re.DOTALL).fullmatch
    hidden = re.search(r"(?:^|/)[._]", pattern) is not None
    listing = Listing(url, "pattern", folder, matches=matches, spells_hidden=hidden)
    store = _connect(folder, storage_options)
    prefix = literal_prefix(pattern)
    above = prefix[: prefix.rfind("/") + 1]
    for info in _listed(store, prefix):
        if matches(info.key):
            _add(listing, store, info)
        elif is_marker(info.key):
            listing.beside.append(info.key)
    for marker in MARKERS if prefix != above and listing.files else ():
        # The prefix holds a part of a name, so lists beside the files were not seen.
        listing.beside += [info.key for info in store.list(above + marker) if is_marker(info.key)]
    if not listing.files and not listing.bad_names:
        listing.error = NotFoundError(
            "the pattern matches nothing", url=url, advice="check the address; quote it for the shell"
        )
    return listing


def _listed(store: Store, prefix: str = "") -> list[ObjectInfo]:
    """List a store; if that is denied, the error says how to do without a list."""
    try:
        return list(store.list(prefix, linked=True))
    except DeniedError as error:
        error.advice = "if the files may be read but not listed, write their URLs into a file: @list.txt"
        raise


def _add(listing: Listing, store: Store, info: ObjectInfo) -> None:
    if naming.unsafe_part(info.key) is None:
        listing.files.append(FoundFile(store.url, info.key, info.size, info.etag or "unknown"))
    else:
        listing.bad_names.append(_shown(store, info.key))


def _shown(store: Store, key: str) -> str:
    return f"{store.url}/{key}".encode(errors="backslashreplace").decode()
