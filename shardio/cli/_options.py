"""Arguments that several commands share, and what they mean for the library."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardio.cli._command import (
    WHOLE,
    Argument,
    Option,
    PlaceParam,
    Value,
    flag,
    options,
    whole_number,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import SimpleNamespace

    from shardio.reader import DatasetReader

# What opens a public bucket without credentials, by protocol, in the words of its fsspec filesystem.
_ANONYMOUS: dict[str, dict[str, Any]] = {
    "s3": {"anon": True},
    "s3a": {"anon": True},
    "gs": {"token": "anon"},
    "gcs": {"token": "anon"},
    "az": {"anon": True},
    "abfs": {"anon": True},
    "abfss": {"anon": True},
}

_LARGEST_DOCUMENT = 1 << 28


def url_argument(*, shard: bool = False, optional: bool = False) -> Argument:
    """Return the address of a dataset, or of a single shard too."""
    what = "dataset, or single shard" if shard else "dataset"
    return Argument(
        ["url"],
        metavar="URL",
        required=not optional,
        type=PlaceParam(),
        help=f"{what}: a local path or any fsspec URL",
    )


def pair(text: str) -> tuple[str, Any]:
    """Return KEY=VALUE as a pair, the value as JSON where it is JSON."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        message = f"expected KEY=VALUE, found {text!r}"
        raise ValueError(message)
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def parse_key(text: str, known: Mapping[str, str], feature: str | None) -> str | bytes | int:
    """Return what was typed as a key of the feature's type: decimal for integers, hexadecimal for bytes.

    Args:
        text: what was typed.
        known: features that have an index of keys, each with its type.
        feature: whose keys are meant; None for the only one.
    """
    if feature is None and len(known) == 1:
        feature = next(iter(known))
    kind = known.get(feature or "", "text")  # what has no index is refused where it is looked up
    if kind == "text":
        return text
    try:
        return bytes.fromhex(text) if kind == "bytes" else whole_number(text)
    except ValueError as error:
        wanted = "hexadecimal digits" if kind == "bytes" else "a whole number"
        message = f"{text!r} is not {wanted}, as the keys are {kind}"
        raise ValueError(message) from error


def anonymous_option() -> Option:
    """Return the way into public buckets."""
    return flag("--anon", "open a public bucket without credentials", group="storage")


# How the place is reached.
STORAGE = (
    options(
        "--storage-option",
        metavar="KEY=VALUE",
        type=Value(pair),
        group="storage",
        help="option of the fsspec filesystem; the value is JSON, or else text; may be repeated",
    ),
    anonymous_option(),
)

# What changes a dataset at once, and what does so only when told.
CHANGE = (flag("--dry-run", "change nothing; say what would be done"), *STORAGE)
YES = flag("--yes", "do it; without this, nothing changes")

# What reads, for commands that let it be chosen.
ENGINE = Option(
    ["--engine"],
    type=click.Choice(("fsspec", "obstore")),
    group="storage",
    help="client of object stores",
)


def workers_option() -> Option:
    """Return the number of worker processes."""
    return Option(["--workers"], metavar="N", type=WHOLE, help="processes; default: one per processor")


def allowed_roots_option(group: str = "dataset") -> Option:
    """Return the places of adopted shards that may be read."""
    return options(
        "--allow-root",
        metavar="URL",
        group=group,
        help="place of adopted shards that may be read; it gets the dataset's storage options if it is of "
        "the same kind; may be repeated",
    )


# What builds tables and keys.
BUILD = (
    flag("--rebuild", "make all of it again, for example after damage"),
    workers_option(),
    allowed_roots_option(),
    *CHANGE,
    ENGINE,
)


def _version(text: str) -> int | str:
    """Return a number, or a tag, of which none looks like a number."""
    from shardio.errors import UnsafeNameError
    from shardio.metadata import check_tag

    if text.isascii() and text.removeprefix("-").isdigit():
        return int(text)
    try:
        return check_tag(text)
    except UnsafeNameError as error:
        message = f"{text!r} is neither a number nor a tag: {error.expected}"
        raise ValueError(message) from error


