"""`shardio delete`: take records out of a dataset, in a new version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import WHOLE, Argument, Command, Option, Value, options
from shardio.cli._console import CLEAN, Console
from shardio.cli._describe import DRY_RUN, print_version
from shardio.cli._signature import Takes, typed
from shardio.cli._values import parse_key
from shardio.display import count, plural, size

if TYPE_CHECKING:
    from shardio.cli._given import Given
    from shardio.lifecycle import DeleteReport, EraseReport
    from shardio.storage import CacheOptions


def _run(given: Given, console: Console) -> int:
    import shardio
    from shardio.catalog import Catalog
    from shardio.reader import key_types
    from shardio.storage import connect

    keys = None
    if given.key:
        # What the manifest says of the keys is enough: `delete` opens the dataset.
        catalog = Catalog(given.call(connect))
        known = key_types(catalog.load(given.version).manifest)
        keys = [parse_key(text, known, given.feature) for text in given.key]
    with console.progress("delete") as progress:
        report = given.call(shardio.delete, keys=keys, progress=progress)
    console.report(report, lambda: _print(console, report))
    return CLEAN


def _print(console: Console, report: DeleteReport) -> None:
    from shardio.lifecycle import EraseReport

    if isinstance(report, EraseReport):
        would = "would erase" if report.dry_run else "erased"
    else:
        would = "would delete" if report.dry_run else "deleted"
    console.line(
        f"{would} {plural(report.deleted, 'record')} of version {report.read_version}, in "
        f"{plural(len(report.shards), 'shard')}"
    )
    if report.already_deleted:
        console.line(f"deleted before: {plural(report.already_deleted, 'record')}")
    console.table([(f"  {name}", f"{count(records)} records left") for name, records in report.after.items()])
    if isinstance(report, EraseReport):
        _print_erased(console, report)
    else:
        print_version(console, report, anything=bool(report.deleted))


def _print_erased(console: Console, report: EraseReport) -> None:
    if report.dry_run or report.version is None:
        console.line(DRY_RUN if report.dry_run else "there was nothing to do")
    else:
        console.line(f"this is version {report.version}")
    if report.expired_versions:
        console.line(f"expired versions, which hold them: {', '.join(map(str, report.expired_versions))}")
    if report.dropped_tags:
        console.line(f"dropped tags: {', '.join(report.dropped_tags)}")
    for key, stored in report.pending_gc.items():
        console.line(f"holds the bytes until `shardio gc {report.url} --yes`: {key}  ({size(stored)})")
    for url in report.external_copies:
        console.line(f"holds the bytes, and is not the dataset's to remove: {url}")


def _cache(folder: str) -> CacheOptions:
    from shardio.storage import CacheOptions

    return CacheOptions(folder, max_bytes=1)


COMMAND = Command(
    name="delete",
    summary="delete records, in a new version",
    takes=(
        Takes("shardio:delete", only=("url",)),
        Argument(
            ["positions"],
            nargs=-1,
            type=WHOLE,
            metavar="POSITION...",
            callback=typed(list),
            help="positions of records, from 0",
        ),
        Option(["--where"], metavar="CONDITION", help='records that match a condition: "label = 3"'),
        options("--key", metavar="KEY", help="records with this key, by `shardio keys`; may be repeated"),
        Option(
            ["--cache"],
            metavar="DIR",
            type=Value(_cache),
            help="with --erase: a local cache of blocks that is emptied",
        ),
        Takes("shardio:delete", without=("features",)),
    ),
    run=_run,
    examples={
        "shardio delete s3://bucket/birds 17 42 --split train --dry-run": "what would be deleted",
        "shardio delete s3://bucket/birds 17 42 --split train --version v1": "positions of v1",
    },
)
