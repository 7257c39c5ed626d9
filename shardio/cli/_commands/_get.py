"""`shardio get`: records by position, decoded, or as bytes with their address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shardio.cli._command import Command, Takes
from shardio.cli._console import CLEAN, Console
from shardio.cli._given import READING, Given
from shardio.cli._records import ReadAs, RecordGroup, Where, open_parts, reader_of
from shardio.cli._values import Positions
from shardio.display import count, describe, plain, plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardio.reader import Location

_FIRST_BYTES = 512


def _run(
    given: Given,
    console: Console,
    positions: Positions | None = None,
    *,
    where: Where = None,
    raw: Annotated[bool, Parameter(help="payload bytes as hex, with url, shard, row and bytes")] = False,
    all: Annotated[  # noqa: A002 - what is typed
        bool, Parameter(help=f"with --raw: more than {_FIRST_BYTES} bytes of each")
    ] = False,
    read_as: ReadAs = "auto",
) -> int:
    if bool(positions) == (where is not None):
        raise ValueError("name records by their positions or by --where, one of the two")
    parts = open_parts(given, decode=not raw)
    if len(parts) > 1:
        names = ", ".join(part.name for part in parts)
        raise ValueError(f"{given.url} has several splits, choose one with --split: {names}")
    part = parts[0]
    chosen = (positions or []) if where is None else part.matching(where)
    read = reader_of("bytes" if raw else read_as)
    shown = []
    for number, (position, value) in enumerate(part.pick(chosen)):
        place = part.locate(position)
        if console.json:
            shown.append(_record(part, position, place, read(value)))
            continue
        if number:
            console.line()
        if raw:
            _print_raw(console, position, place, value, whole=all)
            continue
        console.line(f"[{position}]" + (f"  row {place.row} of {place.url}" if place else ""))
        for line in describe(read(value), width=console.width - 2):
            console.line(f"  {line}")
    if console.json:
        console.document({"url": given.url, "version": part.version, "records": shown})
    return CLEAN


def _record(part: RecordGroup, position: int, place: Location | None, value: Any) -> dict[str, Any]:
    address = place._asdict() if place else {}
    return {"split": part.name or None, "position": position, **address, "value": plain(value)}


def _print_raw(
    console: Console, position: int, place: Location | None, payload: bytes, *, whole: bool
) -> None:
    base = 0
    facts = [("position", count(position))]
    if place is not None:
        # A TFRecord frame has 12 bytes before the payload and 4 after it; other framings have none before.
        extra = place.stop - place.start - len(payload)
        base = place.start + (12 if extra == 16 else 0)
        facts += [
            ("url", place.url),
            ("shard", place.shard),
            ("row", count(place.row)),
            ("frame", f"bytes [{place.start}, {place.stop}){_of_what(place)}"),
        ]
    facts.append(("payload", f"{plural(len(payload), 'byte')} from {base}"))
    console.table(facts)
    shown = payload if whole else payload[:_FIRST_BYTES]
    for line in _hex_lines(shown, base):
        console.line(line)
    if len(shown) < len(payload):
        console.line(f"... {plural(len(payload) - len(shown), 'more byte')} (--all shows them)")


def _of_what(place: Location) -> str:
    compressed = place.shard.endswith((".zst", ".gz", ".zz"))
    return " of its decoded block" if compressed else " of the object"


def _hex_lines(data: bytes, base: int) -> Iterator[str]:
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        left, right = row[:8].hex(" "), row[8:].hex(" ")
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{base + start:08x}  {left:<23}  {right:<23}  |{text}|"


COMMAND = Command(
    name="get",
    summary="show records by position, or those that meet a condition",
    takes=(Takes("shardio:open", only=("url", "features"), shard=True), READING),
    run=_run,
    examples={
        "shardio get s3://bucket/birds 17 -1 --split train": "two records",
        "shardio get s3://bucket/birds --where 'label = 3' --split train": "all that meet a condition",
        "shardio get s3://bucket/birds 17 --split train --raw": "where a record is, and its bytes",
    },
)
