"""Commands to change a dataset."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shardio.cli._command import Takes, command, imported
from shardio.cli._console import CLEAN, Console
from shardio.cli._describe import DRY_RUN, feature_notes, print_change, print_version
from shardio.cli._given import Given, reported
from shardio.cli._values import Positions, pairs, parse_key
from shardio.display import count, plural, size

if TYPE_CHECKING:
    from shardio.lifecycle import CompactReport, DeleteReport, EraseReport, SchemaReport
    from shardio.metadata import Schema


@command(
    "show the schema, or change it without touching a record",
    Takes("shardio:open", only=("version",)),
    Takes("shardio:set_schema", without=("url", "features")),
    examples={
        "shardio schema s3://bucket/birds": "features, types, classes, descriptions",
        'shardio schema set birds --feature \'source={"type": "text", "default": "unknown"}\'': (
            "a feature that older records lack"
        ),
        "shardio schema set birds --rename label=species --dry-run": "what would change",
    },
)
def schema(
    given: Given,
    console: Console,
    words: Annotated[
        list[str], Parameter(metavar="[set] URL", help="a dataset; `set` before it changes its schema")
    ],
    *,
    feature: Annotated[
        list[str],
        Parameter(
            metavar="NAME=TYPE",
            help='new or changed feature: a type, a JSON object, "-" to take it away; may be repeated',
        ),
    ] = [],  # noqa: B006 - is not changed
    schema: Annotated[
        str | None, Parameter(help="JSON, the same for several, as `shardio schema --json` shows it")
    ] = None,
) -> int:
    import shardio

    change = len(words) == 2 and words[0] == "set"
    if not change and len(words) != 1:
        raise ValueError("give the URL of a dataset, or `set` and a URL")
    features = _features(schema, pairs(feature))
    if not change:
        if features or given.rename or given.dry_run:
            raise ValueError(f"to change the schema write: shardio schema set {words[0]} ...")
        reader = given.at(words[0]).call(shardio.open, split="all", decode=False)
        _show(console, reader.version, reader.schema)
        return CLEAN
    if given.version is not None:
        raise ValueError("--version shows the schema of a version; what is changed is the latest")
    report = given.at(words[1]).call(shardio.set_schema, features=features)
    console.report(report, lambda: _print_schema(console, report))
    return CLEAN


def _print_schema(console: Console, report: SchemaReport) -> None:
    for line in report.changes:
        console.line(line)
    print_version(console, report, anything=bool(report.changes))


def _features(document: str | None, short: dict[str, str]) -> dict[str, Any]:
    from shardio.metadata import parse_schema_json

    features: dict[str, Any] = {} if document is None else parse_schema_json(document)
    for name, text in short.items():
        # A short string needs no quotes.
        value = text if text[:1] in ("{", '"') else "null" if text == "-" else json.dumps(text)
        features.update(parse_schema_json(f"{{{json.dumps(name)}: {value}}}"))
    return features


def _show(console: Console, version: int | None, schema: Schema | None) -> None:
    from shardio.catalog import feature_facts

    if console.json:
        encoding, features = (None, None) if schema is None else (schema.encoding, schema.to_dict())
        console.document({"version": version, "encoding": encoding, "schema": features})
        return
    if schema is None:
        console.line("no schema: records are bytes")
        return
    facts = feature_facts(schema)
    rows = [(each["name"], each["type"], feature_notes(each, every_class=True)) for each in facts]
    console.table(rows, head=("feature", "type", f"({schema.encoding.partition(' ')[0]})"))


def remove_by(function: str, positional: str, show: Callable[[Console, Any], None]) -> Callable[..., int]:
    """Return the work of a command that removes records by a function, and prints its report.

    Args:
        function: `module:name`.
        positional: its argument that takes positions.
        show: prints the report for people.
    """

    def run(
        given: Given,
        console: Console,
        positions: Positions | None = None,
        *,
        where: Annotated[str | None, Parameter(help='records that match a condition: "label = 3"')] = None,
        key: Annotated[
            list[str], Parameter(help="records with this key, by `shardio keys`; may be repeated")
        ] = [],  # noqa: B006 - is not changed
    ) -> int:
        import shardio

        keys = None
        if key:
            known = given.call(shardio.open, split="all", decode=False).key_features
            keys = [parse_key(text, known, given.feature) for text in key]
        called = imported(function)
        with console.progress(called.__name__) as progress:
            report = given.call(called, **{positional: positions}, where=where, keys=keys, progress=progress)
        console.report(report, lambda: show(console, report))
        return CLEAN

    return run


def print_removed(console: Console, report: DeleteReport, done: str, would: str) -> None:
    """Print how many records are gone, and how many are left."""
    console.line(
        f"{would if report.dry_run else done} {plural(report.deleted, 'record')} of version "
        f"{report.read_version}, in {plural(len(report.shards), 'shard')}"
    )
    if report.already_deleted:
        console.line(f"deleted before: {plural(report.already_deleted, 'record')}")
    console.table([(f"  {name}", f"{count(records)} records left") for name, records in report.after.items()])


def _print_delete(console: Console, report: DeleteReport) -> None:
    print_removed(console, report, "deleted", "would delete")
    print_version(console, report, anything=bool(report.deleted))


delete = command(
    "delete records, in a new version",
    Takes("shardio:delete", without=("positions", "features")),
    name="delete",
    examples={
        "shardio delete s3://bucket/birds 17 42 --split train --dry-run": "what would be deleted",
        "shardio delete s3://bucket/birds 17 42 --split train --version v1": "positions of v1",
    },
)(remove_by("shardio:delete", "positions", _print_delete))


def _print_erase(console: Console, report: EraseReport) -> None:
    print_removed(console, report, "erased", "would erase")
    if report.dry_run or report.version is None:
        console.line(DRY_RUN if report.dry_run else "there was nothing to do")
    else:
        console.line(f"this is version {report.version}")
    if report.expired_versions:
        console.line(f"expired versions: {', '.join(map(str, report.expired_versions))}")
    if report.dropped_tags:
        console.line(f"dropped tags: {', '.join(report.dropped_tags)}")
    for key, stored in report.pending_gc.items():
        console.line(f"may hold the bytes until `shardio gc {report.url} --yes`: {key}  ({size(stored)})")
    for url in report.external_copies:
        console.line(f"may hold the bytes, and is not the dataset's to remove: {url}")
    for key, records in report.lost_for_good.items():
        console.line(f"{plural(records, 'record')} that a repair lost can't come back from a mirror: {key}")


erase = command(
    "erase records for good, with every earlier version",
    Takes("shardio:erase", without=("rows", "features")),
    name="erase",
    examples={
        "shardio erase s3://bucket/birds 17 --split train --dry-run": "what would be erased",
        "shardio erase s3://bucket/birds --key bird-7-5": "by key; then `shardio gc`",
    },
)(remove_by("shardio:erase", "rows", _print_erase))


@command(
    "remove or rename a whole split",
    Takes("shardio:remove_split", places=("url", "split")),
    examples={
        "shardio split s3://bucket/birds holdout --rename test": "holdout is called test from now on",
        "shardio split s3://bucket/birds scratch --remove --dry-run": "what would be left",
    },
)
def split(
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


@reported(
    "merge small shards and drop deleted records, in a new version",
    Takes("shardio:compact", choices={"compression": ("same", "zstd", "gzip", "zlib")}),
    examples={
        "shardio compact s3://bucket/birds --dry-run": "what would be gained",
        "shardio compact s3://bucket/birds --compression zstd": "merged, and compressed",
    },
)
def compact(console: Console, report: CompactReport) -> None:
    console.table(
        [
            ("  shards", count(report.shards_before), count(report.shards_after)),
            ("  stored", size(report.bytes_before), size(report.bytes_after)),
            ("  requests of an epoch", count(report.requests_before), count(report.requests_after)),
        ],
        head=("", "before", "after (estimate)" if report.dry_run else "after"),
        right=(1, 2),
    )
    if report.skipped_shards:
        console.line(f"skipped: {plural(report.skipped_shards, 'shard')} that others wrote (see --adopted)")
    if report.dry_run:
        more = DRY_RUN if report.records else "there is nothing to gain"
        console.line(f"to rewrite: {plural(report.records, 'record')}; {more}")
    elif report.version is None:
        console.line("there was nothing to gain")
    else:
        console.line(
            f"rewrote {plural(report.records, 'record')}, left out {count(report.dropped)} deleted; "
            f"this is version {report.version}; `shardio gc` removes the old shards with their versions"
        )
