"""Files of kinds that are not read as they are: named by their first bytes, with the shortest way in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from shardio.format import parse_json
from shardio.sources._find import FoundFile, Listing
from shardio.sources._names import is_nameless
from shardio.storage import connect
from shardio_indexer import look_at

MEGATRON_MAGIC = b"MMIDIDX\0\0"
# How a file of Riegeli begins, which ArrayRecord is: doc/riegeli_records_file_format.md of
# https://github.com/google/riegeli
_RIEGELI = bytes.fromhex("83af70d10d884a3f00000000000000004000000000000000")
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")


_HEAD = 4 << 10
_MOST_INDEX = 64 << 20
_MOST_FILES = 16


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
    (b"ARROW1", OtherKind("Arrow", _CONVERT, "arrow")),
    (b"\x89HDF\r\n\x1a\n", OtherKind("HDF5", f"{_CONVERT} --kind datasets", "datasets")),
    (b"\x93NUMPY", OtherKind("an array of NumPy", _WRITE.format("numpy.load"))),
    (_RIEGELI, OtherKind("ArrayRecord", _WRITE.format("array_record's ArrayRecordDataSource"))),
    (b"SQLite format 3\0", OtherKind("an SQLite database", _WRITE.format("Python's sqlite3"))),
)


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
    return None


def _is_litdata(data: bytes) -> bool:
    try:
        index = parse_json(data)
    except ValueError:
        return False
    return isinstance(index, dict) and isinstance(index.get("chunks"), list) and "config" in index


def find_other(
    listing: Listing, storage_options: Mapping[str, Any] | None
) -> tuple[FoundFile, OtherKind] | None:
    """Return the first file of such a kind, of each ending one is looked at; None where there is none.

    Raises:
        StorageError: a file cannot be read.
    """
    endings: dict[str, FoundFile] = {}
    for file in listing.data:
        name = file.key.rpartition("/")[2]
        ending = "" if is_nameless(name) else name.rpartition(".")[2]
        endings.setdefault(name if name == "index.json" else ending, file)
    for file in list(endings.values())[:_MOST_FILES]:
        most = _MOST_INDEX if file.key.endswith("index.json") else _HEAD
        kind = other_kind(file.key, _head_of(file.root, file.key, storage_options, most))
        if kind is not None:
            return file, kind
    return None


def kind_of_bytes(root: str, key: str, storage_options: Mapping[str, Any] | None) -> str | None:
    """Return the kind of source that a file without an ending is by its first bytes, or None.

    Raises:
        StorageError: the file cannot be read.
    """
    head = _head_of(root, key, storage_options, _HEAD)
    found = look_at(head, named=False).format
    if found is not None:
        return {"tar": "webdataset"}.get(found, found)
    kind = other_kind(key, head)
    return kind.source if kind is not None else None


def _head_of(root: str, key: str, storage_options: Mapping[str, Any] | None, most: int) -> bytes:
    options = storage_options if "://" in root else None
    with connect(root, storage_options=options).open(key) as data:
        return bytes(data.read(0, min(most, data.size)))
