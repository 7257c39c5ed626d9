"""`shardio repair`: repair what verify finds, from a mirror or from what is left; a dry run unless told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import Command, Takes
from shardio.cli._console import CLEAN, DAMAGE, Console
from shardio.cli._given import reported
from shardio.display import plural

if TYPE_CHECKING:
    from shardio.lifecycle import RepairReport

_SHOWN = 20


def _code(report: RepairReport) -> int:
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
    for finding in report.unrepaired:
        console.line(f"not repaired: {finding!s}")
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


COMMAND = Command(
    name="repair",
    summary="repair what verify finds, from a copy or from what is left",
    takes=(Takes("shardio:repair"),),
    run=reported("shardio:repair", _print, _code),
    examples={
        "shardio repair s3://bucket/birds": "what would be repaired, and what is lost; nothing is changed",
        "shardio repair s3://bucket/birds --mirror s3://copy/birds --yes": "repair from a copy",
    },
)
