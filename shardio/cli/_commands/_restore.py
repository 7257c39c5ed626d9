"""`shardio restore`: make an earlier version the newest one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import Argument, Command
from shardio.cli._console import CLEAN
from shardio.cli._describe import print_change
from shardio.cli._options import CHANGE, VERSION_VALUE, storage_options, url_argument

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.cli._console import Console


def _run(arguments: SimpleNamespace, console: Console) -> int:
    import shardio

    report = shardio.restore(
        arguments.url,
        arguments.version_number,
        dry_run=arguments.dry_run,
        storage_options=storage_options(arguments),
    )
    console.report(report, lambda: print_change(console, report))
    return CLEAN


_PARAMS = (
    url_argument(),
    Argument(["version_number"], metavar="N|TAG", type=VERSION_VALUE, help="the version, by number or tag"),
    *CHANGE,
)

COMMAND = Command(
    name="restore",
    summary="make an earlier version the latest again",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio restore s3://bucket/birds 41 --dry-run": "what would change",
        "shardio restore s3://bucket/birds v1": "go back to what the tag v1 names",
    },
)
