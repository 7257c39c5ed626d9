"""`shardio repair`: repair what verify finds, from a mirror or from what is left; a dry run unless told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardio.cli._command import Command, Option, PlaceParam, Value, options
from shardio.cli._console import CLEAN, DAMAGE
from shardio.cli._options import (
    ENGINE,
    STORAGE,
    YES,
    allow_roots,
    allowed_roots_option,
    pair,
    storage_options,
    url_argument,
    workers_option,
)
from shardio.display import plural

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.cli._console import Console
    from shardio.lifecycle import RepairReport

_SHOWN = 20


def _run(arguments: SimpleNamespace, console: Console) -> int:
    import shardio

    with console.progress("repair") as progress:
        report = shardio.repair(
            arguments.url,
            mirror=arguments.mirror,
            dry_run=not arguments.yes,
            uncertain=arguments.uncertain,
            digest=arguments.digest,
            allow_roots=allow_roots(arguments),
            workers=arguments.workers,
            progress=progress,
            storage_options=storage_options(arguments),
            mirror_options=dict(arguments.mirror_option) or None,
            engine=arguments.engine,
        )
    console.report(report, lambda: _print(console, report))
    return CLEAN if report.ok and not (report.dry_run and report.repaired) else DAMAGE


def _print(console: Console, report: RepairReport) -> None:
    would = "would be " if report.dry_run else ""
    for repaired in report.repaired:
        console.line(f"{would}{repaired}")
    for lost in report.lost[:_SHOWN]:
        rows = "" if lost.row is None else f" rows {lost.row} to {(lost.row_stop or 0) - 1}"
        place = "" if lost.start is None else f" bytes [{lost.start}, {lost.stop})"
        console.line(f"lost: {lost.where}{rows}{place}: {lost.reason}")
    if len(report.lost) > _SHOWN:
        console.line(f"... and {len(report.lost) - _SHOWN} more places; --json lists them all")
    for where, count in report.uncertain.items():
        console.line(f"uncertain: {plural(count, 'record')} of {where}")
    for finding in report.unrepaired:
        console.line(f"not repaired: {finding}")
    for note in report.notes:
        console.note(note)
    _print_end(console, report)


def _print_end(console: Console, report: RepairReport) -> None:
    if not (report.repaired or report.unrepaired):
        console.line(f"ok: {report.url}: there is nothing to repair")
        return
    counts = f"{plural(len(report.repaired), 'object')}, {plural(report.lost_records, 'record')} lost"
    if report.dry_run:
        more = "; nothing was changed, --yes does it" if report.repaired else ""
        console.line(f"to repair: {counts}{more}")
    else:
        version = "" if report.version is None else f"; this is version {report.version}"
        console.line(f"repaired: {counts}{version}")
    if report.unrepaired:
        console.line(f"STILL DAMAGED: {report.url}: {plural(len(report.unrepaired), 'finding')}")


_PARAMS = (
    url_argument(),
    Option(
        ["--mirror"], metavar="URL", type=PlaceParam(), help="copy of the dataset to repair from"
    ),
    options(
        "--mirror-option",
        metavar="KEY=VALUE",
        type=Value(pair),
        help="storage option of the mirror; may be repeated",
    ),
    Option(
        ["--uncertain"],
        type=click.Choice(("take", "leave")),
        help="what becomes of records that nothing proves to belong where they are",
    ),
    Option(["--digest"], metavar="sha256:...", help="digest of the latest version, if its manifest is gone"),
    workers_option(),
    YES,
    allowed_roots_option(),
    *STORAGE,
    ENGINE,
)  # fmt: skip

COMMAND = Command(
    name="repair",
    summary="repair what verify finds, from a copy or from what is left",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio repair s3://bucket/birds": "what would be repaired, and what is lost; nothing is changed",
        "shardio repair s3://bucket/birds --mirror s3://copy/birds --yes": "repair from a copy",
        "shardio repair birds --uncertain leave --yes": "keep only the records that are good beyond doubt",
    },
)
