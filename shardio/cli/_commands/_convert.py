"""`shardio convert`: what people have becomes a dataset; what was left out is listed, a line each."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from shardio.cli._command import CLEAN, DAMAGE, Command
from shardio.cli._humanize import plural
from shardio.cli._kinds import Kinds
from shardio.cli._options import storage_options
from shardio.cli._recorder import add_storage, add_url, recorded

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.cli._console import Console

__all__ = ["COMMAND"]

# `shardio.convert.SOURCE_KINDS`, written out so that help needs none of what converting needs.
_KINDS = (
    "images", "list", "jsonl", "text", "parquet", "arrow", "webdataset", "mds", "torchrecord", "codewithgpu",
    "tfrecord", "shardio",
)  # fmt: skip


def _add_arguments(parser: Any) -> None:
    parser.add_argument(
        "source", metavar="SOURCE", help="file, folder or pattern: a local path or any fsspec URL"
    )
    add_url(parser)
    parser.add_argument(
        "--kind",
        choices=Kinds("SOURCE_KINDS"),
        metavar="KIND",
        help="kind of the source; default: told by the names of files",
    )
    parser.add_argument(
        "--type",
        metavar="NAME=TYPE",
        action="append",
        default=[],
        type=_pair,
        help='type of a feature instead of the inferred one, "-" to leave it out; may be repeated',
    )
    parser.add_argument(
        "--schema",
        metavar="JSON",
        help='the same for several at once, with defaults: {"n": {"type": "int64", "default": 0}, "x": null}',
    )
    parser.add_argument(
        "--process", metavar="MODULE:FUNCTION", help="for lists: makes records of a line or row"
    )
    parser.add_argument("--root", metavar="URL", help="for lists: folder that relative paths start from")
    parser.add_argument(
        "--split",
        metavar="NAME",
        help="a name for all records; default: as found",
    )
    parser.add_argument(
        "--shares",
        metavar="NAME=SHARE,...",
        help="divide the records among splits: train=0.9,test=0.1",
    )
    parser.add_argument(
        "--class", metavar="NAME", action="append", dest="classes",
        help="name of a class, in the order of the labels; may be repeated; default: those found, sorted",
    )  # fmt: skip
    parser.add_argument(
        "--metadata", metavar="NAME=VALUE", action="append", default=[], type=_pair,
        help="free metadata of the dataset; the value is JSON, or else text; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--skip", action="store_true", help="leave out what cannot become a record, and list it"
    )
    parser.add_argument("--no-image-check", action="store_true", help="do not decode every image once")
    parser.add_argument("--shuffle", action="store_true", help="shuffle all records while writing")
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help="of --shuffle and --shares; default: 0"
    )
    parser.add_argument("--workers", metavar="N", type=int, help="processes; default: one per processor")
    parser.add_argument("--mode", choices=("create", "append", "overwrite"), default="create")
    parser.add_argument("--session", metavar="S", help="id of this write, by which a rerun continues")
    group = parser.add_argument_group("shards")
    group.add_argument("--compression", choices=("zstd", "gzip", "zlib"))
    group.add_argument(
        "--shard-bytes", metavar="N", type=int, help="stored bytes after which a shard is closed"
    )
    group.add_argument("--shards", metavar="N", type=int, help="cut each split into so many shards instead")
    group.add_argument("--block-bytes", metavar="N", type=int, help="decoded bytes of a block")
    group.add_argument("--encoding", choices=("example", "tensors", "array", "bytes"), help="of the records")
    parser.add_argument(
        "--source-option", metavar="KEY=VALUE", action="append", default=[], type=_pair,
        help="option of the source's fsspec filesystem; may be repeated",
    )  # fmt: skip
    add_storage(parser)


def _run(arguments: SimpleNamespace, console: Console) -> int:
    import shardio

    given = {name: getattr(arguments, name) for name in ("shard_bytes", "block_bytes")}
    writer = {name: value for name, value in given.items() if value is not None}
    with console.progress("convert") as progress:
        report = shardio.convert_dataset(
            arguments.source,
            arguments.url,
            kind=arguments.kind,
            schema=_schema(arguments.schema, list(_once("--type", arguments.type).items())),
            process=_function(arguments.process),
            split=arguments.split,
            shares=_shares(arguments.shares),
            on_error="skip" if arguments.skip else "raise",
            shuffle=arguments.shuffle,
            seed=arguments.seed,
            shards=arguments.shards,
            workers=arguments.workers,
            root=arguments.root,
            classes=arguments.classes or None,
            metadata={name: _value(text) for name, text in _once("--metadata", arguments.metadata).items()},
            check_images=not arguments.no_image_check,
            encoding=arguments.encoding,
            mode=arguments.mode,
            session=arguments.session,
            progress=progress,
            source_options={
                name: _value(text) for name, text in _once("--source-option", arguments.source_option).items()
            }
            or None,
            storage_options=storage_options(arguments),
            compression=arguments.compression,
            **writer,
        )
    if console.json:
        document = report.to_dict()
        document["skipped"] = [
            {**each, "reason": console.in_flags(each["reason"])} for each in document["skipped"]
        ]
        console.document(document)
        return DAMAGE if report.skipped else CLEAN
    for skipped in report.skipped:
        console.line(f"left out: {skipped.where}: {console.in_flags(skipped.reason)}")
    for note in report.notes:
        console.note(note)
    if report.ignored:
        shown = ", ".join(report.ignored[:5]) + (", ..." if len(report.ignored) > 5 else "")
        console.note(f"{plural(len(report.ignored), 'file')} of other kinds stayed where they are: {shown}")
    total = plural(sum(report.records.values()), "record")
    parts = ", ".join(f"{name} {rows:,}" for name, rows in sorted(report.records.items()))
    console.line(f"{arguments.url} is at version {report.version}: {total} from {report.kind} ({parts})")
    for name, feature in (report.schema or {}).items():
        console.line(f"  {name}: {feature.short}{' (optional)' if feature.optional else ''}")
    if report.skipped:
        console.line(f"{plural(len(report.skipped), 'record')} left out")
    return DAMAGE if report.skipped else CLEAN


def _once(flag: str, pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Return pairs as a dict; nobody means the last of two."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            message = f"{flag} {name}= is given twice"
            raise ValueError(message)
        found[name] = value
    return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        message = f"expected NAME=VALUE, found {text!r}"
        raise argparse.ArgumentTypeError(message)
    return name, value


def _schema(text: str | None, types: list[tuple[str, str]]) -> dict[str, Any] | None:
    from shardio.metadata import parse_schema_json

    given: dict[str, Any] = {} if text is None else parse_schema_json(text)
    return {**given, **{name: None if kind == "-" else kind for name, kind in types}} or None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _function(name: str | None) -> Any:
    """Return the function that `package.module:name` means."""
    if name is None:
        return None
    import importlib
    import sys

    module, colon, attribute = name.partition(":")
    if not colon:
        message = f"--process {name}: expected MODULE:FUNCTION"
        raise ValueError(message)
    # A module in the current folder is found, as `python -m` would find it.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        message = f"--process {name}: {error}"
        raise ValueError(message) from error


def _shares(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    pairs = [(name.strip(), share) for name, _, share in (part.partition("=") for part in text.split(","))]
    shares = _once("--shares", pairs)
    try:
        return {name: float(share) for name, share in shares.items()}
    except ValueError:
        message = f"--shares {text}: expected shares such as train=0.9,test=0.1"
        raise ValueError(message) from None


COMMAND = Command(
    name="convert",
    group="change",
    summary="make a dataset of images, lists, JSONL, text, Parquet, WebDataset, MDS, LMDB or TFRecord",
    params=recorded(_add_arguments),
    run=_run,
    examples={
        "shardio convert photos/ s3://bucket/photos": "an image folder: class/name.jpg",
        "shardio convert lines.jsonl lines --type score=float32": "JSON lines; a type by hand",
        "shardio convert old/ new --shares train=0.9,test=0.1": "TFRecord files, divided anew",
        "shardio convert list.txt birds --process my_module:load": "a list, with a function of your own",
    },
)
