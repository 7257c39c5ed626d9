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
# Of each kind of file the columns, in order: dtype, and of what there is an item each.
INDEX = """uuid b16 shard; framing n8 shard; record_crc n8 shard; compression n8 shard; stream n8 shard;
stored_bytes n63 shard; decoded_bytes n63 shard; crc32c n32 shard; writer text shard; gap_block n63 gap;
gap_reason text gap; block_stop u64 block; block_row_stop u64 block; block_decoded_bytes u32 block;
block_crc32c u32 block; block_frames_crc32c u32 block; frame_stop u32 row"""
LIST = """split_name text split; key_prefix text prefix; split n32 shard; prefix n32 shard;
key_rest text shard; root n32 shard; uuid b16 shard; framing n8 shard; compression n8 shard;
stored_bytes n63 shard; decoded_bytes n63 shard; rows n32 shard; blocks n63 shard; crc32c n32 shard;
index_key text shard; index_head_bytes n63 shard; index_head_sha256 b32 shard; schema n32 shard;
etag text shard; deleted_rows n32 shard; deletion_key text shard; deletion_sha256 b32 shard;
table_key text shard; table_bytes n63 shard; table_sha256 b32 shard"""
KINDS = {1: INDEX, 2: LIST}
INTEGERS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q"}


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


def numbers(message: dict[int, list], number: int) -> list[int]:
    """Return a repeated number, packed or not."""
    out = []
    for item in message.get(number, []):
        if isinstance(item, int):
            out.append(item)
            continue
        at = 0
        while at < len(item):
            value, at = varint(item, at)
            out.append(value)
    return out


def columns_of(data: bytes, kind: int) -> tuple[dict[str, tuple], dict[str, int]]:
    """Return the columns of a file, and where each begins."""
    check(data[:8] == b"SHRDCOL1" and data[-8:] == b"SHRDEND1", "both ends of a file of columns")
    found_kind, version, count, crc = struct.unpack("<IIII", data[8:24])
    check(found_kind == kind and count <= 256, "the kind of file, and at most 256 columns")
    at = 24 + 56 * count
    check(crc32c(data[24:at], crc32c(data[:20])) == crc, "the CRC of the directory")
    check(version == 1, "format version 1")
    known = {name: (dtype, per) for name, dtype, per in (each.split() for each in KINDS[kind].split(";"))}
    columns: dict[str, tuple] = {}
    begins: dict[str, int] = {}
    items = {"shard": 1} if kind == 1 else {}
    for raw, code, crc, many, size in struct.iter_unpack("<32s4sIQQ", data[24:at]):
        name, dtype = raw.rstrip(b"\0").decode(), code.rstrip(b"\0").decode()
        begin = at + -at % 8
        check(not any(data[at:begin]) and begin + size <= len(data) - 8, "padding is zeros, and columns fit")
        at = begin + size
        if name.startswith("x_"):
            continue
        check(name in known and name not in columns, "columns that are known, each once")
        wanted, per = known[name]
        check(wanted == dtype or (wanted[0] == "n" and dtype in INTEGERS), "dtype of a column")
        check(items.setdefault(per, many) == many, "columns of the same things have as many items")
        stored = data[begin:at]
        check(crc32c(stored) == crc, f"the CRC of {name}")
        begins[name] = begin
        if dtype == "text":
            check(size >= 4 * (many + 1), "offsets of texts")
            stops = struct.unpack(f"<{many + 1}I", stored[: 4 * many + 4])
            texts = stored[4 * many + 4 :]
            check(
                stops[0] == 0 and stops[-1] == len(texts) and list(stops) == sorted(stops), "offsets ascend"
            )
            columns[name] = tuple(texts[a:b].decode() for a, b in itertools.pairwise(stops))
        elif dtype in INTEGERS:
            check(size == many * struct.calcsize("<" + INTEGERS[dtype]), "bytes of a column")
            columns[name] = struct.unpack(f"<{many}{INTEGERS[dtype]}", stored)
            most = {"n8": 8, "n32": 32, "n63": 63}.get(wanted, 64)
            check(all(number >> most == 0 for number in columns[name]), "numbers within their bound")
        else:
            width = int(dtype[1:])
            check(size == many * width, "bytes of a column")
            columns[name] = tuple(stored[k : k + width] for k in range(0, size, width))
    check(not any(data[at:-8]) and len(data) == at + -at % 8 + 8, "the end of a file of columns")
    check([name for name in known if name in columns] == list(columns), "columns in their order")
    for name, (dtype, per) in known.items():
        absent = {"text": "", "b16": bytes(16), "b32": bytes(32)}.get(dtype, 0)
        columns.setdefault(name, (absent,) * items.get(per, 0))
    return columns, begins


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
        facts = (len(data), hashlib.sha256(data).digest())
        check(facts == (one(ref, 2), one(ref, 3)), "every list is the one that the manifest names")
        columns, _ = columns_of(data, 2)
        names, prefixes = columns.pop("split_name"), columns.pop("key_prefix") or ("",)
        check(len(set(names)) == len(names), "a split is named once")
        found = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        check(len(found) == one(ref, 4), "a list has as many shards as the manifest says")
        for shard in found:
            check(shard["split"] < len(names) and shard["prefix"] < len(prefixes), "numbers of names")
            prefix, rest = prefixes[shard.pop("prefix")], shard.pop("key_rest")
            check(prefix[-1:] in ("", "-", "/") and not set(rest) & {"-", "/"}, "where keys are cut")
            shard["key"], shard["split"] = prefix + rest, names[shard["split"]]
            check((shard["deleted_rows"] > 0) == bool(shard["deletion_key"]), "deleted rows have a sidecar")
            shard["live"] = shard["rows"] - shard["deleted_rows"]
            check(shard["live"] >= 0, "no more deleted rows than rows")
        shards += found
    check(len({(s["root"], s["key"]) for s in shards}) == len(shards), "no shard is in a version twice")
    totals = {}
    for item in manifest.get(16, []):
        split = fields(item)
        totals[text(split, 1)] = tuple(one(split, number) for number in (2, 3, 4, 5))
    check(list(totals) == sorted(totals), "splits are sorted, each once")
    counted: dict[str, list[int]] = {}
    for shard in shards:
        so_far = counted.setdefault(shard["split"], [0, 0, 0, 0])
        for place, more in enumerate((shard["live"], 1, shard["stored_bytes"], shard["decoded_bytes"])):
            so_far[place] += more
    for name, total in totals.items():
        check(tuple(counted.get(name, [0, 0, 0, 0])) == total, f"the totals of {name} are those of the lists")
    return shards


