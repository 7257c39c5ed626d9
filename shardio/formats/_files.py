"""Files of a source, chosen by kind from what the finder finds; their splits; read whole or as a stream.

A file that is named is taken, whatever it is called.  Of a folder or pattern those are taken whose names say
that they are of the kind; the others, clutter, and names that are not text are listed.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from shardio.errors import BadRecord, FormatError
from shardio.format import Limits, decode_stream
from shardio.formats._source import ForeignSource, Piece, SourceOptions
from shardio.metadata import Feature
from shardio.sources import (
    SPLIT_KEY,
    Claim,
    Division,
    FolderKey,
    FoundFile,
    Listing,
    Peek,
    SplitRules,
    check_sets,
    claim_files,
    common_folder,
    files_of_kind,
    find_files,
    find_governed,
    find_links,
    folder_keys,
    folder_of,
    format_of_name,
    is_data,
    kind_of_name,
    left_notes,
    told_splits,
    type_of_key,
)
from shardio.storage import DataFile, connect
from shardio_indexer import HEAD_BYTES, look_at

# Of a file that can be cut one worker is given so many bytes, and reads so many at a time.
RUN_BYTES = 8 << 20
READ_BYTES = 1 << 20
_MAX_WHOLE = 1 << 30
# A source is read once, by as many processes as the caller allows: any window that Zstandard knows.
READ_ONCE = Limits(stream_window=2 << 30)


class File(NamedTuple):
    """One file.

    Attributes:
        root, key: the object; its URL is `root/key`.
        size: stored bytes.
        name: its name below the folder that all files of the source have in common.
    """

    root: str
    key: str
    size: int
    name: str

    @property
    def url(self) -> str:
        """Its URL."""
        return f"{self.root.rstrip('/')}/{self.key}"


def found_at(place: Any, options: SourceOptions) -> list[Listing]:
    """Return what names, folders and patterns stand for; raise the error of one that is not there."""
    name = repr(place)
    if name not in options.listed:
        options.listed[name] = find_files(
            place, storage_options=options.storage_options, follow_links=options.follow_links
        )
    listings = options.listed[name]
    for listing in listings:
        if listing.error is not None:
            raise listing.error
    return listings


@dataclass(frozen=True)
class FileSource(ForeignSource):
    """A source that is files.

    Args:
        place: name of a file or folder, a pattern, an `@list`, or several of them.
        options: what the caller says about it.

    Attributes:
        endings: which files of a folder or pattern are of the kind; shardio's own have other rules, too.
        file_is_record: a file is one record, so that its name tells no split; its folder may.
    """

    known_options: ClassVar[frozenset[str]] = frozenset({"partitions", "follow_links"})
    endings: ClassVar[tuple[str, ...]] = ()
    file_is_record: ClassVar[bool] = False
    place: Any
    options: SourceOptions

    def __getstate__(self) -> dict[str, Any]:
        # The listing stays at home; workers get what they need with each piece.
        return {"place": self.place, "options": self.options}

    @cached_property
    def _listings(self) -> list[Listing]:
        listings = found_at(self.place, self.options)
        governed = find_governed(listings, self.options.storage_options)
        if governed:
            place, dataset = next(iter(governed.items()))
            raise FormatError(
                "a shard of a dataset of shardio, whose manifests tell which of its records count",
                url=place.url,
                advice=f"convert {dataset}, or name the files one by one to take all that is in them",
            )
        return listings

    @cached_property
    def _chosen(self) -> tuple[list[File], list[str], list[BadRecord]]:
        """The files of the kind, each once, the names of the others, and names that are not text."""
        listings = self._listings
        files: dict[str, File] = {}
        ignored: dict[str, str] = {}
        bad: dict[str, BadRecord] = {}
        common = common_folder(listing.root for listing in listings)
        for listing in listings:
            below = listing.root.below(common) if common is not None else None
            prefix = f"{below}/" if below else ""
            taken, others = self._divide(listing)
            for file in taken:
                found = File(file.root, file.key, file.size, prefix + file.key)
                files.setdefault(found.url, found)
            ignored.update((file.url, prefix + file.key) for file in others)
            ignored.update((url, prefix + url[len(listing.root.url) + 1 :]) for url in listing.links)
            for url in listing.bad_names:
                if listing.kind != "file" and not is_data(url.removeprefix(listing.root.url).lstrip("/")):
                    ignored[url] = url
                else:
                    bad[url] = BadRecord(url, "the name of the file is not UTF-8 text", "rename the file")
        left = [name for url, name in ignored.items() if url not in files]
        return list(files.values()), left, list(bad.values())

    def _divide(self, listing: Listing) -> tuple[list[FoundFile], list[FoundFile]]:
        """Return which files of a listing are taken, and which are not."""
        if listing.kind == "file":
            return listing.files, []
        taken = {
            file
            for files in files_of_kind(self.kind, listing, self.options.peek, self.fits)
            for file in files
        }
        if not taken:
            # What is matched has no names of its own: it is what is meant.
            kinds = self.options.peek.kinds(listing.nameless)
            silent = [file for file, kind in zip(listing.nameless, kinds, strict=True) if kind is None]
            taken = set(listing.data if listing.kind == "pattern" else silent)
        left = [file for file in listing.files if file not in taken]
        return [file for file in listing.files if file in taken], left

    @classmethod
    def fits(cls, key: str) -> bool:
        """Tell whether the name of a file says that it is of the kind."""
        return key.lower().endswith(cls.endings) if cls.endings else kind_of_name(key) == cls.kind

    @classmethod
    def claim(cls, listings: Sequence[Listing], peek: Peek) -> Claim | None:
        """Claim the files that are of the kind by their names, or by first bytes that shardio knows."""
        return claim_files(cls.kind, listings, peek, cls.fits if cls.endings else None)

    @property
    def files(self) -> list[File]:
        """The files, each once, in the order in which they were asked for and by name within each."""
        return self._chosen[0]

    def divided(self, names: Sequence[str]) -> Division:
        """Return the splits of files by their names.

        Raises:
            ValueError: some of the names tell a split and others do not.
        """
        rules = SplitRules(self.options.split)
        divide = rules.divide_folders if self.file_is_record else rules.divide
        division = divide(names, folder=folder_of(self._listings), told=self._told)
        if division.silent:
            division.refuse(division.silent)
        return division

    @cached_property
    def _told(self) -> dict[str, str]:
        """The splits that lists of folders name, by name of the file."""
        told = told_splits(self._listings)
        return {file.name: told[file.url] for file in self.files if file.url in told}

    @property
    def heads(self) -> list[File]:
        """The files whose names tell splits: all, or the indexes of the others."""
        return self.files

    @cached_property
    def _division(self) -> Division:
        names = [file.name for file in self.heads]
        division = self.divided(names)
        division = division._replace(notes=[*division.notes, *check_sets(names)])
        return division if self.file_is_record else self._without_links(division)

    def _without_links(self, division: Division) -> Division:
        """Return a division that has each file once in a split, whatever names symbolic links give it."""
        found = {file.url: file for listing in self._listings for file in listing.files}
        pairs = list(zip(self.heads, division.splits, strict=True))
        links, notes = find_links((found[file.url], split) for file, split in pairs if file.url in found)
        kept = [None if file.url in links else split for file, split in pairs]
        return Division(kept, [*division.notes, *notes], division.silent)

    def split_files(self) -> list[tuple[File, str]]:
        """Return the heads with their splits, without those that no pattern of a split matches."""
        pairs = zip(self.heads, self._division.splits, strict=True)
        return [(file, split) for file, split in pairs if split is not None]

    def pieces(self) -> Sequence[Piece]:
        """Return the files, each one piece."""
        return [Piece(file.root, file.key, split, file.size) for file, split in self.split_files()]

    def keys_of(self, url: str) -> tuple[FolderKey, ...]:
        """Return the keys of the folders of a file; `split` is one where the caller names the splits."""
        if self.options.partitions is None:
            return ()
        folder = url.rpartition("/")[0]
        if folder not in self._keys_of_folders:
            found = folder_keys(url, {listing.root.url for listing in self._listings})
            self._keys_of_folders[folder] = tuple(
                key for key in found if key.name != SPLIT_KEY or self.options.split is not None
            )
        return self._keys_of_folders[folder]

    @cached_property
    def _keys_of_folders(self) -> dict[str, tuple[FolderKey, ...]]:
        return {}

    @cached_property
    def _key_types(self) -> dict[str, Feature]:
        if self.options.partitions is None:
            return {}
        found = [{key.name: key.text for key in self.keys_of(file.url)} for file, _ in self.split_files()]
        names = dict.fromkeys(name for keys in found for name in keys)
        return {
            name: type_of_key(
                [keys[name] for keys in found if name in keys],
                optional=any(name not in keys for keys in found),
            )
            for name in names
        }

    def key_types(self) -> Mapping[str, Feature]:
        """Return the types of all keys of folders; optional where some files have none."""
        return self._key_types

    def notes(self) -> Sequence[str]:
        """Return what the splits rest on, and what was not taken."""
        peek, notes = self.options.peek, self._division.notes
        return [
            *notes,
            *(note for each in self._listings for note in (*left_notes(each), *peek.notes(each))),
        ]

    def bad_records(self) -> Sequence[BadRecord]:
        """Return files whose names are not text."""
        return self._chosen[2]

    def ignored(self) -> Sequence[str]:
        """Return files that were found and are of another kind, or of no split, by their names."""
        pairs = zip(self.heads, self._division.splits, strict=True)
        return [*self._chosen[1], *(file.name for file, split in pairs if split is None)]


def read_whole(
    root: str, key: str, storage_options: Mapping[str, Any] | None, *, max_bytes: int = _MAX_WHOLE
) -> bytes:
    """Return a whole file, of at most 1 GiB."""
    return connect(root, storage_options=storage_options).get(key, max_bytes=max_bytes)


def open_seekable(root: str, key: str, storage_options: Mapping[str, Any] | None) -> io.BufferedReader:
    """Open the stored bytes of a file, to be read at any place."""
    file = connect(root, storage_options=storage_options).open(key)
    return io.BufferedReader(SeekableFile(file), READ_BYTES)


def open_decoded(root: str, key: str, storage_options: Mapping[str, Any] | None) -> io.BufferedReader:
    """Open the decoded bytes of a file, to be read once from its start: plain, gzip, ZLIB or Zstandard."""
    file = connect(root, storage_options=storage_options).open(key)
    return io.BufferedReader(DecodedFile(file, _decoded(file, key)), READ_BYTES)


def decoded_pieces(root: str, key: str, storage_options: Mapping[str, Any] | None) -> Iterator[bytes]:
    """Yield the decoded bytes of a file from its start: plain, gzip, ZLIB or Zstandard."""
    with connect(root, storage_options=storage_options).open(key) as file:
        yield from _decoded(file, key)


def _decoded(file: DataFile, key: str) -> Iterator[bytes]:
    """Decode a file that is compressed by its first bytes, as adoption does."""
    pieces = map(bytes, file.pieces(READ_BYTES))
    first = next(pieces, b"")
    compression = look_at(first[:HEAD_BYTES], named=format_of_name(key) is not None).compression
    return decode_stream(itertools.chain([first], pieces), compression, limits=READ_ONCE)


class _StoredFile(io.RawIOBase):
    def __init__(self, file: DataFile) -> None:
        super().__init__()
        self._file = file

    def readable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Release the object."""
        if not self.closed:
            self._file.close()
        super().close()


class SeekableFile(_StoredFile):
    """A stored object as a file that libraries read from, at any place."""

    _place = 0

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the place of the next read."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._file.size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as the file goes."""
        view = memoryview(buffer).cast("B")
        stop = min(self._place + len(view), self._file.size)
        count = max(0, stop - self._place)
        if count:
            view[:count] = self._file.read(self._place, stop)
        self._place += count
        return count

    def size(self) -> int:
        """Return the size in bytes, as pyarrow asks for it."""
        return self._file.size


class DecodedFile(_StoredFile):
    """Bytes of a stored object as a file, from its start."""

    def __init__(self, file: DataFile, pieces: Iterator[bytes]) -> None:
        super().__init__(file)
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with what comes next; 0 at the end."""
        while not len(self._rest):
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
