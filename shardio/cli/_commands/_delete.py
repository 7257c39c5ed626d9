"""`shardio delete` and what it shares with `shardio erase`: take records out of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardio.cli._command import WHOLE, Argument, Command, Option, options
from shardio.cli._console import CLEAN, Console
from shardio.cli._describe import print_version
from shardio.cli._signature import Takes, imported, typed
from shardio.cli._values import parse_key
from shardio.display import count, plural

if TYPE_CHECKING:
    from shardio.cli._given import Given
    from shardio.lifecycle import DeleteReport


def remove_by(function: str, show: Callable[[Console, Any], None]) -> Callable[[Given, Console], int]:
    """Return the work of a command that removes records by a function, and prints its report."""

    def run(given: Given, console: Console) -> int:
        from shardio.catalog import Catalog
        from shardio.reader import key_types
        from shardio.storage import connect

        keys = None
        if given.key:
            # What the manifest says of the keys is enough: the function opens the dataset.
            catalog = Catalog(given.call(connect))
            known = key_types(catalog.load(given.version).manifest)
            keys = [parse_key(text, known, given.feature) for text in given.key]
        called = imported(function)
        with console.progress(called.__name__) as progress:
            report = given.call(called, keys=keys, progress=progress)
        console.report(report, lambda: show(console, report))
        return CLEAN

    return run


def print_removed(console: Console, report: DeleteReport, done: str, would: str) -> None:
    """Print how many records are gone, and how many are left."""
    console.line(
        f"{would if report.dry_run else done} {plural(report.deleted, 'record')} of version "
        f"{report.read_version}, in {plural(len(report.shards), 'shard')}"
    )
    if report.already_deleted:
        console.line(f"deleted before: {plural(report.already_deleted, 'record')}")
    console.table([(f"  {name}", f"{count(records)} records left") for name, records in report.after.items()])


def record_params(function: str, positional: str) -> tuple[Any, ...]:
    """Return the parameters that say which records are meant."""
    return (
        Takes(function, only=("url",)),
        Argument(
            [positional],
            nargs=-1,
            type=WHOLE,
            metavar="POSITION...",
            callback=typed(list),
            help="positions of records, from 0",
        ),
        Option(["--where"], metavar="CONDITION", help='records that match a condition: "label = 3"'),
        options("--key", metavar="KEY", help="records with this key, by `shardio keys`; may be repeated"),
    )


def _print(console: Console, report: DeleteReport) -> None:
    print_removed(console, report, "deleted", "would delete")
    print_version(console, report, anything=bool(report.deleted))


COMMAND = Command(
    name="delete",
    summary="delete records, in a new version",
    takes=(
        *record_params("shardio:delete", "positions"),
        Takes("shardio:delete", without=("features",)),
    ),
    run=remove_by("shardio:delete", _print),
    examples={
        "shardio delete s3://bucket/birds 17 42 --split train --dry-run": "what would be deleted",
        "shardio delete s3://bucket/birds 17 42 --split train --version v1": "positions of v1",
    },
)
