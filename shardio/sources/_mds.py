"""MDS folders, of MosaicML's streaming library: which shards their `index.json` files name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shardio.errors import FormatError, UnsafeNameError
from shardio.format import parse_json
from shardio.metadata import naming
from shardio.sources._find import FoundFile, Listing
from shardio.sources._peek import Peek

MDS_INDEX = "index.json"
# Offsets in a shard have 32 bits.
_LARGEST = 1 << 32


class MdsShard(NamedTuple):
    """A shard that an index names.

    Attributes:
        root, key: the file that holds it.
        index_url: of the index.
        size: stored bytes.
        facts: what the index says of it; without `compression` where the file is not compressed.
        is_there: the file was found.
    """

    root: str
    key: str
    index_url: str
    size: int
    facts: Mapping[str, Any]
    is_there: bool

    @property
    def url(self) -> str:
        """Its URL."""
        return f"{self.root.rstrip('/')}/{self.key}"

    @property
    def compression(self) -> str | None:
        """The algorithm that compressed the file, without its level."""
        name = self.facts.get("compression")
        return None if name is None else str(name).split(":")[0]

    @property
    def stored(self) -> Mapping[str, Any]:
        """What the index says of the bytes of the file: `bytes` and `hashes`."""
        found: Mapping[str, Any] = self.facts["zip_data" if self.compression else "raw_data"]
        return found

    @property
    def columns(self) -> list[tuple[str, str, int | None]]:
        """Name, encoding, and size in bytes where it is fixed, of each column."""
        names = self.facts["column_names"]
        sizes = self.facts.get("column_sizes") or [None] * len(names)
        return list(zip(names, self.facts["column_encodings"], sizes, strict=True))


def is_mds_index(data: bytes) -> bool:
    """Tell whether an `index.json` is one of MDS."""
    try:
        return all(shard["format"] == "mds" for shard in parse_json(data)["shards"])
    except (ValueError, KeyError, TypeError):
        return False


def is_mds_name(key: str) -> bool:
    """Tell whether a key is that of an index, or of a shard as `MDSWriter` calls them."""
    return key.rpartition("/")[2] == MDS_INDEX


def find_mds(listing: Listing, peek: Peek) -> list[MdsShard]:
    """Return the shards that the indexes of a folder name; none where it is no MDS.

    Raises:
        FormatError: an index cannot be read.
        StorageError: it could not be fetched.
    """
    heads = [file for file in listing.data if is_mds_name(file.key)]
    if not heads or listing.kind != "folder":
        return []
    if not any(is_mds_index(peek.whole(file)) for file in heads):
        return []
    there = {file.key: file.size for file in listing.files}
    indexes = read_mds_indexes(heads, peek.whole)
    return [shard for file, index in indexes for shard in mds_shards(file, index, there)]


def read_mds_indexes(
    files: Iterable[FoundFile], read: Callable[[FoundFile], bytes]
) -> list[tuple[FoundFile, Mapping[str, Any]]]:
    """Return the indexes with their contents; each shard is named once, by the index nearest to it.

    Parallel writers leave an index in each folder, and `merge_index` makes one of all above them.

    Raises:
        FormatError: one is not of MDS, or a merged one lacks shards.
    """
    files, named = list(files), set[str]()
    found: dict[str, tuple[FoundFile, Mapping[str, Any]]] = {}
    for file in sorted(files, key=lambda file: file.url.count("/"), reverse=True):
        data = read(file)
        if not is_mds_index(data):
            raise FormatError("this index.json is not one of MDS", url=file.url)
        index = parse_json(data)
        shards = _shard_urls(file.url, index)
        if not named.isdisjoint(shards):
            folder = file.url.removesuffix(MDS_INDEX)
            unnamed = sorted(url for url in named.difference(shards) if url.startswith(folder))
            if unnamed:
                raise FormatError(
                    "a merged index.json does not name shards that indexes below it name",
                    url=file.url,
                    found=unnamed[0],
                    advice="merge the indexes again, or name the folders one by one",
                )
        new = [each for each, url in zip(index["shards"], shards, strict=True) if url not in named]
        named.update(shards)
        if new or not shards:
            found[file.url] = file, {**index, "shards": new}
    return [found[file.url] for file in files if file.url in found]


def mds_shards(file: FoundFile, index: Mapping[str, Any], there: Mapping[str, int] | None) -> list[MdsShard]:
    """Return the shards that an index names.

    Args:
        file: the index.
        index: its content.
        there: sizes of all files below the same root, by key; None where they are not known.

    Raises:
        FormatError: it does not describe a shard.
        UnsafeNameError: the name of a shard leads out of its folder.
    """
    return [_mds_shard(file, facts, there) for facts in index["shards"]]


def _mds_shard(file: FoundFile, facts: Mapping[str, Any], there: Mapping[str, int] | None) -> MdsShard:
    folder, slash, _ = file.key.rpartition("/")
    try:
        parts = ["zip_data", "raw_data"] if facts.get("compression") else ["raw_data"]
        names = [folder + slash + facts[part]["basename"] for part in parts]
        shard = MdsShard(file.root, names[0], file.url, int(facts[parts[0]]["bytes"]), facts, is_there=True)
        numbers = (shard.size, facts["samples"], facts["raw_data"]["bytes"])
        texts = [text for name, kind, _ in shard.columns for text in (name, kind)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"index.json does not describe a shard ({error!r})", url=file.url) from None
    if not all(isinstance(each, int) and 0 <= each < _LARGEST for each in numbers):
        raise FormatError("index.json has a number that makes no sense", url=file.url, found=numbers)
    if not all(isinstance(text, str) for text in texts):
        raise FormatError("index.json has a name of a column that is not text", url=file.url, found=texts)
    try:
        for name in names:
            naming.check_foreign_key(name, what="the name of an MDS shard")
    except UnsafeNameError as error:
        raise error.located(url=file.url) from None
    if there is None or names[0] in there:
        return shard
    if names[-1] not in there:
        return shard._replace(is_there=False)
    # The library's cache keeps shards decompressed.
    return shard._replace(key=names[-1], size=there[names[-1]], facts={**facts, "compression": None})


def same_columns(shards: Sequence[MdsShard]) -> list[tuple[str, str, int | None]]:
    """Return the columns that all shards have.

    Raises:
        FormatError: two shards have other columns.
    """
    for shard in shards[1:]:
        if shard.columns != shards[0].columns:
            raise FormatError(
                "the shards of this MDS dataset have different columns",
                url=shard.url,
                expected=[f"{name}: {kind}" for name, kind, _ in shards[0].columns],
                found=[f"{name}: {kind}" for name, kind, _ in shard.columns],
                advice=f"convert it: shardio convert {shard.index_url.rpartition('/')[0]} TARGET",
            )
    return shards[0].columns if shards else []


def refuse_compressed(shards: Collection[MdsShard]) -> None:
    """Raise FormatError where shards are compressed: their samples cannot be read where they are."""
    packed = [shard for shard in shards if shard.compression]
    if packed:
        raise FormatError(
            "compressed MDS shards cannot be read in place",
            url=packed[0].url,
            found=f"{len(packed)} of {len(shards)} shards, compressed with {packed[0].compression}",
            advice=f"convert them: shardio convert {packed[0].index_url.rpartition('/')[0]} TARGET",
        )


def _shard_urls(url: str, index: Mapping[str, Any]) -> list[str]:
    """Return the URLs of the shards that an index names, as they are before compression."""
    folder = url.removesuffix(MDS_INDEX)
    try:
        return [folder + shard["raw_data"]["basename"] for shard in index["shards"]]
    except (KeyError, TypeError) as error:
        raise FormatError(f"index.json does not describe a shard ({error!r})", url=url) from None
