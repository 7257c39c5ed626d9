"""Lists of shards, receipts, deletions: round trip, every rule broken once."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from shardio.errors import FormatError, ShardioError, UnsafeNameError, UnsupportedVersionError
from shardio.format import Compression, Framing, Limits
from shardio.metadata import (
    Receipt,
    Schema,
    ShardEntry,
    ShardTable,
    SplitReceipt,
    SplitTotals,
    live_to_physical,
    pack_list,
    pack_lists,
    parse_deletions,
    parse_list,
    session_digest,
)
from shardio.v1 import manifest_pb2 as pb
from tests.metadata.crafted import LIST_DTYPES, list_of, sealed

COUNT = st.integers(0, 1 << 28)
KEY = st.from_regex(r"data/[A-Za-z0-9][A-Za-z0-9._=-]{0,20}", fullmatch=True)
DIGEST = st.binary(min_size=32, max_size=32)


def all_rows(rows: int) -> bytes:
    """Return the digest of the one sidecar that deletes every row; it is not computed for very many."""
    return bytes(32) if rows > 1 << 24 else hashlib.sha256(np.arange(rows, dtype="<u4")).digest()


@st.composite
def entries(draw) -> ShardEntry:
    rows = draw(COUNT)
    deleted = draw(st.integers(0, rows)) if draw(st.booleans()) else 0
    adopted = draw(st.booleans())
    has_table = draw(st.booleans())
    return ShardEntry(
        split=draw(st.sampled_from(["train", "test", "x"])),
        key=draw(KEY),
        uuid=draw(st.binary(min_size=16, max_size=16)),
        stored_bytes=draw(st.integers(0, 1 << 50)),
        decoded_bytes=draw(st.integers(0, 1 << 50)),
        rows=rows,
        blocks=draw(COUNT),
        crc32c=draw(st.integers(0, (1 << 32) - 1)),
        index_head_bytes=draw(COUNT),
        index_head_sha256=draw(DIGEST),
        framing=draw(st.sampled_from(list(Framing))),
        compression=draw(st.sampled_from(list(Compression))),
        root=draw(st.integers(0, 3)) if adopted else 0,
        index_key=draw(st.just("") | KEY),
        schema=draw(st.integers(0, 3)),
        etag=draw(st.text(min_size=1, max_size=9)) if adopted else "",
        deleted_rows=deleted,
        deletion_key="data/deleted" if deleted else "",
        deletion_sha256=all_rows(rows) if deleted == rows > 0 else draw(DIGEST) if deleted else bytes(32),
        table_key=f"_shardio/tables/{'0a' * 16}-{'1b' * 8}.parquet" if has_table else "",
        table_bytes=draw(COUNT) if has_table else 0,
        table_sha256=draw(DIGEST) if has_table else bytes(32),
    )


TABLES = st.lists(entries(), max_size=3, unique_by=lambda entry: (entry.root, entry.key)).map(
    ShardTable.from_entries
)


@given(TABLES)
def test_what_is_sealed_is_read(table):
    data, digest = pack_list(table)
    again, found = parse_list(data)
    assert list(again) == list(table)
    assert found == digest


FEW = st.builds(
    Limits,
    manifest=st.integers(150, 900),
    shards=st.integers(1, 4),
    items=st.integers(1, 4),
    rows=st.integers(1, 1 << 34),
    index=st.integers(1, 1 << 31),
)


def refusal(call) -> FormatError | None:
    try:
        call()
    except FormatError as error:
        return error
    return None


@given(TABLES, FEW)
def test_a_list_that_would_be_refused_is_not_sealed(table, limits):
    """A writer MUST NOT store what it would refuse to read."""
    data = pack_list(table)[0]
    taken = len(data) <= limits.manifest and refusal(lambda: parse_list(data, limits=limits)) is None
    assert (refusal(lambda: pack_list(table, limits=limits)) is None) == taken


@given(TABLES, st.integers(1, 3), st.integers(100, 1000))
def test_lists_are_cut_where_they_are_sealed(table, most_shards, most_bytes):
    parts = list(pack_lists(table, most_shards=most_shards, most_bytes=most_bytes))
    tables = [parse_list(data)[0] for data, _, _ in parts]
    assert [entry for part in tables for entry in part] == list(table)
    for part, (data, digest, shards) in zip(tables, parts, strict=True):
        assert parse_list(data)[1] == digest
        assert len(part) == shards <= most_shards
        assert len(data) <= most_bytes or shards == 1


@settings(max_examples=max(20, settings().max_examples // 10))
@given(st.lists(TABLES, max_size=3))
def test_tables_add_up(tables):
    whole = ShardTable.concatenate(tables)
    assert list(whole) == [entry for table in tables for entry in table]
    totals: dict[str, SplitTotals] = {}
    for entry in whole:
        one = SplitTotals(entry.split, entry.live_rows, 1, entry.stored_bytes, entry.decoded_bytes)
        totals[entry.split] = totals[entry.split] + one if entry.split in totals else one
    assert whole.totals() == totals
    for split in totals:
        assert list(whole.of_split(split)) == [entry for entry in whole if entry.split == split]
    assert all(entry.schema == 7 for entry in whole.with_schema(7))


def broken(match: str, *, error: type[ShardioError] = FormatError, **fields) -> None:
    with pytest.raises(error, match=match) as caught:
        parse_list(list_of(**fields), url="u")
    assert caught.value.url == "u"


@pytest.mark.parametrize("name", [name for name in LIST_DTYPES if name not in ("split_name", "key_prefix")])
def test_columns_have_one_item_a_shard(name):
    """Columns of the same things MUST have as many items; where one is absent, all are 0 or empty."""
    dtype = LIST_DTYPES[name]
    for items in (1, 3):
        item = {"text": "a", "b16": b"a" * 16, "b32": b"a" * 32}.get(dtype, 1)
        values = item * items if isinstance(item, bytes) else [item] * items
        broken("column .* has another length", **{name: values})
    broken(f"column {name} .*another size", edit=lambda entries: resize(entries, name), **column_of(name))


def column_of(name: str) -> dict[str, object]:
    """Return a column that is not in every list, so that it is."""
    dtype = LIST_DTYPES[name]
    if dtype == "text":
        return {} if name == "key_rest" else {name: ["", ""]}
    return {name: bytes(32 if dtype == "b16" else 64)} if dtype[0] == "b" else {name: [1, 1]}


def resize(entries, name: str) -> None:
    """Have a column claim fewer bytes than its items take."""
    (entry,) = (entry for entry in entries if entry[0] == name)
    entry[4] = 1


@pytest.mark.parametrize("stops", [[1, 4, 8], [0, 9, 8], [0, 4, 7], [0, 4, 9], [0, 1 << 31, 8], [0, 8, 4]])
def test_hostile_offsets_of_texts(stops):
    """The bytes of a column MUST be those that its items take, and the offsets of texts MUST ascend from 0 to
    the bytes of the column.
    """
    raw = np.array(stops, "<u4").tobytes() + b"aaaabbbb"
    broken("etag .* offsets that do not ascend", etag=[b"aaaa", b"bbbb"], swap=("etag", raw))


def test_texts_are_utf_8():
    for texts in ([b"\xff", b""], [b"\xc3", b"\xa9"], [b"a\xe2\x82", b"\xac"]):
        broken("etag .* is not UTF-8", etag=texts)
    assert list(parse_list(list_of(etag=["é", "\0€"]))[0].etag) == ["é", "\0€"]


def test_a_table_has_the_name_of_a_table():
    names = {"table_bytes": [4, 0]}
    good = f"_shardio/tables/{'0' * 32}-{'1' * 16}.parquet"
    parse_list(list_of(table_key=[good, ""], **names))
    for name in ("data/x.parquet", good.upper(), "../" + good, good + "/x", "_shardio/tables/x.parquet"):
        broken("no name of a table", table_key=[name, ""], **names)


def test_no_shard_twice():
    """A shard MUST NOT stand in a version twice."""
    broken("a shard is there once", key=["data/a", "data/a"])
    parse_list(list_of(key=["data/a", "data/a"], root=[1, 2]))


def test_live_rows():
    """Live rows MUST be the rows less those in the deletion sidecar.

    Deleted rows MUST be exactly where there is a deletion sidecar.
    """
    parse_list(list_of(deleted_rows=[3, 0], deletion_key=["data/d", ""]))
    broken("exactly where", deleted_rows=[3, 1], deletion_key=["data/d", ""])
    broken("exactly where", deleted_rows=[3, 0])
    broken("exactly where", deletion_key=["data/d", ""])
    broken("deleted rows are rows", deleted_rows=[11, 0], deletion_key=["data/d", ""])


def test_other_limits():
    """A prefix MUST be empty or end with a hyphen or a slash, and what follows it MUST hold neither: the key
    is cut behind its last one. A split and a prefix MUST be numbers of names that there are.
    """
    broken("out of range", rows=[1 << 32, 1])
    broken("out of range", rows=[1 << 63, 1])
    broken("head of an index is within", index_head_bytes=[1 << 40, 1])
    broken("its framing is a known one", framing=[1, 9])
    broken("its compression is a known one", compression=[0, 1])
    broken("out of range", framing=[1, 300])
    broken("past its names", split=[0, 2])
    broken("past its names", prefix=[0, 2])
    for rest in ("x-y", "x/y"):
        broken("cuts a key elsewhere", key_rest=["a", rest])
    broken("cuts a key elsewhere", key_prefix=["data/", "data"])
    broken("names a split twice", split_name=["a", "a"])
    broken("newer shardio", error=UnsupportedVersionError, version=2)
    with pytest.raises(FormatError):
        parse_list(list_of(), limits=Limits(shards=1))
    with pytest.raises(FormatError):
        parse_list(list_of(), limits=Limits(rows=19))


@pytest.mark.parametrize("key", ["../x", "/etc/passwd", "a/../../b", "data/\0", "", "a//b", ".."])
def test_hostile_keys(key):
    """A reader MUST refuse a key that breaks these rules before it touches any storage."""
    broken("key", error=UnsafeNameError, key=[key, "data/b"])
    broken("key", error=UnsafeNameError, key=[key, "data/b"], root=[1, 0])
    broken("key", error=UnsafeNameError, key=[key, "data/b"], etag=["etag", ""])
    if key:
        broken("key", error=UnsafeNameError, index_key=[key, ""])
        broken("key", error=UnsafeNameError, deletion_key=[key, ""], deleted_rows=[1, 0])
    broken("split", error=UnsafeNameError, split_name=["train", key])


def test_adopted_shards_keep_their_names():
    names = ["some where/ü*.tfrecord", "data/b"]
    broken("key", error=UnsafeNameError, key=names)
    parse_list(list_of(key=names, etag=["etag", ""]))
    parse_list(list_of(key=names, root=[3, 0]))


@given(st.binary(max_size=200))
def test_garbage_is_a_shardio_error(payload):
    for parse, data in ((parse_list, payload), (Receipt.parse, sealed(payload))):
        with pytest.raises(ShardioError):
            parse(data)


@given(st.data())
def test_a_changed_list_gives_an_error_or_a_table(data):
    """Whatever columns hold, with every checksum right."""
    fields = {name: LIST_DTYPES[name] for name in LIST_DTYPES}
    chosen = {}
    for name in data.draw(st.sets(st.sampled_from(sorted(fields)), min_size=1, max_size=4)):
        dtype = fields[name]
        if dtype == "text":
            chosen[name] = data.draw(st.lists(st.text(max_size=5), max_size=3))
        elif dtype[0] == "b":
            width = int(dtype[1:])
            chosen[name] = data.draw(st.binary(min_size=2 * width, max_size=2 * width))
        else:
            most = (1 << int(dtype[1:])) - 1
            chosen[name] = data.draw(
                st.lists(st.integers(0, most) | st.integers(0, 12), min_size=2, max_size=2)
            )
    try:
        table, _ = parse_list(list_of(**chosen))
    except ShardioError:
        return
    assert len(list(table)) == len(table)


@st.composite
def receipts(draw) -> Receipt:
    table = draw(TABLES)
    complete = draw(st.booleans())
    rows: dict[str, int] = {}
    for entry in table:
        rows[entry.split] = rows.get(entry.split, 0) + entry.rows
    return Receipt(
        session=draw(st.sampled_from(["run7", "auto.0", "a-b"])),
        task=draw(st.integers(0, 1 << 60)),
        attempt=draw(st.text(max_size=5)),
        complete=complete,
        table=table,
        splits={name: SplitReceipt(count, draw(COUNT)) for name, count in rows.items()},
        schema=draw(st.none() | st.just(Schema.parse({"a": "int64"}))),
        metadata=draw(st.dictionaries(st.text(), st.integers(), max_size=2)),
        mode=draw(st.sampled_from(["create", "append", "overwrite"])),
        base_version=draw(COUNT),
        sequence=0 if complete else draw(COUNT),
        previous="" if complete else draw(st.text(max_size=5)),
    )


@given(receipts())
def test_receipts_are_read_as_they_were_sealed(receipt):
    again = Receipt.parse(receipt.seal())
    assert list(again.table) == list(receipt.table)
    for name in ("session", "task", "attempt", "complete", "splits", "schema", "metadata", "mode"):
        assert getattr(again, name) == getattr(receipt, name)
    assert (again.base_version, again.sequence, again.previous) == (
        receipt.base_version,
        receipt.sequence,
        receipt.previous,
    )


@given(receipts(), FEW)
def test_a_receipt_that_would_be_refused_is_not_sealed(receipt, limits):
    """A writer MUST NOT store what it would refuse to read."""
    data = receipt.seal()
    error = refusal(lambda: receipt.seal(limits=limits))
    if error is None:
        assert len(data) <= limits.manifest
        assert list(Receipt.parse(data, limits=limits).table) == list(receipt.table)
    elif "larger than a reader takes" in error.what:
        assert len(data) > limits.manifest
    else:
        assert refusal(lambda: Receipt.parse(data, limits=limits)) is not None


def receipt_message(**fields) -> pb.Receipt:
    facts = {
        "format_version": 1,
        "session": "s",
        "attempt": "a",
        "complete": True,
        "shards": list_of(),
        "splits": [pb.SplitReceipt(name="train", rows=20)],
    }
    return pb.Receipt(**{**facts, **fields})


@pytest.mark.parametrize(
    ("fields", "match", "error"),
    [
        ({"format_version": 2}, "newer shardio", UnsupportedVersionError),
        ({"session": "../x"}, "session", UnsafeNameError),
        ({"splits": []}, "counts other rows", FormatError),
        ({"splits": [pb.SplitReceipt(name="train", rows=19)]}, "counts other rows", FormatError),
        ({"splits": [pb.SplitReceipt(name="..", rows=20)]}, "split", UnsafeNameError),
        ({"metadata_json": b"[1]"}, "not a JSON object", FormatError),
        ({"metadata_json": b"[" * 300_000}, "not JSON", FormatError),
        ({"shards": list_of(rows=[1])}, "another length", FormatError),
    ],
)
def test_receipts_that_break_a_rule(fields, match, error):
    Receipt.parse(sealed(receipt_message()))
    with pytest.raises(error, match=match) as caught:
        Receipt.parse(sealed(receipt_message(**fields)), url="u")
    assert caught.value.url == "u"


def test_the_digest_of_a_session():
    """Tasks in ascending order, splits by name; what was not written does not count."""
    one = (0, {"b": SplitReceipt(3, 7), "a": SplitReceipt(1, 2)})
    two = (1, {"a": SplitReceipt(5, 6)})
    by_hand = hashlib.sha256(
        bytes(8) + b"\1\0a" + (1).to_bytes(8, "little") + (2).to_bytes(4, "little")
        + bytes(8) + b"\1\0b" + (3).to_bytes(8, "little") + (7).to_bytes(4, "little")
        + (1).to_bytes(8, "little") + b"\1\0a" + (5).to_bytes(8, "little") + (6).to_bytes(4, "little")
    ).digest()  # fmt: skip
    assert session_digest([one, two]) == session_digest([two, one]) == by_hand
    assert session_digest([one]) != by_hand


@given(st.sets(st.integers(0, 60)), st.integers(0, 10))
def test_live_rows_are_those_that_are_left(deleted, more):
    rows = max(deleted, default=0) + 1 + more
    left = [row for row in range(rows) if row not in deleted]
    found = live_to_physical(np.arange(len(left)), np.array(sorted(deleted), np.int64))
    assert found.tolist() == left


def shard_with(data: bytes, rows: int = 10) -> ShardEntry:
    (entry,) = parse_list(list_of(1, rows=[rows]))[0]
    digest = hashlib.sha256(data).digest()
    return replace(entry, deleted_rows=len(data) // 4, deletion_key="data/d", deletion_sha256=digest)


def u32(*rows: int) -> bytes:
    return np.array(rows, "<u4").tobytes()


def test_a_deletion_sidecar():
    """Deleted rows MUST ascend strictly and be rows of the shard."""
    assert parse_deletions(u32(0, 3, 9), shard_with(u32(0, 3, 9))).tolist() == [0, 3, 9]
    for rows in ((3, 0), (3, 3), (0, 10), ((1 << 32) - 1,)):
        with pytest.raises(FormatError) as caught:
            parse_deletions(u32(*rows), shard_with(u32(*rows)), url="u")
        assert caught.value.url == "u"


def test_every_flipped_bit_of_a_deletion_sidecar_is_found():
    data = u32(0, 3, 9)
    damaged = [data[:-1], data + b"\0", b"", u32(0, 3, 8)]
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for wrong in damaged:
        with pytest.raises(FormatError):
            parse_deletions(wrong, shard_with(data))
