"""`shardio split`: remove or rename a whole split."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import Argument, Command, Option, flag
from shardio.cli._console import CLEAN
from shardio.cli._describe import print_change
from shardio.cli._options import CHANGE, storage_options, url_argument

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.cli._console import Console


def _run(arguments: SimpleNamespace, console: Console) -> int:
    import shardio

    options = {"dry_run": arguments.dry_run, "storage_options": storage_options(arguments)}
    if arguments.remove == (arguments.rename is not None):
        raise ValueError("give one of --remove and --rename NAME")
    if arguments.remove:
        report = shardio.remove_split(arguments.url, arguments.split, **options)
    else:
        report = shardio.rename_split(arguments.url, arguments.split, arguments.rename, **options)
    console.report(report, lambda: print_change(console, report))
    return CLEAN


_PARAMS = (
    url_argument(),
    Argument(["split"], metavar="SPLIT", help="name of the split"),
    flag("--remove", "remove it, in a new version"),
    Option(["--rename"], metavar="NAME", help="rename it, in a new version"),
    *CHANGE,
)

COMMAND = Command(
    name="split",
    summary="remove or rename a whole split",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio split s3://bucket/birds holdout --rename test": "holdout is called test from now on",
        "shardio split s3://bucket/birds scratch --remove --dry-run": "what would be left",
    },
)
