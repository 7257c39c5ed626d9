"""What an older program does with a newer file, as docs/format.md has it; and the columns that it has."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardio.errors import FormatError, UnsupportedVersionError
from shardio.metadata import (
    INDEX,
    KEY_RUN,
    LIST,
    Receipt,
    parse_head,
    parse_list,
    parse_manifest,
    parse_sessions,
)
from shardio.v1 import manifest_pb2 as pb
from tests.metadata.crafted import (
    columns_in,
    columns_of,
    container,
    header_of,
    index_of,
    list_of,
    manifest_message,
    sealed,
)

COLUMNS = columns_of([[20, 30], [40]])
READ: dict[str, Callable[[bytes], object]] = {
    "index": parse_head,
    "list": parse_list,
    "manifest": lambda data: parse_manifest(data, version=1),
    "sessions": parse_sessions,
    "receipt": Receipt.parse,
}
# The lowest number of a field that no message has, with one byte.
FIELD = b"\xf2\x3e\x01x"


def files(version: int = 1, column: str = "", field: bytes = b"") -> dict[str, bytes]:
    """Return one file of each kind, of a format version, with a column or a field more."""
    found = {}
    for name, data in (("list", list_of(2)), ("index", index_of(header_of(COLUMNS), COLUMNS))):
        columns = columns_in(data)
        more: dict[str, tuple[str, Any]] = {column: ("u8", [1])} if column else {}
        number = int.from_bytes(data[8:12], "little")
        found[name] = container(number, {**more, **columns}, version=version)
    messages = {
        "manifest": manifest_message(format_version=version),
        "sessions": pb.SessionList(format_version=version),
        "receipt": pb.Receipt(
            format_version=version, session="s", attempt="a", complete=True, shards=list_of(0)
        ),
    }
    return found | {name: sealed(message.SerializeToString() + field) for name, message in messages.items()}


def of_schema(kind: str = "int64", encoding: str = "example") -> bytes:
    features = [pb.FeatureSpec(name="a", type=kind)]
    return sealed(manifest_message(schemas=[pb.Schema(encoding=encoding, features=features)]))


NEWER = {
    "another format version": (files(version=2), UnsupportedVersionError),
    "no format version": (files(version=0), FormatError),
    "a column more": (
        {name: data for name, data in files(column="later").items() if name in ("list", "index")},
        UnsupportedVersionError,
    ),
    "an optional column more": (files(column="x_later"), None),
    "a field more": (files(field=FIELD), None),
    "a critical feature more": (
        {"manifest": sealed(manifest_message(critical_features=["later"]))}, UnsupportedVersionError
    ),
    "another type": ({"manifest": of_schema("float8")}, UnsupportedVersionError),
    "another encoding": ({"manifest": of_schema(encoding="arrow")}, UnsupportedVersionError),
    "another compression": ({"list": list_of(1, compression=[9])}, FormatError),
}  # fmt: skip
CASES = [(what, kind) for what, (found, _) in NEWER.items() for kind in found]


@pytest.mark.parametrize(("what", "kind"), CASES)
def test_what_an_older_program_does(what: str, kind: str) -> None:
    """A reader MUST refuse with `UnsupportedVersionError` what only a newer program knows, and ignore what is
    optional.
    """
    found, error = NEWER[what]
    if error is None:
        READ[kind](found[kind])
        return
    with pytest.raises(FormatError) as caught:
        READ[kind](found[kind])
    assert isinstance(caught.value, UnsupportedVersionError) == (error is UnsupportedVersionError)


@pytest.mark.parametrize(
    "columns", [INDEX.columns, LIST.columns, KEY_RUN.columns], ids=["index", "list", "run"]
)
def test_each_column_is_specified(columns) -> None:
    """The tables of docs/format.md name each column, its dtype and of what there is an item each."""
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    specified: dict[str, list[tuple[str, str]]] = {}
    row = r"^\| (`[a-z_0-9`, ]+`) \| ([a-z0-9, ]+) \| ([a-z]+) \|"
    for names, dtypes, per in re.findall(row, page, re.MULTILINE):
        kinds = dtypes.split(", ")
        cells = re.findall(r"`([a-z_0-9]+)`", names)
        for name, dtype in zip(cells, kinds * len(cells) if len(kinds) == 1 else kinds, strict=False):
            specified.setdefault(name, []).append((dtype, per))
    for name, column in columns.items():
        assert column in specified.get(name, []), name
