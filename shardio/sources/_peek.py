"""What files are by their first bytes: kinds that are read, and others with the shortest way in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from shardio.errors import FormatError, NotFoundError, StorageError
from shardio.format import DEFAULT_LIMITS, UTF8_BOM, Compression, parse_json
from shardio.sources._find import FoundFile, Listing
from shardio.sources._names import format_of_name, kind_of_name
from shardio.storage import connect
from shardio_indexer import FORMATS, ShardKind, look_at

MEGATRON_MAGIC = b"MMIDIDX\0\0"
# How a file of Riegeli begins, which ArrayRecord is: doc/riegeli_records_file_format.md of
# https://github.com/google/riegeli
_RIEGELI = bytes.fromhex("83af70d10d884a3f00000000000000004000000000000000")
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_HEAD = 4 << 10
_MOST_WHOLE = 64 << 20
_REQUESTS = _LOOKS = 16


class OtherKind(NamedTuple):
    """What a file is.

    Attributes:
        name: of the kind, as a sentence has it.
        way: how its data becomes a dataset.
        source: the kind of source that conversion reads it as, or None.
    """

    name: str
    way: str
    source: str | None = None


_WRITE = "read its items with {}, and write them with shardio.write_dataset"
_CONVERT = "convert it: shardio convert SOURCE URL"
_KINDS = (
    (MEGATRON_MAGIC, OtherKind("the index of a Megatron dataset", f"{_CONVERT} --kind megatron", "megatron")),
    (b"TNTIDX\0\0", OtherKind("the index of a fairseq dataset", _WRITE.format("fairseq's IndexedDataset"))),
    (b"PAR1", OtherKind("Parquet", _CONVERT, "parquet")),
    (b"ARROW1", OtherKind("Arrow", _CONVERT, "parquet")),
    (b"\x89HDF\r\n\x1a\n", OtherKind("HDF5", f"{_CONVERT} --kind datasets", "datasets")),
    (b"\x93NUMPY", OtherKind("an array of NumPy", _WRITE.format("numpy.load"))),
    (_RIEGELI, OtherKind("ArrayRecord", _WRITE.format("array_record's ArrayRecordDataSource"))),
    (b"SQLite format 3\0", OtherKind("an SQLite database", _WRITE.format("Python's sqlite3"))),
)
JSON_ARRAY = OtherKind("a JSON array", f"{_CONVERT} --kind datasets", "datasets")
JSON_OBJECT = OtherKind("JSON", f"{_CONVERT} --kind datasets, or rename files of JSON lines to .jsonl")


class Peek:
    """Look into files before they are read; results are cached, so each file is requested once.

    Args:
        storage_options: as in fsspec.
    """

    def __init__(self, storage_options: Mapping[str, Any] | None = None) -> None:
        self._options = storage_options
        self._kinds: dict[str, tuple[str | None, bool | None]] = {}
        self._whole: dict[str, bytes] = {}
        self._misnamed: dict[str, dict[FoundFile, str]] = {}

    def head(self, file: FoundFile, most: int = _HEAD) -> bytes:
        """Return the first bytes of a file."""
        with connect(file.root, storage_options=self._options_of(file)).open(file.key) as data:
            return bytes(data.read(0, min(most, data.size)))

    def whole(self, file: FoundFile) -> bytes:
        """Return a file that describes others, of at most 64 MiB."""
        if file.url not in self._whole:
            store = connect(file.root, storage_options=self._options_of(file))
            self._whole[file.url] = store.get(file.key, max_bytes=_MOST_WHOLE)
        return self._whole[file.url]

    def kinds(self, files: Collection[FoundFile], *, named: bool = False) -> list[str | None]:
        """Return the kind of source that each file is by its first bytes, or None.

        Args:
            files: to be looked at.
            named: their names tell a kind, so one that cannot be read is left to its reader to report.
        """
        return [kind for kind, _ in self._look(files, named=named)]

    def compressed(self, files: Collection[Any]) -> list[bool]:
        """Return whether each file is compressed as a whole, by its first bytes.

        Raises:
            NotFoundError, StorageError: a file cannot be read.
        """
        return [
            bool(self._kind(file, named=False)[1] if compressed is None else compressed)
            for file, (_, compressed) in zip(files, self._look(files, named=True), strict=True)
        ]

    def _look(self, files: Collection[Any], *, named: bool) -> list[tuple[str | None, bool | None]]:
        """Return the kind of each file and whether it is compressed; sends requests concurrently.

        Both are None for a file that cannot be read, if names tell kinds.
        """
        fresh = [file for file in files if file.url not in self._kinds]
        if fresh:
            with ThreadPoolExecutor(min(_REQUESTS, len(fresh))) as pool:
                found = pool.map(partial(self._kind, named=named), fresh)
                self._kinds.update(zip([file.url for file in fresh], found, strict=True))
        return [self._kinds[file.url] for file in files]

    def misnamed(self, listing: Listing) -> dict[FoundFile, str]:
        """Return the files that are of another kind by their first bytes than by their names, with that kind.

        Of the files of each kind some are looked at; if one of them is misnamed, all are. Of files that are
        listed one by one the first are.
        """
        if listing.kind == "file" and len(self._misnamed) >= _LOOKS:
            return self._misnamed.get(listing.url, {})
        if listing.url not in self._misnamed:
            found = self._misnamed[listing.url] = {}
            named = {**listing.named}
            others = named.pop(None, [])
            if named.keys() <= {"text"} and all(file.key.lower().endswith(".json") for file in others):
                named["json"] = others  # compressed lines of JSON are called so, too
            for by_name, files in named.items():
                if by_name != "images":
                    for some in (files[:: max(1, len(files) // _LOOKS)], files):
                        pairs = zip(some, self.kinds(some, named=True), strict=True)
                        misnamed = {file: kind for file, kind in pairs if kind not in (None, by_name)}
                        if by_name == "json":
                            misnamed = {file: kind for file, kind in misnamed.items() if kind == "jsonl"}
                        if not misnamed:
                            break
                        found.update(misnamed)
        return self._misnamed[listing.url]

    def notes(self, listing: Listing) -> list[str]:
        """Return the note on files that are of another kind than their names say."""
        first = {kind: file.url for file, kind in reversed(self.misnamed(listing).items())}
        return [
            f"files such as {url} are {kind} by their first bytes, and not what their names say"
            for kind, url in first.items()
        ]

    def _kind(self, file: FoundFile, *, named: bool) -> tuple[str | None, bool | None]:
        try:
            head = self.head(file)
        except (StorageError, NotFoundError):
            if named:
                return None, None
            raise
        found, compression, _ = look_at(head, named=format_of_name(file.key) is not None)
        if found is not None:
            return {"tar": "webdataset"}.get(found, found), compression is not Compression.NONE
        if compression is not Compression.NONE:
            return kind_of_name(_of_compressed(file.key)), True
        kind = other_kind(file.key, head)
        return kind.source if kind is not None else None, False

    def other(self, file: FoundFile) -> OtherKind | None:
        """Return what a file is that no name and no framing tells; None where it is of no known kind."""
        return other_kind(
            file.key, self.head(file, _MOST_WHOLE if file.key.endswith("index.json") else _HEAD)
        )

    def _options_of(self, file: FoundFile) -> Mapping[str, Any] | None:
        return self._options if "://" in file.root else None


def other_kind(name: str, head: bytes) -> OtherKind | None:
    """Return what a file is by its name and first bytes; None where it is of no other kind.

    Args:
        name: of the file.
        head: its first bytes, a few hundred or all.
    """
    for magic, kind in _KINDS:
        if head.startswith(magic):
            return kind
    if head.startswith(_ZIP):
        # The name of the first member: 26 bytes on is its length, 30 bytes on the name.
        member = head[30 : 30 + int.from_bytes(head[26:28], "little")]
        if member.endswith(b".npy"):
            return OtherKind("a npz file of NumPy", _WRITE.format("numpy.load"))
        return OtherKind("a zip file", "unpack it, and name the folder")
    if name.rpartition("/")[2] == "index.json" and _is_litdata(head):
        return OtherKind("the index of a LitData dataset", _WRITE.format("litdata.StreamingDataset"))
    if name.lower().endswith(".json"):
        start = head.removeprefix(UTF8_BOM).lstrip()[:1]
        return {b"[": JSON_ARRAY, b"{": JSON_OBJECT}.get(start)
    return None


def _of_compressed(name: str) -> str:
    """Return a name that tells the kind of a compressed file: `.json.gz` is lines, `.json` one document."""
    return f"{name}.gz" if name.lower().endswith(".json") else name


def _is_litdata(data: bytes) -> bool:
    try:
        index = parse_json(data)
    except ValueError:
        return False
    return isinstance(index, dict) and isinstance(index.get("chunks"), list) and "config" in index


def sniff(head: bytes, name: str, wanted: str | None = None, *, strict: bool = True) -> ShardKind:
    """Return what a shard is that is to be framed: by its first bytes, then by its name.

    Args:
        head: its first `HEAD_BYTES` bytes, or all of it.
        name: its name.
        wanted: the format, where the caller knows it.
        strict: a TFRECORD file must begin with a plausible length.

    Raises:
        FormatError: neither bytes nor name say what it is, or they contradict the caller.
    """
    found, compression, first = look_at(head, named=format_of_name(name) is not None)
    other = other_kind(name, head) if wanted is None and found is None else None
    if other is not None:
        raise FormatError(f"this is {other.name}, which is not adopted", advice=other.way)
    by_name = format_of_name(name if compression is Compression.NONE else _of_compressed(name))
    kind = wanted or found or by_name
    if kind is None:
        raise FormatError(
            "the kind of this file is unknown",
            expected="TFRecord, tar, or a name that says what it is",
            found=f"first bytes {first.hex(' ')}" if first else "an empty file",
            advice=f"name its format, one of {', '.join(FORMATS)}: "
            'scan=shardio_indexer.ScanOptions(format="tfrecord")',
        )
    # A damaged first length is the scanner's business; text and images are none of it.
    unlikely = len(first) < 12 or int.from_bytes(first[:8], "little") > DEFAULT_LIMITS.record
    if strict and kind == "tfrecord" and found is None and first and unlikely:
        raise FormatError(
            "this is not a TFRecord file",
            start=0,
            expected="a length and its CRC-32C",
            found=f"first bytes {first.hex(' ')}",
            advice='name its format, such as scan=shardio_indexer.ScanOptions(format="text"), '
            "or leave it out",
        )
    return ShardKind(kind, compression)
