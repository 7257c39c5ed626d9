"""Commands to check and repair."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardio.cli._command import Given, command, reporting
from shardio.cli._console import CLEAN, DAMAGE, FAILED, Console
from shardio.cli._options import Takes
from shardio.display import count, plural, size

if TYPE_CHECKING:
    from shardio.maintenance import VerifyProgress, VerifyReport


@command(
    Takes("shardio:verify", without=("limits",), shard=True),
    examples={
        "shardio verify s3://bucket/birds": "the latest version, all splits",
        "shardio verify birds --decode": "also report images and values that don't decode",
        "shardio verify birds/data/x.tfrecord": "a single file; without an index, record by record",
        "shardio verify birds --json": 'the report; see "findings" and "ok"',
    },
)
def verify(given: Given, console: Console) -> int:
    import shardio

    printed = 0

    def print_new(state: VerifyProgress | VerifyReport) -> None:
        nonlocal printed
        for finding in state.findings[printed:] if not console.json else ():
            # The advice is much the same for many findings, so it is printed once, at the end.
            console.line(str(replace(finding, advice=None)))
            printed += 1

    def show(state: VerifyProgress) -> None:
        print_new(state)
        progress(state)

    with console.progress("verify") as progress:
        result = given.call(shardio.verify, progress=show)
    if console.json:
        console.document(result.to_dict())
    else:
        print_new(result)
        _summarise(console, result)
    return DAMAGE if result.damaged else CLEAN if result.ok else FAILED


def _summarise(console: Console, result: VerifyReport) -> None:
    what = result.url if result.version is None else f"{result.url} version {result.version}"
    what += (
        f": {plural(result.shards, 'shard')}, {plural(result.records, 'record')}, {size(result.stored_bytes)}"
    )
    for each in result.skipped[:3]:
        console.note(f"skipped when the shards were adopted: {each}")
    if len(result.skipped) > 3:
        console.note(f"{len(result.skipped) - 3:,} more places were skipped when the shards were adopted")
    if result.ok:
        how = "everything matches its checksums" if result.indexed else "every record matches its checksums"
        if result.undecodable_records is not None:
            how += ", and every record decodes"
        console.line(f"ok: {what}: {how}")
        if not result.indexed:
            console.line("no index: missing, duplicated and swapped records can't be detected")
        return
    good = f"{count(result.good_records)} of {plural(result.records, 'record')} are good"
    for advice in dict.fromkeys(finding.advice for finding in result.findings if finding.advice):
        console.line(f"what to do: {advice}")
    if result.undecodable_records:
        good += f", {plural(result.undecodable_records, 'record')} cannot be decoded"
    outcome = "DAMAGED" if result.damaged else "UNREADABLE"
    console.line(f"{outcome}: {what}: {plural(len(result.findings), 'finding')}; {good}")


reporting(
    "repair",
    Takes("shardio:repair"),
    code=lambda result: CLEAN if result.ok and not (result.dry_run and result.repaired) else DAMAGE,
    examples={
        "shardio repair s3://bucket/birds": "a dry run: the repairs, and the records that are lost",
        "shardio repair s3://bucket/birds --mirror s3://copy/birds --yes": "repair from a copy",
    },
)
