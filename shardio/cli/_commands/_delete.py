"""`shardio delete`: take records out of a dataset, in a new version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import WHOLE, Argument, Command, Option, flag, options
from shardio.cli._console import CLEAN
from shardio.cli._describe import DRY_RUN, print_version
from shardio.cli._options import (
    CHANGE,
    VERSION,
    allow_roots,
    allowed_roots_option,
    parse_key,
    storage_options,
    url_argument,
)
from shardio.display import count, plural, size

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.cli._console import Console
    from shardio.lifecycle import DeleteReport, EraseReport


def _run(arguments: SimpleNamespace, console: Console) -> int:
    import shardio
    from shardio.catalog import Catalog
    from shardio.reader import key_types
    from shardio.storage import CacheOptions, connect

    storage = storage_options(arguments)
    keys = None
    if arguments.key:
        # What the manifest says of the keys is enough: `delete` opens the dataset.
        catalog = Catalog(connect(arguments.url, storage_options=storage))
        known = key_types(catalog.load(arguments.version_number).manifest)
        keys = [parse_key(text, known, arguments.feature) for text in arguments.key]
    with console.progress("delete") as progress:
        report = shardio.delete(
            arguments.url,
            arguments.positions or None,
            where=arguments.where,
            keys=keys,
            feature=arguments.feature,
            split=arguments.split,
            version=arguments.version_number,
            erase=arguments.erase,
            drop_tags=arguments.drop_tags,
            cache=None if arguments.cache is None else CacheOptions(arguments.cache, max_bytes=1),
            dry_run=arguments.dry_run,
            progress=progress,
            allow_roots=allow_roots(arguments),
            storage_options=storage,
        )
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


_PARAMS = (
    url_argument(),
    Argument(["positions"], nargs=-1, type=WHOLE, metavar="POSITION...", help="positions of records, from 0"),
    Option(["--split"], metavar="NAME", group="dataset", help="split that the positions count in"),
    VERSION,
    allowed_roots_option(),
    Option(["--where"], metavar="CONDITION", help='records that match a condition: "label = 3"'),
    options("--key", metavar="KEY", help="records with this key, by `shardio keys`; may be repeated"),
    Option(["--feature"], metavar="NAME", help="with --key: the feature whose keys these are"),
    flag("--erase", "for good: rewrite their shards, and expire the versions that hold the records"),
    flag("--drop-tags", "with --erase: drop the tags of these versions"),
    Option(["--cache"], metavar="DIR", help="with --erase: a local cache of blocks that is emptied"),
    *CHANGE,
)

COMMAND = Command(
    name="delete",
    summary="delete records, in a new version",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio delete s3://bucket/birds 17 42 --split train --dry-run": "what would be deleted",
        "shardio delete s3://bucket/birds 17 42 --split train --version v1": "positions of v1",
    },
)
