"""`shardio schema`: show the schema of a dataset, or change it in a new version."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shardio.cli._command import Argument, Command, Option, PlaceParam, Value, options
from shardio.cli._console import CLEAN
from shardio.cli._describe import feature_facts, feature_notes, print_version
from shardio.cli._options import CHANGE, VERSION, name_and_value, storage_options

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.cli._console import Console
    from shardio.lifecycle import SchemaReport
    from shardio.metadata import Schema


def _run(arguments: SimpleNamespace, console: Console) -> int:
    import shardio

    words = list(arguments.words)
    change = len(words) == 2 and words[0] == "set"
    if not change and len(words) != 1:
        raise ValueError("give the URL of a dataset, or `set` and a URL")
    given = _features(arguments)
    rename = dict(arguments.rename)
    options = storage_options(arguments)
    if not change:
        if given or rename or arguments.dry_run:
            message = f"to change the schema write: shardio schema set {words[0]} ..."
            raise ValueError(message)
        reader = shardio.open(
            words[0], "all", version=arguments.version_number, decode=False, storage_options=options
        )
        schema = reader.schema
        if console.json:
            encoding = None if schema is None else schema.encoding
            features = None if schema is None else schema.to_dict()
            console.document({"version": reader.version, "encoding": encoding, "schema": features})
        elif schema is None:
            console.line("no schema: records are bytes")
        else:
            _show(console, schema)
        return CLEAN
    if arguments.version_number is not None:
        raise ValueError("--version shows the schema of a version; what is changed is the latest")
    report = shardio.set_schema(
        words[1], given, rename=rename, dry_run=arguments.dry_run, storage_options=options
    )
    console.report(report, lambda: _print(console, report))
    return CLEAN


def _print(console: Console, report: SchemaReport) -> None:
    for line in report.changes:
        console.line(line)
    print_version(console, report, anything=bool(report.changes))


def _features(arguments: SimpleNamespace) -> dict[str, Any]:
    from shardio.metadata import parse_schema_json

    given: dict[str, Any] = {} if arguments.schema is None else parse_schema_json(arguments.schema)
    for name, text in arguments.feature:
        # A short string needs no quotes.
        document = text if text[:1] in ("{", '"') else "null" if text == "-" else json.dumps(text)
        given.update(parse_schema_json(f"{{{json.dumps(name)}: {document}}}"))
    return given


def _show(console: Console, schema: Schema) -> None:
    facts = feature_facts(schema)
    rows = [(each["name"], each["type"], feature_notes(each, every_class=True)) for each in facts]
    console.table(rows, head=("feature", "type", f"({schema.encoding})"))


_PARAMS = (
    Argument(
        ["words"], nargs=-1, metavar="[set] URL", type=PlaceParam(), required=True,
        help="a dataset; `set` before it changes its schema",
    ),
    VERSION,
    options(
        "--feature", metavar="NAME=TYPE", type=Value(name_and_value),
        help='new or changed feature: a type, a JSON object, "-" to take it away; may be repeated',
    ),
    Option(["--schema"], metavar="JSON", help="the same for several, as `shardio schema --json` shows it"),
    options(
        "--rename", metavar="OLD=NEW", type=Value(name_and_value),
        help="what readers call a feature from now on; records keep its name; may be repeated",
    ),
    *CHANGE,
)  # fmt: skip

COMMAND = Command(
    name="schema",
    summary="show the schema, or change it without touching a record",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio schema s3://bucket/birds": "features, types, classes, descriptions",
        'shardio schema set birds --feature \'source={"type": "text", "default": "unknown"}\'': (
            "a feature that older records lack"
        ),
        "shardio schema set birds --rename label=species --dry-run": "what would change",
    },
)
