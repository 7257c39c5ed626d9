"""Tables and key indexes as bytes: what is written is read, and what was changed is found."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardio.errors import FormatError, ShardioError
from shardio.kernels import crc32c
from shardio.metadata import (
    ENTRY,
    Feature,
    KeyPart,
    KeyRun,
    PartHead,
    hash_keys,
    naming,
    table_address,
    table_column,
)
from tests.metadata.crafted import hash_key

RUN = f"_shardio/keys/{'0f' * 16}.run"


def made_part(entries, page=4, number=0):
    """Return the bytes of a part, and its description."""
    pages = [entries[low : low + page] for low in range(0, len(entries), page)]
    first = np.array([part["hash"][0] for part in pages], np.uint64)
    crcs = np.array([crc32c(part.tobytes()) for part in pages], np.uint32)
    head = PartHead.pack(first, crcs, len(entries), page)
    data = head + entries.tobytes()
    sha256 = hashlib.sha256(head).digest()
    return data, KeyPart(naming.key_part_key(RUN, number), len(data), len(entries), len(head), sha256)


ENTRIES = st.lists(
    st.tuples(st.integers(0, 20) | st.integers(0, 2**64 - 1), st.integers(0, 9), st.integers(0, 2**32 - 1)),
    min_size=1,
    max_size=40,
    unique=True,
).map(lambda rows: np.sort(np.array(rows, ENTRY)))


@given(ENTRIES, st.integers(1, 9), st.data())
def test_every_entry_stands_in_the_pages_that_its_hash_leads_to(entries, page, data):
    whole, part = made_part(entries, page)
    head = PartHead.parse(whole[: part.head_bytes], part)
    asked = data.draw(st.sampled_from(entries["hash"].tolist()) | st.integers(0, 2**64 - 1))
    starts, stops = head.pages_of(np.array([asked], np.uint64))
    found = []
    for number in range(int(starts[0]), int(stops[0])):
        start, stop = head.bounds(number)
        rows = head.parse_page(whole[start:stop], number)
        found += rows[rows["hash"] == asked].tolist()
    assert found == entries[entries["hash"] == asked].tolist()


@given(ENTRIES, st.data())
def test_every_flipped_bit_of_a_part_is_found(entries, data):
    """A page MUST match its CRC-32C before an entry of it is used."""
    whole, part = made_part(entries)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    hurt = bytearray(whole)
    hurt[bit // 8] ^= 1 << bit % 8

    def read(content):
        head = PartHead.parse(bytes(content[: part.head_bytes]), part)
        for number in range(len(head.first)):
            start, stop = head.bounds(number)
            head.parse_page(bytes(content[start:stop]), number)

    read(whole)
    with pytest.raises(FormatError):
        read(hurt)


def made_run(parts):
    shards = np.arange(96, dtype=np.uint8).reshape(3, 32)
    return KeyRun("id", "text", shards, parts)


def test_a_run_is_read_as_it_was_sealed_and_every_flipped_bit_is_found():
    """A run MUST be the one that the manifest names, and the head of a part the one that the run names."""
    entries = np.zeros(5, ENTRY)
    none = KeyPart("", 0, 0, 0, bytes(32))
    run = made_run([none, made_part(entries, number=1)[1]])
    data, digest = run.seal()
    again, found = KeyRun.parse(data, key=RUN)
    assert found == digest
    assert (again.feature, again.type, again.parts) == (run.feature, run.type, run.parts)
    assert (again.shards == run.shards).all()
    for bit in range(0, 8 * len(data), 7):
        hurt = bytearray(data)
        hurt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            KeyRun.parse(bytes(hurt), key=RUN)


def test_runs_that_break_a_rule_are_refused():
    part = made_part(np.zeros(5, ENTRY))[1]
    none = KeyPart("", 0, 0, 0, bytes(32))
    for wrong, text in [
        (made_run([part, none, none]), "2\\^b parts"),
        (made_run([]), "2\\^b parts"),
        (made_run([replace(part, key=naming.key_part_key(RUN, 1))]), "another name"),
        (made_run([replace(part, key="../x")]), "leave the dataset"),
        (made_run([replace(part, size=1)]), "another size"),
        (made_run([replace(part, entries=0)]), "without entries"),
        (replace(made_run([part]), type="float32"), "type"),
    ]:
        with pytest.raises(ShardioError, match=text):
            KeyRun.parse(wrong.seal()[0], key=RUN)


@pytest.mark.parametrize("kind", ["int8", "int64", "uint16", "uint64"])
def test_hashes_of_integers_are_those_of_eight_bytes(kind):
    edges = np.iinfo(kind)
    keys = np.array([edges.min, 0, 1, edges.max], kind)
    assert hash_keys(keys, kind).tolist() == [hash_key(int(key), kind) for key in keys]
    expected = hashlib.blake2b((1).to_bytes(8, "little"), digest_size=8).digest()
    assert hash_key(1, kind) == int.from_bytes(expected, "little")


def test_hashes_of_text_and_bytes():
    assert (
        hash_keys(["", "wren", "ü"], "text").tolist()
        == hash_keys([b"", b"wren", "ü".encode()], "bytes").tolist()
    )
    assert hash_keys([], "text").shape == (0,)
    # Frozen: indexes that are hold these.
    frozen = hashlib.blake2b(b"wren", digest_size=8).digest()
    assert hash_key("wren", "text") == int.from_bytes(frozen, "little")


def test_the_address_of_a_table_tells_whatever_changes_what_is_extracted():
    columns = [
        table_column("a", "a", "", Feature("int64")),
        table_column("b", "a", "", Feature("int64")),
        table_column("a", "b", "", Feature("int64")),
        table_column("a", "a", "length", Feature("int64")),
        table_column("a", "a", "", Feature("int32")),
        table_column("a", "a", "", Feature("int64", optional=True)),
        table_column("a", "a", "", Feature("int64", default=0)),
        table_column("a", "a", "", Feature("int64", default=1)),
        table_column("a", "a", "", Feature("text", default="0")),
    ]
    addresses = {table_address(bytes(32), [column]) for column in columns}
    addresses |= {table_address(bytes(32), columns[:2]), table_address(bytes(32), columns[1::-1])}
    addresses |= {table_address(bytes(31) + b"1", columns[:1]), table_address(bytes(32), [])}
    assert len(addresses) == len(columns) + 4


def test_names_of_sidecars_are_shardios_own_and_no_others_are():
    own = [RUN, naming.key_part_key(RUN, 3), f"_shardio/tables/{'0' * 32}-{'1' * 16}.parquet"]
    for key in own:
        assert naming.is_own_key(key)
        assert not naming.is_own_key("x/" + key)
    assert naming.key_run_of(own[1]) == naming.key_run_of(RUN) == RUN
    assert naming.key_run_of(own[2]) is None
    for key in ("_shardio/keys/x.run", "_shardio/tables/x.parquet", "_shardio/keys/", own[1] + "x"):
        assert not naming.is_own_key(key)


def test_heads_of_parts_are_whole_units():
    assert [PartHead.size(n, 4) % 64 for n in (1, 4, 5, 1000)] == [0] * 4
