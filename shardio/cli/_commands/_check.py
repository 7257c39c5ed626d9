"""Commands to check and repair."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardio.cli._command import Takes, command
from shardio.cli._console import CLEAN, DAMAGE, FAILED, Console
from shardio.cli._given import Given, reported
from shardio.display import count, plural, size

if TYPE_CHECKING:
    from shardio.lifecycle import RepairReport
    from shardio.maintenance import Finding, VerifyProgress, VerifyReport


@command(
    "compare every byte with its checksum and list every finding",
    Takes("shardio:verify", without=("limits",), shard=True),
    examples={
        "shardio verify s3://bucket/birds": "the latest version, all splits",
        "shardio verify birds --decode": "images and values that nothing can read are findings, too",
        "shardio verify birds/data/x.tfrecord": "a single file; without an index, record by record",
        "shardio verify birds --json": 'the report; see "findings" and "ok"',
    },
)
def verify(given: Given, console: Console) -> int:
    import shardio

    printed = 0

    def show(state: VerifyProgress) -> None:
        nonlocal printed
        for finding in state.findings[printed:] if not console.json else ():
            _print_verify(console, finding)
            printed += 1
        progress(state)

    with console.progress("verify") as progress:
        report = given.call(shardio.verify, progress=show)

    def show_rest() -> None:
        for finding in report.findings[printed:]:
            _print_verify(console, finding)
        _summarise(console, report)

    console.report(report, show_rest)
    return DAMAGE if report.damaged else CLEAN if report.ok else FAILED


def _print_verify(console: Console, finding: Finding) -> None:
    # What to do about it is much the same for many findings, so it is said once, at the end.
    console.line(str(replace(finding, advice=None)))


def _summarise(console: Console, report: VerifyReport) -> None:
    what = report.url if report.version is None else f"{report.url} version {report.version}"
    looked = (
        f"{plural(report.shards, 'shard')}, {plural(report.records, 'record')}, {size(report.stored_bytes)}"
    )
    if report.skipped:
        parts = plural(len(report.skipped), "place")
        console.note(f"{parts} of damage were left out when the shards were adopted, for example:")
        for part in report.skipped[:3]:
            console.note(str(part))
    if report.ok:
        how = "everything matches its checksums" if report.indexed else "every record matches its checksums"
        if report.undecodable_records is not None:
            how += ", and every record decodes"
        console.line(f"ok: {what}: {looked}: {how}")
        if not report.indexed:
            console.line("no index: missing, doubled and swapped records would not be noticed")
        return
    good = f"{count(report.good_records)} of {plural(report.records, 'record')} are good"
    for advice in dict.fromkeys(finding.advice for finding in report.findings if finding.advice):
        console.line(f"what to do: {advice}")
    if report.undecodable_records:
        good += f", {plural(report.undecodable_records, 'record')} cannot be decoded"
    outcome = "DAMAGED" if report.damaged else "UNREADABLE"
    console.line(f"{outcome}: {what}: {looked}: {plural(len(report.findings), 'finding')}; {good}")


def _code(report: RepairReport) -> int:
    return CLEAN if report.ok and not (report.dry_run and report.repaired) else DAMAGE


@reported(
    "repair what verify finds, from a copy or from what is left",
    Takes("shardio:repair"),
    code=_code,
    examples={
        "shardio repair s3://bucket/birds": "what would be repaired, and what is lost; nothing is changed",
        "shardio repair s3://bucket/birds --mirror s3://copy/birds --yes": "repair from a copy",
    },
)
def repair(console: Console, report: RepairReport) -> None:
    would = "would be " if report.dry_run else ""
    for repaired in report.repaired:
        console.line(f"{would}{repaired}")
    lines = []
    for lost in report.lost:
        rows = "" if lost.row is None else f" rows {lost.row} to {(lost.row_stop or 0) - 1}"
        place = "" if lost.start is None else f" bytes [{lost.start}, {lost.stop})"
        lines.append(f"lost: {lost.where}{rows}{place}: {lost.reason}")
    console.items(lines, console.line)
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