def index_of(data: bytes, shard: dict) -> dict[str, tuple]:
    """Return the columns of an index that breaks no rule."""
    columns, begins = columns_of(data, 1)
    head = data[: begins["frame_stop"]]
    check(list(begins)[-1] == "frame_stop", "frame_stop is the last column")
    facts = (len(head), hashlib.sha256(head).digest())
    check(facts == (shard["index_head_bytes"], shard["index_head_sha256"]), "the head that the list names")
    (stream,), (kind,), (framing,), (compression,) = (
        columns[name] for name in ("stream", "record_crc", "framing", "compression")
    )
    for name in ("uuid", "framing", "compression", "stored_bytes", "decoded_bytes", "crc32c"):
        check(columns[name][0] == shard[name], f"{name} is that of the list")
    blocks = len(columns["block_stop"])
    check(len(columns["frame_stop"]) == shard["rows"], "rows are those of the list")
    check((min(blocks, 1) if stream else blocks) == shard["blocks"], "blocks are those of the list")
    check(1 <= framing <= 4 and 1 <= compression <= 4 and kind <= 3 and stream <= 1, "kinds are known")
    check((framing == TFRECORD) == (kind != 0), "a CRC kind for TFRECORD and only there")
    check(compression != ZLIB or stream, "ZLIB only as a stream")
    check(not stream or compression != NONE, "a stream is compressed")
    stops, rows = (0, *columns["block_stop"]), (0, *columns["block_row_stop"])
    check(stops[-1] == shard["decoded_bytes" if stream else "stored_bytes"], "the last block_stop")
    check(rows[-1] == shard["rows"], "the last block_row_stop")
    check(sum(columns["block_decoded_bytes"]) == shard["decoded_bytes"], "the blocks add up")
    least = 0 if framing == RAW else 1
    check(all(b - a >= least for a, b in itertools.pairwise(stops)), "block_stop increases")
    check(all(b >= a for a, b in itertools.pairwise(rows)), "rows do not decrease")
    empty = [k for k in range(len(rows) - 1) if rows[k] == rows[k + 1]]
    check(empty == list(columns["gap_block"]), "blocks without rows are the gaps")
    if stream or compression == NONE:
        sizes = tuple(b - a for a, b in itertools.pairwise(stops))
        check(sizes == columns["block_decoded_bytes"], "stored and decoded sizes agree")
    return columns


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
    columns = index_of(index, shard)
    check((len(data), crc32c(data)) == (shard["stored_bytes"], shard["crc32c"]), "size and CRC of the object")
    framing, compression, (stream,) = shard["framing"], shard["compression"], columns["stream"]
    if stream:
        data, compression = unpacked(data, compression, shard["decoded_bytes"]), NONE
    check(len(data) == shard["decoded_bytes" if stream else "stored_bytes"], "a stream decodes to its size")
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
            found.append(payload(decoded[start:stop], framing, columns["record_crc"][0]))
    check(len(found) == shard["rows"], "as many rows as the list says")
    if not shard["deletion_key"]:
        check(shard["live"] == shard["rows"], "without deletions all rows are live")
        return found
    sidecar = (root / shard["deletion_key"]).read_bytes()
    facts = (len(sidecar), hashlib.sha256(sidecar).digest())
    wanted = (4 * shard["deleted_rows"], shard["deletion_sha256"])
    check(facts == wanted, "the deletions that the list names")
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
