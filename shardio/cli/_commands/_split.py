"""`shardio split`: remove or rename a whole split."""

from __future__ import annotations

from shardio.cli._command import Command, Option, flag
from shardio.cli._console import CLEAN, Console
from shardio.cli._describe import print_change
from shardio.cli._given import Given
from shardio.cli._signature import Takes


def _run(given: Given, console: Console) -> int:
    import shardio

    if given.remove == (given.name is not None):
        raise ValueError("give one of --remove and --rename NAME")
    report = given.call(shardio.remove_split if given.remove else shardio.rename_split)
    console.report(report, lambda: print_change(console, report))
    return CLEAN


COMMAND = Command(
    name="split",
    summary="remove or rename a whole split",
    takes=(
        Takes("shardio:remove_split", places=("url", "split")),
        flag("--remove", "remove it, in a new version"),
        Option(["--rename", "name"], metavar="NAME", help="rename it, in a new version"),
    ),
    run=_run,
    examples={
        "shardio split s3://bucket/birds holdout --rename test": "holdout is called test from now on",
        "shardio split s3://bucket/birds scratch --remove --dry-run": "what would be left",
    },
)
