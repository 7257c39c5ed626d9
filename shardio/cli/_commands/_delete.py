"""`shardio delete` and what it shares with `shardio erase`: take records out of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shardio.cli._command import Command, Takes, imported
from shardio.cli._console import CLEAN, Console
from shardio.cli._describe import print_version
from shardio.cli._given import Given
from shardio.cli._values import Positions, parse_key
from shardio.display import count, plural

if TYPE_CHECKING:
    from shardio.lifecycle import DeleteReport


def remove_by(function: str, positional: str, show: Callable[[Console, Any], None]) -> Callable[..., int]:
    """Return the work of a command that removes records by a function, and prints its report.

    Args:
        function: `module:name`.
        positional: its argument that takes positions.
        show: prints the report for people.
    """

    def run(
        given: Given,
        console: Console,
        positions: Positions | None = None,
        *,
        where: Annotated[str | None, Parameter(help='records that match a condition: "label = 3"')] = None,
        key: Annotated[
            list[str], Parameter(help="records with this key, by `shardio keys`; may be repeated")
        ] = [],  # noqa: B006 - is not changed
    ) -> int:
        from shardio.catalog import Catalog
        from shardio.reader import key_types
        from shardio.storage import connect

        keys = None
        if key:
            # What the manifest says of the keys is enough: the function opens the dataset.
            catalog = Catalog(given.call(connect))
            known = key_types(catalog.load(given.version).manifest)
            keys = [parse_key(text, known, given.feature) for text in key]
        called = imported(function)
        with console.progress(called.__name__) as progress:
            report = given.call(called, **{positional: positions}, where=where, keys=keys, progress=progress)
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


def _print(console: Console, report: DeleteReport) -> None:
    print_removed(console, report, "deleted", "would delete")
    print_version(console, report, anything=bool(report.deleted))


COMMAND = Command(
    name="delete",
    summary="delete records, in a new version",
    takes=(Takes("shardio:delete", without=("positions", "features")),),
    run=remove_by("shardio:delete", "positions", _print),
    examples={
        "shardio delete s3://bucket/birds 17 42 --split train --dry-run": "what would be deleted",
        "shardio delete s3://bucket/birds 17 42 --split train --version v1": "positions of v1",
    },
)
