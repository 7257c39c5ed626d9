"""`shardio verify`: every finding, a line each, and a summary."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardio.cli._command import Command, Takes
from shardio.cli._console import CLEAN, DAMAGE, FAILED, Console
from shardio.display import count, plural, size

if TYPE_CHECKING:
    from shardio.cli._given import Given
    from shardio.maintenance import Finding, VerifyProgress, VerifyReport


def _run(given: Given, console: Console) -> int:
    import shardio

    printed = 0

    def show(state: VerifyProgress) -> None:
        nonlocal printed
        for finding in state.findings[printed:] if not console.json else ():
            _print(console, finding)
            printed += 1
        progress(state)

    with console.progress("verify") as progress:
        report = given.call(shardio.verify, progress=show)

    def show_rest() -> None:
        for finding in report.findings[printed:]:
            _print(console, finding)
        _summarise(console, report)

    console.report(report, show_rest)
    return DAMAGE if report.damaged else CLEAN if report.ok else FAILED


def _print(console: Console, finding: Finding) -> None:
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


COMMAND = Command(
    name="verify",
    summary="compare every byte with its checksum and list every finding",
    takes=(Takes("shardio:verify", without=("limits",), shard=True),),
    run=_run,
    examples={
        "shardio verify s3://bucket/birds": "the latest version, all splits",
        "shardio verify birds --decode": "images and values that nothing can read are findings, too",
        "shardio verify birds/data/x.tfrecord": "a single file; without an index, record by record",
        "shardio verify birds --json": 'the report; see "findings" and "ok"',
    },
)
