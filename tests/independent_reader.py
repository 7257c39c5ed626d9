"""A reader of the format written from docs/format.md and the protos alone: it shares no line with shardio.

    python tests/independent_reader.py FOLDER [VERSION]

It reads whole local datasets (manifest, lists, indexes, deletions, records of every framing and compression),
compares every checksum on the way, and refuses what the page says a reader must refuse.  It is the page's own
proof: where this reader and shardio disagree, the page is wrong or one of them is.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import struct
import sys
import tarfile
import zlib
from pathlib import Path

import zstandard
from crc32c import crc32c

U32, TFRECORD, RAW, LINES, TAR_SAMPLE = "<I", 1, 2, 3, 4
NONE, ZSTD, GZIP, ZLIB = 1, 2, 3, 4
CRC32C, CRC32, UNCHECKED = 1, 2, 3
MANIFEST_FEATURES = {"deletions", "foreign_roots", "session_lists", "stored_names"}
COLUMNS = {
    "block_stop": "Q",
    "block_row_stop": "Q",
    "block_decoded_bytes": "I",
    "block_crc32c": "I",
    "block_frames_crc32c": "I",
    "frame_stop": "I",
}


class Refused(Exception):  # noqa: N818
    """What the page says a reader must refuse."""


def check(holds: object, rule: str) -> None:
    if not holds:
        raise Refused(rule)


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data: bytes) -> dict[int, list]:
    """Parse a protobuf message: values by field number; ints, or bytes of what is length-delimited."""
    found: dict[int, list] = {}
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        elif tag & 7 == 2:
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            size = {1: 8, 5: 4}[tag & 7]
            value, at = int.from_bytes(data[at : at + size], "little"), at + size
        found.setdefault(tag >> 3, []).append(value)
    check(at == len(data), "a message ends with its last field")
    return found


def one(message: dict[int, list], number: int, default=0):
    return message.get(number, [default])[-1]


def text(message: dict[int, list], number: int) -> str:
    return one(message, number, b"").decode()


def numbers(message: dict[int, list], number: int, *, fixed: bool = False) -> list[int]:
    """Return a repeated number, packed or not."""
    out = []
    for item in message.get(number, []):
        if isinstance(item, int):
            out.append(item)
        elif fixed:
            out += [value for (value,) in struct.iter_unpack(U32, item)]
        else:
            at = 0
            while at < len(item):
                value, at = varint(item, at)
                out.append(value)
    return out


def unsealed(data: bytes) -> tuple[dict[int, list], bytes]:
    """Return the message in a sealed object, and its digest."""
    check(len(data) >= 60 and data[:8] == b"SHRDMAN1" and data[-8:] == b"SHRDEND1", "a seal has both ends")
    check(int.from_bytes(data[8:16], "little") == len(data) - 60, "a seal says its length")
    check(struct.unpack(U32, data[-44:-40])[0] == crc32c(data[:-44]), "the CRC of a seal")
    check(data[-40:-8] == hashlib.sha256(data[:-40]).digest(), "the SHA-256 of a seal")
    return fields(data[16:-44]), data[-40:-8]


def manifest_of(root: Path, version: int | None) -> dict[int, list]:
    folder = root / "_shardio" / "manifests"
    names = sorted(int(path.stem) for path in folder.glob("*.manifest"))
    number = version or max(names)
    message, parent = {}, b""
    expired: list[int] = []
    for each in names:
        message_, digest = unsealed((folder / f"{each:020d}.manifest").read_bytes())
        check(
            one(message_, 4) == each and one(message_, 5) == each - 1,
            "a manifest has the version of its name",
        )
        check(one(message_, 6, b"") == parent, "a manifest names its parent's digest")
        check(len(one(message_, 3)) == len(one(message_, 7)) == 16, "UUID and write id have 16 bytes")
        expired = numbers(fields(one(message_, 17, b"")), 1)
        check(all(other < each for other in expired), "only earlier versions expire")
        parent = digest
        if each == number:
            message = message_
    check(number not in expired, "an expired version MUST NOT be opened")
    check(one(message, 1) == 1, "format version 1")
    features = [item.decode() for item in message.get(2, [])]
    check(features == sorted(set(features)) and set(features) <= MANIFEST_FEATURES, "features")
    check(("foreign_roots" in features) == (14 in message), "foreign_roots is where there are others")
    check(("session_lists" in features) == (18 in message), "session_lists is where there is one")
    sessions = [text(fields(item), 1) for item in message.get(11, [])]
    for item in message.get(18, []):
        ref = fields(item)
        data = (root / text(ref, 1)).read_bytes()
        older, digest = unsealed(data)
        facts = (len(data), digest, len(older.get(2, [])))
        check(facts == (one(ref, 2), one(ref, 3), one(ref, 4)), "a list of sessions is the one that is named")
        sessions += [text(fields(session), 1) for session in older[2]]
    check(len(sessions) == len(set(sessions)), "sessions do not occur twice")
    return message


def shards_of(root: Path, manifest: dict[int, list]) -> list[dict]:
    shards = []
    for item in manifest.get(15, []):
        ref = fields(item)
        data = (root / text(ref, 1)).read_bytes()
        message, digest = unsealed(data)
        check(
            (len(data), digest) == (one(ref, 2), one(ref, 3)), "every list is the one that the manifest names"
        )
        check(one(message, 1) == 1, "format version 1")
        count = len(message.get(4, []))
        check(count == one(ref, 4), "a list has as many shards as the manifest says")
        named = {
            3: "split",
            5: "root",
            7: "framing",
            8: "compression",
            9: "stored",
            10: "decoded",
            11: "rows",
        }
        named |= {12: "blocks", 13: "crc", 15: "head_bytes", 17: "schema", 19: "live", 21: "deletion_bytes"}
        columns: dict[str, list] = {name: numbers(message, n, fixed=n == 13) for n, name in named.items()}
        for number, name in ((4, "key"), (14, "index_key"), (18, "etag"), (20, "deletion_key")):
            columns[name] = [value.decode() for value in message.get(number, [])]
        for number, name, size in ((6, "uuid", 16), (16, "head_sha256", 32), (22, "deletion_sha256", 32)):
            joined = one(message, number, b"")
            columns[name] = [joined[at : at + size] for at in range(0, len(joined), size)]
        absent = {"root": 0, "index_key": "", "etag": "", "deletion_key": "", "deletion_bytes": 0}
        absent |= {"deletion_sha256": b""}
        for name, column in columns.items():
            if not column and name in absent:
                columns[name] = [absent[name]] * count
        columns["live"] = columns["live"] or columns["rows"]
        check(all(len(column) == count for column in columns.values()), "every column has one item a shard")
        names = [value.decode() for value in message.get(2, [])]
        columns["split"] = [names[number] for number in columns["split"]]
        shards += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    check(len({(s["root"], s["key"]) for s in shards}) == len(shards), "no shard is in a version twice")
    totals = {}
    for item in manifest.get(16, []):
        split = fields(item)
        totals[text(split, 1)] = tuple(one(split, number) for number in (2, 3, 4, 5))
    check(list(totals) == sorted(totals), "splits are sorted, each once")
    counted: dict[str, list[int]] = {}
    for shard in shards:
        so_far = counted.setdefault(shard["split"], [0, 0, 0, 0])
        for place, more in enumerate((shard["live"], 1, shard["stored"], shard["decoded"])):
            so_far[place] += more
    for name, total in totals.items():
        check(tuple(counted.get(name, [0, 0, 0, 0])) == total, f"the totals of {name} are those of the lists")
    return shards


def index_of(data: bytes, shard: dict) -> tuple[dict[int, list], dict[str, tuple[int, ...]], bool]:
    """Return header, columns and whether the shard is a stream, of an index that breaks no rule."""
    check(data[:8] == b"SHRDIDX1" and data[-8:] == b"SHRDEND1", "both ends of an index")
    size, crc = struct.unpack("<II", data[8:16])
    check(crc32c(data[16 : 16 + size]) == crc, "the CRC of the header")
    header, at = fields(data[16 : 16 + size]), 16 + size
    features = [item.decode() for item in header.get(2, [])]
    known = {"gaps", "record_crc32", "record_unchecked", "stream"}
    check(one(header, 1) == 1 and features == sorted(set(features)) and set(features) <= known, "features")
    columns: dict[str, tuple[int, ...]] = {}
    check([text(fields(item), 1) for item in header[12]] == list(COLUMNS), "the columns are these")
    for item in header[12]:
        column = fields(item)
        name, dtype = text(column, 1), {"u32": "I", "u64": "Q"}[text(column, 2)]
        length, offset = one(column, 3), one(column, 4)
        check(dtype == COLUMNS[name] and offset == at + -at % 64, "dtype and offset of a column")
        check(length == one(header, 9 if name == "frame_stop" else 10), "length of a column")
        check(not any(data[at:offset]), "padding is zeros")
        at = offset + length * struct.calcsize(f"<{dtype}")
        check(crc32c(data[offset:at]) == one(column, 5), f"the CRC of {name}")
        columns[name] = struct.unpack(f"<{length}{dtype}", data[offset:at])
        if name == "frame_stop":
            check(offset == shard["head_bytes"], "the head ends where frame_stop begins")
            check(
                hashlib.sha256(data[:offset]).digest() == shard["head_sha256"], "the head that the list names"
            )
    check(data[at:-8] == bytes(-at % 64) and len(data) == at + -at % 64 + 8, "the end of an index")
    stream, gaps = "stream" in features, [one(fields(item), 1) for item in header.get(13, [])]
    blocks = min(one(header, 10), 1) if stream else one(header, 10)
    facts = (one(header, 6), one(header, 3), one(header, 5), one(header, 7), one(header, 8), one(header, 9))
    names = ("uuid", "framing", "compression", "stored", "decoded", "rows")
    check(facts == tuple(shard[name] for name in names), "counts and kinds are those of the list")
    check(
        (blocks, one(header, 11)) == (shard["blocks"], shard["crc"]), "blocks and CRC are those of the list"
    )
    needed = {
        "gaps": bool(gaps),
        "record_crc32": one(header, 4) == CRC32,
        "record_unchecked": one(header, 4) == 3,
    }
    check(all((name in features) == need for name, need in needed.items()), "features are where needed")
    check((one(header, 3) == TFRECORD) == (one(header, 4) != 0), "a CRC kind for TFRECORD and only there")
    check(one(header, 5) != ZLIB or stream, "ZLIB only as a stream")
    check(not stream or one(header, 5) != NONE, "a stream is compressed")
    stops, rows = (0, *columns["block_stop"]), (0, *columns["block_row_stop"])
    check(stops[-1] == one(header, 8 if stream else 7), "the last block_stop")
    check(rows[-1] == one(header, 9), "the last block_row_stop")
    check(sum(columns["block_decoded_bytes"]) == one(header, 8), "the blocks add up")
    least = 0 if one(header, 3) == RAW else 1
    check(all(b - a >= least for a, b in itertools.pairwise(stops)), "block_stop increases")
    check(all(b >= a for a, b in itertools.pairwise(rows)), "rows do not decrease")
    check(
        [k for k in range(len(rows) - 1) if rows[k] == rows[k + 1]] == gaps,
        "blocks without rows are the gaps",
    )
    if stream or one(header, 5) == NONE:
        sizes = tuple(b - a for a, b in itertools.pairwise(stops))
        check(sizes == columns["block_decoded_bytes"], "stored and decoded sizes agree")
    return header, columns, stream


def unpacked(data: bytes, compression: int, most: int) -> bytes:
    """Decode members one after another, at most one byte more than there should be."""
    if compression == NONE:
        return data
    out = b""
    while data and len(out) <= most:
        if compression == ZSTD:
            if data[1:4] == b"\x2a\x4d\x18" and data[0] >> 4 == 5:  # a skippable frame
                data = data[8 + int.from_bytes(data[4:8], "little") :]
                continue
            decoder = zstandard.ZstdDecompressor(max_window_size=8 << 20).decompressobj()
            out += decoder.decompress(data)
        else:
            decoder = zlib.decompressobj(31 if compression == GZIP else 15)
            out += decoder.decompress(data, most + 1 - len(out))
            if len(out) > most:
                break
        check(decoder.eof, "a member has an end")
        data = decoder.unused_data
        check(not data or compression != ZLIB, "nothing follows a ZLIB stream")
    return out


def masked(crc: int) -> bytes:
    return ((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def payload(frame: bytes, framing: int, kind: int) -> object:
    if framing == RAW:
        return frame
    if framing == LINES:
        return frame[:-2] if frame.endswith(b"\r\n") else frame.removesuffix(b"\n")
    if framing == TFRECORD:
        check(int.from_bytes(frame[:8], "little") == len(frame) - 16, "a frame's length is that of the index")
        if kind != UNCHECKED:
            crc = crc32c if kind == CRC32C else zlib.crc32
            check(frame[8:12] == masked(crc(frame[:8])), "the CRC of a length")
            check(frame[-4:] == masked(crc(frame[12:-4])), "the CRC of a payload")
        return frame[12:-4]
    sample = {}
    with tarfile.open(fileobj=io.BytesIO(frame + bytes(1024))) as archive:
        for member in archive:
            folder, slash, name = member.name.rpartition("/")
            stem, dot, extension = name.partition(".")
            if member.isreg() and dot:
                sample |= {
                    "__key__": folder + slash + stem,
                    extension.lower(): archive.extractfile(member).read(),
                }
    return sample


def records_of(root: Path, shard: dict, roots: dict[int, Path]) -> list:
    data = (roots[shard["root"]] / shard["key"]).read_bytes()
    index = (root / (shard["index_key"] or f"{shard['key']}.shardidx")).read_bytes()
    header, columns, stream = index_of(index, shard)
    check((len(data), crc32c(data)) == (shard["stored"], shard["crc"]), "size and CRC of the object")
    framing, compression = one(header, 3), one(header, 5)
    if stream:
        data, compression = unpacked(data, compression, shard["decoded"]), NONE
    check(len(data) == (shard["decoded"] if stream else shard["stored"]), "a stream decodes to its size")
    found, stops, rows = [], (0, *columns["block_stop"]), (0, *columns["block_row_stop"])
    for block, size in enumerate(columns["block_decoded_bytes"]):
        stored = data[stops[block] : stops[block + 1]]
        check(crc32c(stored) == columns["block_crc32c"][block], "the CRC of a block")
        part = columns["frame_stop"][rows[block] : rows[block + 1]]
        check(
            crc32c(struct.pack(f"<{len(part)}I", *part)) == columns["block_frames_crc32c"][block],
            "frames CRC",
        )
        if not part:
            continue
        decoded = unpacked(stored, compression, size)
        check(len(decoded) == size == part[-1], "a block decodes to its size, and its last frame ends there")
        for start, stop in itertools.pairwise((0, *part)):
            check(stop - start >= {TFRECORD: 16, RAW: 0}.get(framing, 1), "a frame is not too small")
            found.append(payload(decoded[start:stop], framing, one(header, 4)))
    check(len(found) == shard["rows"], "as many rows as the list says")
    if not shard["deletion_key"]:
        check(shard["live"] == shard["rows"], "without deletions all rows are live")
        return found
    sidecar = (root / shard["deletion_key"]).read_bytes()
    facts = (len(sidecar), hashlib.sha256(sidecar).digest())
    check(facts == (shard["deletion_bytes"], shard["deletion_sha256"]), "the deletions that the list names")
    gone = [row for (row,) in struct.iter_unpack(U32, sidecar)]
    check(
        gone == sorted(set(gone)) and max(gone) < shard["rows"],
        "deleted rows ascend and are rows of the shard",
    )
    check(shard["live"] == shard["rows"] - len(gone), "live rows are the rows less those deleted")
    return [record for row, record in enumerate(found) if row not in set(gone)]


def read(
    root: Path, version: int | None = None, allowed: tuple[str, ...] = ()
) -> tuple[dict[str, list], dict]:
    """Return the records of a version by split, in order, and its free metadata.

    Args:
        root: folder of the dataset.
        version: None for the latest.
        allowed: data roots that may be touched, as the manifest spells them.
    """
    manifest = manifest_of(root, version)
    roots = {0: root}
    for item in manifest.get(14, []):
        number, url = one(fields(item), 1), text(fields(item), 2)
        check(number not in roots, "root 0 is not listed, and no number twice")
        check(url in allowed, "a data root that the caller did not allow MUST NOT be touched")
        roots[number] = Path(url)
    found: dict[str, list] = {text(fields(item), 1): [] for item in manifest.get(16, [])}
    for shard in shards_of(root, manifest):
        found[shard["split"]] += records_of(root, shard, roots)
    return found, json.loads(one(manifest, 13, b"{}") or b"{}")


if __name__ == "__main__":
    splits, metadata = read(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
    print({name: len(records) for name, records in splits.items()}, metadata)
