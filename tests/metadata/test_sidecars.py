"""Tables and key indexes as bytes: what is written is read, and what was changed is found."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardio.errors import FormatError
from shardio.format import DEFAULT_LIMITS
from shardio.kernels import crc32c
from shardio.metadata import (
    END,
    ENTRY,
    KEY_PAGE,
    Feature,
    KeyRun,
    KeyRunRef,
    hash_keys,
    naming,
    table_address,
    table_column,
)
from tests.metadata.crafted import hash_key

RUN = f"_shardio/keys/{'0f' * 16}.run"
SHARDS = np.arange(96, dtype=np.uint8).reshape(3, 32)


def made_run(entries):
    """Return the bytes of a run, and what a manifest says of it."""
    pages = [entries[low : low + KEY_PAGE] for low in range(0, len(entries), KEY_PAGE)]
    first = np.array([page["hash"][0] for page in pages], np.uint64)
    crcs = np.array([crc32c(page.tobytes()) for page in pages], np.uint32)
    head = KeyRun(SHARDS, first, crcs, len(entries)).pack_head(crc32c(entries.tobytes()))
    data = head + entries.tobytes() + END
    return data, KeyRunRef(RUN, len(data), hashlib.sha256(head).digest(), len(SHARDS), len(entries))


def parsed(data, ref):
    size = KeyRun.checked_head_bytes(ref, DEFAULT_LIMITS, url="u", advice="")
    return KeyRun.parse(data[:size], ref)


@given(st.integers(0, 3 * KEY_PAGE), st.integers(1, 5000), st.integers(0, 2**32 - 1))
def test_every_entry_stands_in_the_pages_that_its_hash_leads_to(count, spread, seed):
    random = np.random.default_rng(seed)
    entries = np.zeros(count, ENTRY)
    entries["hash"] = np.sort(random.integers(0, spread, count))
    entries["row"] = random.integers(0, 2**32, count)
    data, ref = made_run(entries)
    run = parsed(data, ref)
    assert (run.shards == SHARDS).all()
    asked = np.unique(random.integers(0, spread, 3).astype(np.uint64))
    pages = [run.parse_page(data[slice(*run.bounds(page))], page) for page in run.pages_of(asked)]
    found = np.concatenate([np.zeros(0, ENTRY), *pages])
    assert (found[np.isin(found["hash"], asked)] == entries[np.isin(entries["hash"], asked)]).all()


@given(st.data())
def test_every_flipped_bit_of_a_run_is_found(data):
    """A run MUST be the one that the manifest names. A page MUST match its CRC-32C before an entry of it is
    used.
    """
    entries = np.zeros(data.draw(st.integers(1, 40)), ENTRY)
    entries["row"] = np.arange(len(entries)) + 1
    whole, ref = made_run(entries)
    bit = data.draw(st.integers(0, 8 * (len(whole) - len(END)) - 1))
    hurt = bytearray(whole)
    hurt[bit // 8] ^= 1 << bit % 8

    def read(content):
        run = parsed(content, ref)
        return [run.parse_page(content[slice(*run.bounds(0))], 0)]

    read(whole)
    with pytest.raises(FormatError):
        read(bytes(hurt))


def test_runs_that_break_a_rule_are_refused():
    entries = np.zeros(2 * KEY_PAGE, ENTRY)
    entries["hash"] = np.arange(len(entries))
    data, ref = made_run(entries)
    parsed(data, ref)
    same = np.zeros((1 << 20) + 3 * KEY_PAGE, ENTRY)
    wrong = {
        "another size": (data, replace(ref, size=ref.size + 16)),
        "other shards": (data, replace(ref, shards=4, size=ref.size + 32)),
        "other entries": (data, replace(ref, entries=2 * KEY_PAGE - 1, size=ref.size - 16)),
        "another head": (data, replace(ref, sha256=bytes(32))),
        "pages that do not ascend": made_run(np.ascontiguousarray(entries[::-1])),
        "too many of one hash": made_run(same),
    }
    for name, (content, its) in wrong.items():
        with pytest.raises(FormatError):
            parsed(content, its)
            pytest.fail(name)


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
    own = [RUN, naming.key_run_key(), f"_shardio/tables/{'0' * 32}-{'1' * 16}.parquet"]
    for key in own:
        assert naming.is_own_key(key)
        assert not naming.is_own_key("x/" + key)
    assert [naming.is_key_run(key) for key in own] == [True, True, False]
    for key in ("_shardio/keys/x.run", "_shardio/tables/x.parquet", "_shardio/keys/", own[1] + "x"):
        assert not naming.is_own_key(key)
