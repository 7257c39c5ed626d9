"""What a file claims is compared with its limit and with the bytes there are, before it costs anything."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from shardio.errors import FormatError
from shardio.format import Limits
from shardio.metadata import (
    END,
    KeyRun,
    KeyRunRef,
    Receipt,
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

FEW = Limits(items=100, shards=100, rows=1000, index=1 << 16, manifest=1 << 16)
COLUMNS = columns_of([[20, 30], [40]])
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


def run(**fields: int) -> KeyRunRef:
    ref = KeyRunRef("_shardio/keys/a.run", 0, bytes(32), 3, 5)
    size = KeyRun.head_bytes(3, 5) + 16 * 5 + len(END)
    return replace(ref, **{"size": size, **fields})


PER_SHARD = [name for name in LIST_DTYPES if name not in ("split_name", "key_prefix")]
INDEX = index_of(header_of(COLUMNS), COLUMNS)
PER_BLOCK = [name for name in COLUMNS if name.startswith("block_")]


READERS: dict[str, Callable[[Any], object]] = {
    "list": lambda data: parse_list(data, limits=FEW),
    "receipt": lambda data: Receipt.parse(data, limits=FEW),
    "index": lambda data: parse_head(data, limits=FEW),
    "manifest": lambda data: parse_manifest(data, version=1, limits=FEW),
    "sessions": lambda data: parse_sessions(data, limits=FEW),
    "run": lambda ref: KeyRun.checked_head_bytes(ref, FEW, url="", advice=""),
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
    yield "run", f"{items} bytes", run(size=items)
    yield "run", f"{items} shards", run(shards=items)
    many = 1001 + items
    yield "run", f"{many} entries", run(entries=many, size=KeyRun.head_bytes(3, many) + 16 * many + len(END))


def other_claims() -> Iterator[tuple[str, str, Any]]:
    """Yield what is over a limit or points past what there is by one."""
    wrong = {"rows": 1001, "index_head_bytes": (1 << 16) + 1, "split": 2, "prefix": 9, "deleted_rows": 11}
    for name, value in wrong.items():
        yield "list", f"{name} of {value}", list_of(1, **{name: [value]})
    sessions = [pb.MergedSession()] * 51
    yield "sessions", "51 of them", sealed(pb.SessionList(format_version=1, sessions=sessions))
    yield "manifest", "101 doomed keys", sealed(manifest_message(expiry=pb.Expiry(doomed_keys=["a"] * 101)))


CASES = {
    f"{kind}: {claim}": (kind, data)
    for kind, claim, data in itertools.chain(*map(huge_claims, HUGE), other_claims())
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_claim_is_refused_before_it_costs(case: str) -> None:
    """All that a file claims MUST be compared with the limits before anything is allocated."""
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
    for kind, data in right:
        READERS[kind](data)