VERSION_VALUE = Value(_version)
VERSION = Option(
    ["--version", "version_number"],
    metavar="N|TAG",
    type=VERSION_VALUE,
    group="dataset",
    help="a version, by number or tag; default: latest",
)

# Which part of a dataset is meant.
READING = (
    Option(["--split"], metavar="NAME", group="dataset", help="one split"),
    VERSION,
    Option(["--digest"], metavar="sha256:...", group="dataset", help="digest that the version must have"),
    allowed_roots_option(),
)


def storage_options(arguments: SimpleNamespace, url: str | None = None) -> dict[str, Any] | None:
    """Return the storage options that were given, or None.

    Args:
        arguments: of the command.
        url: the place that they are for; None for `arguments.url`.

    Raises:
        ValueError: `--anon` for a place that knows no such thing.
    """
    found: dict[str, Any] = {}
    if arguments.anon:
        place = arguments.url if url is None else url
        protocol = _protocol(place)
        if protocol not in _ANONYMOUS:
            message = f"--anon is for buckets ({', '.join(_ANONYMOUS)}), not for {place}"
            raise ValueError(message)
        found |= _ANONYMOUS[protocol]
    found |= dict(arguments.storage_option)
    return found or None


def read_json(name: str, what: str, *, beside: str, storage_options: Mapping[str, Any] | None = None) -> Any:
    """Return the JSON of a file that the command line names.

    Args:
        name: path or URL; "-" for what is piped in.
        what: should be in it, for messages.
        beside: address of the dataset.
        storage_options: of the dataset, which serve for a file in the same kind of storage.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
        ValueError: it holds something else.
    """
    from shardio.errors import NotFoundError
    from shardio.storage import connect_folder, files_of_callers

    data: bytes | str
    try:
        if name == "-":
            data = sys.stdin.read()
        elif "://" in name:
            given = storage_options if _protocol(name) == _protocol(beside) else None
            store, key = connect_folder(name, storage_options=given)
            data = store.get(key, max_bytes=_LARGEST_DOCUMENT)
        else:
            with files_of_callers(name):
                data = Path(name).read_bytes()
    except NotFoundError as error:
        error.advice = f"name a file that holds {what}"
        raise
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        message = f"{name} is not JSON ({error}): expected {what}"
        raise ValueError(message) from None


