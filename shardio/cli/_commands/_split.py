"""`shardio split`: remove or rename a whole split."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from shardio.cli._command import Command, Takes
from shardio.cli._console import CLEAN, Console
from shardio.cli._describe import print_change
from shardio.cli._given import Given


def _run(
    given: Given,
    console: Console,
    *,
    remove: Annotated[bool, Parameter(help="remove it, in a new version")] = False,
    name: Annotated[str | None, Parameter(name="--rename", help="rename it, in a new version")] = None,
) -> int:
    import shardio

    if remove == (name is not None):
        raise ValueError("give one of --remove and --rename NAME")
    report = given.call(shardio.remove_split if remove else shardio.rename_split)
    console.report(report, lambda: print_change(console, report))
    return CLEAN


COMMAND = Command(
    name="split",
    summary="remove or rename a whole split",
    takes=(Takes("shardio:remove_split", places=("url", "split")),),
    run=_run,
    examples={
        "shardio split s3://bucket/birds holdout --rename test": "holdout is called test from now on",
        "shardio split s3://bucket/birds scratch --remove --dry-run": "what would be left",
    },
)
