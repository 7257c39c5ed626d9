"""`shardio commit`: the last step of a job array."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardio.cli._command import WHOLE, Command, Option
from shardio.cli._console import CLEAN
from shardio.cli._options import STORAGE, storage_options, url_argument
from shardio.display import plural

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.cli._console import Console


def _run(arguments: SimpleNamespace, console: Console) -> int:
    import shardio

    version = shardio.commit(
        arguments.url,
        session=arguments.session,
        tasks=arguments.tasks,
        mode=arguments.mode,
        storage_options=storage_options(arguments),
    )
    records = {split.name: split.rows for split in version.manifest.splits}
    if console.json:
        console.document(
            {"url": arguments.url, "version": version.number, "digest": version.digest, "records": records}
        )
        return CLEAN
    total = plural(sum(records.values()), "record")
    console.line(f"{arguments.url} is at version {version.number}, {total} ({version.digest})")
    return CLEAN


_PARAMS = (
    url_argument(),
    Option(["--session"], required=True, metavar="S", help="id that the tasks were written under"),
    Option(["--tasks"], required=True, type=WHOLE, metavar="N", help="how many tasks there are"),
    Option(
        ["--mode"], type=click.Choice(("create", "append", "overwrite")),
        help="default: what the tasks were given",
    ),
    *STORAGE,
)  # fmt: skip

COMMAND = Command(
    name="commit",
    summary="commit the tasks of a job array as one new version",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio commit s3://bucket/birds --session run7 --tasks 512": "names the tasks that are missing; "
        "doing it twice is harmless",
    },
)
