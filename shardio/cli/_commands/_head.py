"""`shardio head`: the first records, decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import CLEAN, Command
from shardio.cli._options import add_reading, add_storage, add_url
from shardio.cli._records import READ_AS, open_parts, reader_of
from shardio.cli._values import describe, plain
from shardio.cli._words import plural

if TYPE_CHECKING:
    import argparse

    from shardio.cli._screen import Screen

__all__ = ["COMMAND"]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_url(parser, shard=True)
    parser.add_argument("-n", type=int, default=5, metavar="N", help="records of each split; default 5")
    parser.add_argument("--features", metavar="A,B", help="show these features only")
    parser.add_argument(
        "--as", choices=READ_AS, default="auto", dest="read_as", help="records without a schema"
    )
    add_reading(parser)
    add_storage(parser)


def _run(arguments: argparse.Namespace, screen: Screen) -> int:
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


COMMAND = Command(
    name="head",
    group="look",
    summary="show the first records, decoded",
    add_arguments=_add_arguments,
    run=_run,
    examples={
        "shardio head s3://bucket/birds -n 2": "the first two records of every split",
        "shardio head train-00000.tfrecord": "a single file, with or without its index",
    },
)
