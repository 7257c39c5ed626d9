"""Commands to versions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shardio.cli._command import Takes, command
from shardio.cli._console import CLEAN, Console
from shardio.cli._describe import DRY_RUN, moment, print_change
from shardio.cli._given import Given, reported
from shardio.cli._values import Whole
from shardio.display import count, plural, size

if TYPE_CHECKING:
    from shardio.catalog import GcReport
    from shardio.lifecycle import DiffReport


# Operations that change no record.
_APART = {"tag", "untag", "table", "keys", "gc"}


_WIDTH = 60  # of the metadata; `--json` has all of it


@command(
    "list the versions, the latest first",
    Takes("shardio:log"),
    examples={
        "shardio log s3://bucket/birds -n 5": "the five latest versions",
        "shardio log birds --json": "digests, sessions and sizes in full",
    },
)
def log(
    given: Given,
    console: Console,
    *,
    n: Annotated[Whole | None, Parameter(name="-n", help="the latest N versions only")] = None,
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
        ("tags, tables, indexes and clean-ups, which leave the data as it is:", True),
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


@command(
    "name a version so that it does not expire, or list the names",
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
            raise ValueError("name the tag that is meant: shardio tag URL NAME")
        found = given.call(shardio.tags)
        if console.json:
            console.document({"url": given.url, "tags": found})
        else:
            console.table([(name, f"version {number}") for name, number in found.items()])
        return CLEAN
    if delete:
        if given.move or given.version is not None:
            raise ValueError("--delete takes a tag away, whatever version it names")
        number = given.call(shardio.untag)
        done = "removed"
    else:
        tagged = given.call(shardio.tag)
        number, done = tagged.number, "set"
    if console.json:
        facts = {"url": given.url, "tag": name, "version": number}
        console.document({**facts, "done": done, "dry_run": given.dry_run})
        return CLEAN
    if done == "set":
        console.line(f"{name} {'would be' if given.dry_run else 'is'} version {number}")
    else:
        removed = "would remove" if given.dry_run else "removed"
        console.line(f"{removed} the tag {name} of version {number}")
    if given.dry_run:
        console.line(DRY_RUN)
    return CLEAN


@reported(
    "show what differs between two versions",
    Takes("shardio:diff", places=("url", "first", "second")),
    examples={"shardio diff s3://bucket/birds 41 43": "records, splits, schema, metadata"},
)
def diff(console: Console, report: DiffReport) -> None:
    console.line(f"from version {report.first} to version {report.second}")
    for number, operation in report.operations.items():
        console.line(f"  {number}  {operation}")
    for name, part in report.splits.items():
        console.line(
            f"split {name}: {_number(part.before)} to {_number(part.after)} records, "
            f"{count(part.added)} added, {count(part.removed)} removed"
        )
        for key, records in part.shards_added.items():
            console.line(f"  + {key}  ({plural(records, 'record')})")
        for key, records in part.shards_removed.items():
            console.line(f"  - {key}  ({plural(records, 'record')})")
        for key, (added, removed) in part.shards_changed.items():
            console.line(f"  ~ {key}  (+{added} -{removed})")
    if report.rewritten:
        console.line(
            "shards were rewritten in between: the same records, in other shards, count as removed and added"
        )
    for name, (old, new) in report.schema.items():
        console.line(f"{f'feature {name}' if name else 'encoding'}: {old} -> {new}")
    for name, (old, new) in report.metadata.items():
        console.line(f"metadata {name}: {json.dumps(old)} -> {json.dumps(new)}")
    for number, names in zip((report.first, report.second), report.tags, strict=True):
        if names:
            console.line(f"version {number} has the tags {', '.join(names)}")
    if not (report.splits or report.schema or report.metadata):
        console.line("they hold the same")


def _number(value: int | None) -> str:
    return "no" if value is None else count(value)


restore = reported(
    "make an earlier version the latest again",
    Takes("shardio:restore", places=("url", "version")),
    name="restore",
    examples={
        "shardio restore s3://bucket/birds 41 --dry-run": "what would change",
        "shardio restore s3://bucket/birds v1": "go back to what the tag v1 names",
    },
)(print_change)


@reported(
    "remove what only expired versions and abandoned sessions use",
    Takes("shardio:gc"),
    examples={
        "shardio gc s3://bucket/birds --keep 3": "what would go if the latest 3 versions stayed",
        "shardio gc s3://bucket/birds --keep 3 --yes": "remove it",
    },
)
def gc(console: Console, report: GcReport) -> None:
    _print_doomed(console, report)
    if report.temporaries:
        left = sum(info.size for info in report.temporaries)
        files = plural(len(report.temporaries), "temporary file")
        console.line(f"left by interrupted writes: {files}, {size(left)}")
    for note in report.unlisted:
        console.line(note)
    _print_end(console, report)


def _print_doomed(console: Console, report: GcReport) -> None:
    for info in report.doomed:
        console.line(f"{'would delete' if report.dry_run else 'deleted'}  {info.key}  ({size(info.size)})")
    for key, records in report.lost_for_good.items():
        console.line(
            f"lost for good: {plural(records, 'record')} of {key}, which a mirror could still bring back"
        )
    if report.expired_versions:
        console.line(f"expired versions: {', '.join(map(str, report.expired_versions))}")
    if report.unclaimed:
        console.line("in no version, still being written or given up (--abandon SESSION removes it):")
        console.table([(f"  {name}", size(amount)) for name, amount in sorted(report.unclaimed.items())])


def _print_end(console: Console, report: GcReport) -> None:
    doomed = f"{plural(len(report.doomed), 'object')}, {size(report.reclaimable_bytes)}"
    if report.dry_run:
        more = "; nothing was changed, --yes does it" if report.doomed else ""
        console.line(f"to delete: {doomed}{more}")
    elif report.version is None:
        console.line("there was nothing to do")
    else:
        console.line(f"deleted: {report.deleted} of {doomed}; this is version {report.version}")
