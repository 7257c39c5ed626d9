"""Commands to change a dataset."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shardio.cli._command import Given, command, report, reporting
from shardio.cli._console import CLEAN, Console
from shardio.cli._options import Takes
from shardio.cli._records import Where
from shardio.cli._values import Positions, pairs, parse_key

if TYPE_CHECKING:
    from shardio.metadata import Schema


@command(
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
    result = given.at(words[1]).call(shardio.set_schema, features=features)
    console.report(result)
    return CLEAN


def _features(document: str | None, short: dict[str, str]) -> dict[str, Any]:
    from shardio.metadata import parse_schema_json

    features: dict[str, Any] = {} if document is None else parse_schema_json(document)
    for name, text in short.items():
        # A short string needs no quotes.
        value = text if text[:1] in ("{", '"') else "null" if text == "-" else json.dumps(text)
        features.update(parse_schema_json(f"{{{json.dumps(name)}: {value}}}"))
    return features


def _show(console: Console, version: int | None, schema: Schema | None) -> None:
    if console.json:
        encoding, features = (None, None) if schema is None else (schema.encoding, schema.to_dict())
        console.document({"version": version, "encoding": encoding, "schema": features})
        return
    if schema is None:
        console.line("no schema: records are bytes")
        return
    console.line(f"encoding: {schema.encoding.partition(' ')[0]}")
    for line in str(schema).splitlines():
        console.line(line)


def _remove_by(name: str, positional: str, examples: dict[str, str]) -> None:
    """Make a command of a function that removes records; `positional` is its argument for positions."""

    @command(Takes(f"shardio:{name}", without=(positional, "features")), name=name, examples=examples)
    def run(
        given: Given,
        console: Console,
        positions: Positions | None = None,
        *,
        where: Where = None,
        key: Annotated[
            list[str], Parameter(help="records with this key, by `shardio keys`; may be repeated")
        ] = [],  # noqa: B006 - is not changed
    ) -> int:
        import shardio

        keys = None
        if key:
            known = given.call(shardio.open, split="all", decode=False).key_features
            keys = [parse_key(text, known, given.feature) for text in key]
        chosen: dict[str, Any] = {positional: positions, "where": where, "keys": keys}
        return report(f"shardio:{name}", given, console, **chosen)


_remove_by(
    "delete",
    "positions",
    {
        "shardio delete s3://bucket/birds 17 42 --split train --dry-run": "what would be deleted",
        "shardio delete s3://bucket/birds 17 42 --split train --version v1": "positions of v1",
    },
)
_remove_by(
    "erase",
    "rows",
    {
        "shardio erase s3://bucket/birds 17 --split train --dry-run": "what would be erased",
        "shardio erase s3://bucket/birds --key bird-7-5": "by key; then `shardio gc`",
    },
)


@command(
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
    result = given.call(shardio.remove_split if remove else shardio.rename_split)
    console.report(result)
    return CLEAN


reporting(
    "compact",
    Takes("shardio:compact", choices={"compression": ("same", "zstd", "gzip", "zlib")}),
    examples={
        "shardio compact s3://bucket/birds --dry-run": "what would be gained",
        "shardio compact s3://bucket/birds --compression zstd": "merged, and compressed",
    },
)
