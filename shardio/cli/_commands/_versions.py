"""Commands to versions."""

from __future__ import annotations

import json
from typing import Annotated, Any

from cyclopts import Parameter

from shardio.cli._command import Given, command, reporting
from shardio.cli._console import CLEAN, Console
from shardio.cli._options import Takes
from shardio.cli._values import Whole
from shardio.display import count, moment, size

# Operations that change no record.
_APART = {"tag", "untag", "table", "keys", "gc"}


_WIDTH = 60  # of the metadata; `--json` has all of it


@command(
    Takes("shardio:log", without=("version",)),
    examples={
        "shardio log s3://bucket/birds -n 5": "the five latest versions",
        "shardio log birds --json": "digests, sessions and sizes in full",
    },
)
def log(
    given: Given,
    console: Console,
    *,
    n: Annotated[Whole | None, Parameter(name="-n", help="at most N versions")] = None,
) -> int:
    import shardio
    from shardio.view import log_facts

    versions = given.call(shardio.log, n=n)
    shown = [log_facts(version, versions[0]) for version in versions]
    if console.json:
        console.document({"url": given.url, "versions": shown})
        return CLEAN
    head = ("version", "committed (UTC)", "by", "records", "shards", "stored", "digest", "tags", "metadata")
    for title, apart in (
        ("", False),
        ("tags, tables, indexes and clean-ups, which leave the data unchanged:", True),
    ):
        chosen = [facts for facts in shown if (facts["operation"] in _APART) is apart]
        if chosen:
            if title:
                console.line()
                console.line(title)
            console.table([_row(facts) for facts in chosen], head=head, right=(0, 3, 4, 5))
    return CLEAN


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(facts["version"]),
        moment(facts["created_ms"]),
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


@command(
    Takes("shardio:tag"),
    examples={
        "shardio tag s3://bucket/birds paper-2026 --version 41": "from now on --version paper-2026 reads it",
        "shardio tag s3://bucket/birds": "all tags",
    },
)
def tag(
    given: Given,
    console: Console,
    name: Annotated[str | None, Parameter(help="the tag; without it, list all tags")] = None,
    *,
    delete: Annotated[bool, Parameter(help="remove the tag; its version stays")] = False,
) -> int:
    import shardio

    if name is None:
        if delete or given.move or given.dry_run or given.version is not None:
            raise ValueError("the name of the tag is missing: shardio tag URL NAME")
        found = given.call(shardio.tags)
        console.facts({"url": given.url, "tags": found})
        return CLEAN
    if delete:
        if given.move or given.version is not None:
            raise ValueError("--delete removes a tag, whatever its version: drop --move and --version")
        number = given.call(shardio.untag)
        done = "removed"
    else:
        tagged = given.call(shardio.tag)
        number, done = tagged.number, "set"
    console.facts({"url": given.url, "tag": name, "version": number, "done": done, "dry_run": given.dry_run})
    return CLEAN


reporting(
    "diff",
    Takes("shardio:diff", places=("url", "first", "second")),
    examples={"shardio diff s3://bucket/birds 41 43": "records, splits, schema, metadata"},
)
reporting(
    "restore",
    Takes("shardio:restore", places=("url", "version")),
    examples={
        "shardio restore s3://bucket/birds 41 --dry-run": "what would change",
        "shardio restore s3://bucket/birds v1": "go back to the version tagged v1",
    },
)
reporting(
    "gc",
    Takes("shardio:gc"),
    examples={
        "shardio gc s3://bucket/birds --keep 3": "what would be removed if the latest 3 versions stayed",
        "shardio gc s3://bucket/birds --keep 3 --yes": "remove it",
    },
)
