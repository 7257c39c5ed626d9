"""What a file claims is compared with its limit and with the bytes there are, before it costs anything."""

from __future__ import annotations

import hashlib
import itertools
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shardio.errors import FormatError
from shardio.format import Limits
from shardio.metadata import (
    ENTRY,
    KeyPart,
    KeyRun,
    PartHead,
    Receipt,
    naming,
    parse_head,
    parse_list,
    parse_manifest,
    parse_sessions,
)
from shardio.v1 import manifest_pb2 as pb
from tests.metadata.crafted import (
    LIST_DTYPES,
    columns_in,
    columns_of,
    container,
    header_of,
    index_of,
    list_of,
    manifest_message,
    sealed,
)

FEW = Limits(messages=50, items=100, shards=100, rows=1000, index=1 << 16, manifest=1 << 16)
COLUMNS = columns_of([[20, 30], [40]])
RUN = naming.key_run_key("0" * 32)
HUGE = (101, 1 << 31, 1 << 40, 1 << 52)


def claims(data: bytes, per: list[str], items: int) -> bytes:
    """Return a file of columns of which some, all that there are of one thing, claim so many items."""

    def edit(entries: list[list[Any]]) -> None:
        for entry in entries:
            if entry[0] in per:
                width = {"text": 4, "b16": 16, "b32": 32}.get(entry[1]) or int(entry[1][1:]) // 8
                entry[3], entry[4] = items, items * width % (1 << 64) + 4 * (entry[1] == "text")

    return container(int.from_bytes(data[8:12], "little"), columns_in(data), edit=edit)


def receipt(shards: bytes) -> bytes:
    message = pb.Receipt(format_version=1, session="s", attempt="a", complete=True, shards=shards)
    return sealed(message)


def run(**fields: Any) -> bytes:
    facts = {
        "format_version": 1, "feature": "id", "type": "text", "part_key": [naming.key_part_key(RUN, 0)],
        "part_bytes": [64 + 16], "part_entries": [1], "part_head_bytes": [64],
        "part_head_sha256": bytes(32), "shard_index_head_sha256": bytes(32),
    }  # fmt: skip
    return sealed(pb.KeyRun(**{**facts, **fields}))


def part_head(pages: int, page: int, entries: int, size: int = 64) -> tuple[bytes, KeyPart]:
    data = struct.pack("<8sIIQ", b"SHRDKEY1", pages, page, entries).ljust(size, b"\0")
    digest = hashlib.sha256(data).digest()
    return data, KeyPart("k", size + ENTRY.itemsize * entries, entries, size, digest)


def same_hashes(pages: int, page: int) -> tuple[bytes, KeyPart]:
    """Return the head of a part all of whose entries have the hash 0."""
    return part_head(pages, page, pages * page, PartHead.size(pages * page, page))


PER_SHARD = [name for name in LIST_DTYPES if name not in ("split_name", "key_prefix")]
INDEX = index_of(header_of(COLUMNS), COLUMNS)
PER_BLOCK = [name for name in COLUMNS if name.startswith("block_")]


READERS: dict[str, Callable[[Any], object]] = {
    "list": lambda data: parse_list(data, limits=FEW),
    "receipt": lambda data: Receipt.parse(data, limits=FEW),
    "index": lambda data: parse_head(data, limits=FEW),
    "manifest": lambda data: parse_manifest(data, version=1, limits=FEW),
    "sessions": lambda data: parse_sessions(data, limits=FEW),
    "run": lambda data: KeyRun.parse(data, key=RUN, limits=FEW),
    "part": lambda made: PartHead.parse(*made),
}


def huge_claims(items: int) -> Iterator[tuple[str, str, Any]]:
    """Yield kind, claim and content of files that claim so many of something."""
    for left_out in ("root", "framing", "uuid", "key_rest"):
        data = claims(list_of(2, **{left_out: None}), PER_SHARD, items)
        yield "list", f"{items} shards without {left_out}", data
        yield "receipt", f"{items} shards without {left_out}", receipt(data)
    for name in ("split_name", "key_prefix", "key_rest"):
        yield "list", f"{items} of {name}", claims(list_of(2), [name], items)
    for left_out in PER_BLOCK:
        names = tuple(name for name in COLUMNS if name != left_out)
        data = index_of(header_of(COLUMNS), COLUMNS, names=names)
        yield "index", f"{items} blocks without {left_out}", claims(data, PER_BLOCK, items)
    yield "index", f"{items} rows", claims(INDEX, ["frame_stop"], items << 8)
    gaps = index_of(header_of(COLUMNS, gaps={1: "x"}), COLUMNS)
    yield "index", f"{items} gaps", claims(gaps, ["gap_block", "gap_reason"], items)
    lists = [pb.ListRef(key="_shardio/lists/a", sha256=bytes(32), shards=items)]
    yield "manifest", f"{items} shards", sealed(manifest_message(lists=lists))
    splits = [pb.SplitTotals(name="a", rows=10 * items)]
    yield "manifest", f"{10 * items} rows", sealed(manifest_message(splits=splits))
    size = items << 10
    yield "run", f"{size} bytes of head", run(part_head_bytes=[size], part_bytes=[size + 16])
    yield (
        "run",
        f"{10 * items} entries",
        run(part_entries=[10 * items], part_bytes=[64 + 160 * items % (1 << 64)]),
    )
    yield "run", f"{items} bytes", run(part_bytes=[items])
    for pages, page in ((items % (1 << 32), 1), (1, items % 100), (0, 1)):
        yield "part", f"{pages} pages of {page}, {items} entries", part_head(pages, page, items)


def other_claims() -> Iterator[tuple[str, str, Any]]:
    """Yield what is over a limit or points past what there is by one."""
    wrong = {"rows": 1001, "index_head_bytes": (1 << 16) + 1, "split": 2, "prefix": 9, "deleted_rows": 11}
    for name, value in wrong.items():
        yield "list", f"{name} of {value}", list_of(1, **{name: [value]})
    sessions = [pb.MergedSession()] * 51
    yield "sessions", "51 of them", sealed(pb.SessionList(format_version=1, sessions=sessions))
    yield "manifest", "101 doomed keys", sealed(manifest_message(expiry=pb.Expiry(doomed_keys=["a"] * 101)))
    none = [0] * 128
    parts = run(part_key=[""] * 128, part_bytes=none, part_entries=none, part_head_bytes=none)
    yield "run", "128 parts", parts
    yield "part", "4200 pages of one hash", same_hashes(4200, 1 << 19)
    yield "run", "101 shards", run(shard_index_head_sha256=bytes(32 * 101))


CASES = {
    f"{kind}: {claim}": (kind, data)
    for kind, claim, data in itertools.chain(*map(huge_claims, HUGE), other_claims())
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_claim_is_refused_before_it_costs(case: str) -> None:
    """All that a file claims MUST be compared with the limits before anything is allocated.

    At most 2^20 entries of a run MUST have one hash, so that a lookup reads few pages.
    """
    kind, data = CASES[case]
    test_what_is_claimed_rightly_is_read()  # imports what is needed
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            READERS[kind](data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_is_claimed_rightly_is_read() -> None:
    right = [("list", list_of(2)), ("index", INDEX), ("manifest", sealed(manifest_message())), ("run", run())]
    parts = (part_head(1, 4096, 2), same_hashes(4, 1 << 19))
    for kind, data in (*right, *(("part", part) for part in parts)):
        READERS[kind](data)