def allow_roots(
    arguments: SimpleNamespace, url: str | None = None, *, options: dict[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the roots of adopted shards that may be read, each with the options by which it is reached.

    Those of the dataset serve for roots of the same kind of storage.

    Args:
        arguments: of the command.
        url: of the dataset; None for `arguments.url`.
        options: by which the dataset is reached; None for what `STORAGE` says.
    """
    place = arguments.url if url is None else url
    options = storage_options(arguments, place) or {} if options is None else options
    return {root: options if _protocol(root) == _protocol(place) else {} for root in arguments.allow_root}


def _protocol(url: str) -> str:
    return url.partition("://")[0].lower() if "://" in url else "file"


def build_options(arguments: SimpleNamespace) -> dict[str, Any]:
    """Return what `BUILD` says, as `shardio.build_table` and `shardio.build_keys` take it."""
    given = {name: getattr(arguments, name) for name in ("rebuild", "dry_run", "workers")}
    return given | sidecar_options(arguments)


def sidecar_options(arguments: SimpleNamespace) -> dict[str, Any]:
    """Return how a dataset is reached whose tables or keys are built; its adopted shards are where it is."""
    return {
        "storage_options": storage_options(arguments),
        "engine": arguments.engine,
        "allow_roots": allow_roots(arguments),
    }


def name_and_value(text: str) -> tuple[str, str]:
    """Take NAME=VALUE apart."""
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        message = f"expected NAME=VALUE, found {text!r}"
        raise ValueError(message)
    return name, value


def once(flag: str, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return pairs as a dict; a name given twice is refused."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            message = f"{flag} {name}= is given twice"
            raise ValueError(message)
        found[name] = value
    return found


# What is said of features, in adoption and conversion.
SCHEMA = (
    options(
        "--type",
        metavar="NAME=TYPE",
        type=Value(name_and_value),
        help='type of a feature, in place of the inferred one; "-" leaves it out; may be repeated',
    ),
    Option(
        ["--schema"],
        metavar="JSON",
        help='the same for several at once, with defaults: {"n": {"type": "int64", "default": 0}, "x": null}',
    ),
)


def schema_option(arguments: SimpleNamespace) -> dict[str, Any] | None:
    """Return what `SCHEMA` says of features, as `schema=` takes it; None where it says nothing.

    Raises:
        ValueError: no features; names the flag.
    """
    from shardio.metadata import parse_schema_json

    types = once("--type", arguments.type)
    if arguments.schema is None and not types:
        return None
    given: dict[str, Any] = {}
    if arguments.schema is not None:
        try:
            given = dict(parse_schema_json(arguments.schema))
        except (TypeError, ValueError) as error:
            message = f"--schema: {error}"
            raise ValueError(message) from None
    return {**given, **{name: None if kind == "-" else kind for name, kind in types.items()}}


def reading_options(arguments: SimpleNamespace, url: str | None = None) -> dict[str, Any]:
    """Return what `READING`, `STORAGE` and `ENGINE` say beside the split, as `shardio.open` takes it."""
    return {
        "version": arguments.version_number,
        "digest": arguments.digest,
        "storage_options": storage_options(arguments, url),
        "engine": arguments.engine,
        "allow_roots": allow_roots(arguments, url),
    }


def open_dataset(
    arguments: SimpleNamespace,
    url: str,
    *,
    split: str | None = None,
    version: int | str | None = None,
    **reading: Any,
) -> DatasetReader:
    """Open one of the datasets.

    Args:
        arguments: of the command.
        url: of the dataset.
        split, version: where the command line names none.
        reading: further options of `shardio.open`.
    """
    from shardio.reader import open_split

    options = reading_options(arguments, url)
    if options["version"] is None:
        options["version"] = version
    reader = open_split(url, arguments.split or split, **options, **reading)
    records = getattr(arguments, "records", None)
    return reader if records is None else reader[records]


def _slice(text: str) -> slice:
    start, colon, stop = text.partition(":")
    try:
        if not colon:
            raise ValueError  # noqa: TRY301 - one message for all
        return slice(whole_number(start) if start else None, whole_number(stop) if stop else None)
    except ValueError:
        message = f"expected A:B, found {text!r}"
        raise ValueError(message) from None


# The addresses of a dataset, or of those of a mixture, and how they are opened.
DATASETS = (
    Argument(
        ["urls"],
        metavar="URL...",
        nargs=-1,
        required=True,
        type=PlaceParam(),
        help="dataset, or the datasets of a mixture in order: any fsspec URL",
    ),
    Option(
        ["--records"],
        metavar="A:B",
        type=Value(_slice),
        help="the slice that was streamed; either end may be left out: 1000:",
    ),
    *READING,
    *STORAGE,
    ENGINE,
)


def splits_option() -> Option:
    """Return the option that names one split, or patterns of names by split."""
    return options(
        "--split",
        metavar="NAME[=PATTERN]",
        help="split of all files, or of those whose names match a pattern; may be repeated; default: from "
        "the names of files and folders",
    )


def splits(arguments: SimpleNamespace) -> str | dict[str, str] | None:
    """Return what `--split` says: None, the name of the one split, or patterns by name.

    Raises:
        ValueError: several names without patterns.
    """
    given: Sequence[str] = arguments.split
    if not given:
        return None
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    pairs = [text.partition("=") for text in given]
    if any(not equals for _, equals, _ in pairs):
        raise ValueError("--split NAME alone names the one split; several need patterns: --split 'val=*val*'")
    if any(re.match(r"[\d.]+(,|$)", pattern) for _, _, pattern in pairs):
        raise ValueError(f"--split {given[0]}: shares of the records are given with --shares")
    return {name: pattern for name, _, pattern in pairs}
