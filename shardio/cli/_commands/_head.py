"""`shardio head`: the first records, decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import CLEAN, Command, Option
from shardio.cli._options import READING, STORAGE, url_argument
from shardio.cli._records import DECODING, open_parts, reader_of
from shardio.cli._values import describe, plain
from shardio.cli._words import plural

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.cli._screen import Screen

__all__ = ["COMMAND"]


def _run(arguments: SimpleNamespace, screen: Screen) -> int:
    if arguments.n < 0:
        message = f"-n {arguments.n} must be at least 0"
        raise ValueError(message)
    read = reader_of(arguments.read_as)
    parts = open_parts(arguments, decode=True)
    shown = []
    for part in parts:
        if not screen.json and len(parts) > 1:
            if part is not parts[0]:
                screen.line()
            screen.line(f"{part.name}: {plural(len(part), 'record')}")
        for position, value in part.first(arguments.n):
            if screen.json:
                shown.append({"split": part.name or None, "position": position, "value": plain(read(value))})
                continue
            screen.line(f"[{position}]")
            for line in describe(read(value), width=screen.width - 2):
                screen.line(f"  {line}")
    if screen.json:
        screen.document({"url": arguments.url, "version": parts[0].version, "records": shown})
    return CLEAN


_PARAMS = (
    url_argument(shard=True),
    Option(["-n", "n"], type=int, default=5, metavar="N", help="records of each split; default 5"),
    *DECODING,
    *READING,
    *STORAGE,
)  # fmt: skip

COMMAND = Command(
    name="head",
    group="look",
    summary="show the first records, decoded",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio head s3://bucket/birds -n 2": "the first two records of every split",
        "shardio head train-00000.tfrecord": "a single file, with or without its index",
    },
)
