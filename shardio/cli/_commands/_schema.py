"""`shardio schema`: show the schema of a dataset, or change it in a new version."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shardio.cli._command import Command, Takes
from shardio.cli._console import CLEAN, Console
from shardio.cli._describe import feature_notes, print_version
from shardio.cli._given import Given
from shardio.cli._values import pairs

if TYPE_CHECKING:
    from shardio.lifecycle import SchemaReport
    from shardio.metadata import Schema


def _run(
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
    console.report(report, lambda: _print(console, report))
    return CLEAN


def _print(console: Console, report: SchemaReport) -> None:
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
    from shardio.view import feature_facts

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


COMMAND = Command(
    name="schema",
    summary="show the schema, or change it without touching a record",
    takes=(
        Takes("shardio:open", only=("version",)),
        Takes("shardio:set_schema", without=("url", "features")),
    ),
    run=_run,
    examples={
        "shardio schema s3://bucket/birds": "features, types, classes, descriptions",
        'shardio schema set birds --feature \'source={"type": "text", "default": "unknown"}\'': (
            "a feature that older records lack"
        ),
        "shardio schema set birds --rename label=species --dry-run": "what would change",
    },
)
