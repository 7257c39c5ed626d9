"""`shardio log`: the versions of a dataset, the latest first."""

from __future__ import annotations

import json
from typing import Annotated, Any

from cyclopts import Parameter

from shardio.cli._command import Command, Takes
from shardio.cli._console import CLEAN, Console
from shardio.cli._describe import moment
from shardio.cli._given import Given
from shardio.cli._values import Whole
from shardio.display import count, size

# Operations that change no record.
_APART = {"tag", "untag", "table", "keys", "gc"}
_WIDTH = 60  # of the metadata; `--json` has all of it


def _run(
    given: Given,
    console: Console,
    *,
    n: Annotated[Whole | None, Parameter(name="-n", help="the latest N versions only")] = None,
) -> int:
    import shardio

    versions = given.call(shardio.log, n=n)
    latest = versions[0].manifest
    expired = set(latest.expiry.expired_versions)
    shown = [
        {
            **version.to_dict(),
            "expired": version.number in expired,
            "tags": sorted(name for name, number in latest.tags.items() if number == version.number),
        }
        for version in versions
    ]
    if console.json:
        console.document({"url": given.url, "versions": shown})
        return CLEAN
    head = ("version", "committed (UTC)", "by", "records", "shards", "stored", "digest", "tags", "metadata")
    for title, apart in (
        ("", False),
        ("tags, tables, indexes and clean-ups, which leave the data as it is:", True),
    ):
        chosen = [facts for facts in shown if (facts["operation"] in _APART) is apart]
        if chosen:
            if title:
                console.line(f"\n{title}")
            console.table([_row(facts) for facts in chosen], head=head, right=(0, 3, 4, 5))
    return CLEAN


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(facts["version"]),
        moment(facts["created_ms"]).removesuffix(" UTC"),
        _operation(facts),
        count(facts["records"]),
        count(facts["shards"]),
        size(facts["stored_bytes"]),
        facts["digest"][:19],
        ", ".join(facts["tags"]),
        _metadata(facts["metadata"]),
    )


def _operation(facts: dict[str, Any]) -> str:
    restored = f" {facts['restored_version']}" if facts["operation"] == "restore" else ""
    operation: str = facts["operation"]
    return operation + restored + (" (expired)" if facts["expired"] else "")


def _metadata(metadata: dict[str, Any]) -> str:
    text = json.dumps(metadata, ensure_ascii=False) if metadata else ""
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


COMMAND = Command(
    name="log",
    summary="list the versions, the latest first",
    takes=(Takes("shardio:log"),),
    run=_run,
    examples={
        "shardio log s3://bucket/birds -n 5": "the five latest versions",
        "shardio log birds --json": "digests, sessions and sizes in full",
    },
)
