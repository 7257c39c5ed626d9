"""The `shardio-index` program: adopt shards that others wrote, in place.

Exit codes: 0 clean, 1 a shard was refused, has changed or is gone, 2 usage, 3 could not be done; 130 after
Ctrl-C.
The last line printed is the line of Python that opens the result.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

from shardio.errors import FormatError, NotFoundError, SchemaError, ShardioError, StaleIndexError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardio_indexer._report import AdoptReport

__all__ = ["main"]

_CLEAN, _DAMAGE, _USAGE, _FAILED, _INTERRUPTED = 0, 1, 2, 3, 130
_MOST_SHOWN = 20
# `shardio.metadata.ENCODINGS`, written out so that help needs none of what adopting needs.
_ENCODINGS = ("example", "sequence_example", "tensors", "array", "bytes")
_ANONYMOUS: dict[str, dict[str, Any]] = {
    "s3": {"anon": True},
    "s3a": {"anon": True},
    "gs": {"token": "anon"},
    "gcs": {"token": "anon"},
    "az": {"anon": True},
    "abfs": {"anon": True},
    "abfss": {"anon": True},
}
_EPILOG = """\
examples:
  shardio index s3://bucket/birds
      every shard below a folder, indexes beside them
  shardio index 's3://bucket/birds/*.tar' --split 'train=*train*' --split 'val=*val*'
      two splits; quote patterns, or the shell expands them
  shardio index 'gs://public/x-{0000..1023}.tfrecord' --anon --into ~/x
      somebody else's bucket; the dataset lies in ~/x
  shardio index @urls.txt --into ~/web
      URLs of a web server, one a line
  shardio index s3://bucket/birds --export dali
      write the indexes that DALI reads

exit codes: 0 clean, 1 a shard was refused, has changed or is gone, 2 usage, 3 could not be done"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code.

    Args:
        argv: the arguments without the program's name; None for those of the process.
    """
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else _USAGE
    try:
        return _export(arguments) if arguments.export else _adopt(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; what is done is kept, run it again to go on\n")
        return _INTERRUPTED
    except BrokenPipeError:
        return _FAILED
    except (ShardioError, OSError, ValueError, TypeError, ImportError, MemoryError) as error:
        if arguments.debug:
            raise
        return _fail(error, as_json=arguments.json)


def _adopt(arguments: argparse.Namespace) -> int:
    from shardio_indexer import ScanOptions, adopt
    from shardio_indexer._progress import ProgressLine

    line = ProgressLine(sys.stderr, quiet=arguments.quiet or arguments.json)
    with contextlib.ExitStack() as at_end:
        at_end.callback(line.clear)
        report = adopt(
            arguments.urls,
            into=arguments.into,
            split=_splits(arguments.split),
            salvage=arguments.salvage,
            update=arguments.update,
            drop_missing=arguments.drop_missing,
            schema=False if arguments.no_schema else _schema(arguments.schema, arguments.encoding),
            scan=ScanOptions(
                format=arguments.format,
                record_crc=arguments.record_crc,
                trust=arguments.trust,
                use_index=arguments.use_index,
                block_bytes=arguments.block_bytes,
            ),
            storage_options=_options(arguments.urls, arguments.storage_option, anon=arguments.anon),
            into_options=dict(arguments.into_option) if arguments.into_option else None,
            workers=arguments.workers,
            progress=line.show,
        )
    if arguments.json:
        print(json.dumps(report.to_dict(), ensure_ascii=False))
    else:
        _print(report, quiet=arguments.quiet)
    return _CLEAN if report.ok else _DAMAGE


def _export(arguments: argparse.Namespace) -> int:
    from shardio_indexer import export_indexes

    if len(arguments.urls) != 1:
        raise ValueError("--export takes one dataset")
    options = _options(arguments.urls, arguments.storage_option, anon=arguments.anon)
    roots = {root: options or {} for root in arguments.allow_root}
    written = export_indexes(
        arguments.urls[0],
        form=arguments.export,
        into=arguments.into,
        storage_options=options,
        allow_roots=roots,
    )
    print(json.dumps({"written": written}) if arguments.json else f"{len(written):,} indexes written")
    return _CLEAN


def _print(report: AdoptReport, *, quiet: bool) -> None:
    from shardio_indexer._progress import amount

    for refusal in report.refused[:_MOST_SHOWN]:
        _say(f"refused: {refusal.error}")
    for url in report.stale[:_MOST_SHOWN]:
        _say(f"stale: {url} has changed since it was adopted; index it again with --update")
    for url in report.missing[:_MOST_SHOWN]:
        _say(
            f"missing: {url} is part of the dataset and no longer there; "
            "restore it, or take it out of the dataset with --drop-missing"
        )
    for url in report.dropped[:_MOST_SHOWN]:
        _say(f"dropped: {url} was no longer there")
    for part in report.left_out[:_MOST_SHOWN]:
        _say(f"left out: {part.url} bytes [{part.start}, {part.stop}): {part.reason}")
    for items in (report.refused, report.stale, report.missing, report.dropped, report.left_out):
        if len(items) > _MOST_SHOWN:
            _say(f"... and {len(items) - _MOST_SHOWN:,} more; --json lists all")
    if report.ignored and not quiet:
        shown = ", ".join(report.ignored[:5]) + (", ..." if len(report.ignored) > 5 else "")
        files = "1 file was" if len(report.ignored) == 1 else f"{len(report.ignored):,} files were"
        _say(f"note: {files} found and not adopted: {shown}")
    for note in () if quiet else report.notes:
        _say(f"note: {note}")
    counts = [f"{report.adopted:,} adopted"]
    for count, what in (
        (report.known, "known"),
        (report.updated, "updated"),
        (len(report.refused), "refused"),
        (len(report.stale), "stale"),
        (len(report.missing), "missing"),
        (len(report.dropped), "dropped"),
    ):
        if count:
            counts.append(f"{count:,} {what}")
    if report.version is None:
        print(f"{report.url}: {', '.join(counts)}; there is no dataset")
        return
    splits = ", ".join(f"{name} {rows:,}" for name, rows in report.splits.items())
    print(f"shards: {', '.join(counts)}; {report.records:,} records, {amount(report.num_bytes)}")
    print(f"version {report.version} of {report.url} ({splits})")
    print(_printable(report.opens))


def _say(text: str) -> None:
    sys.stderr.write(_printable(text) + "\n")


def _printable(text: str) -> str:
    """Keep control characters of names that others chose from the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)


def _fail(error: Exception, *, as_json: bool) -> int:
    text = str(error) or type(error).__name__
    if isinstance(error, ImportError) and error.name:
        text = f"{text} (pip install {error.name.split('.')[0]})"
    code = _code(error)
    if as_json:
        sys.stderr.write(json.dumps({"error": text, "kind": type(error).__name__, "exit_code": code}) + "\n")
    else:
        _say(f"shardio-index: {' '.join(text.split())}")
    return code


def _code(error: Exception) -> int:
    if isinstance(error, NotFoundError):
        return _FAILED
    if isinstance(error, FormatError | StaleIndexError | SchemaError):
        return _DAMAGE
    if isinstance(error, ShardioError | OSError | MemoryError | ImportError):
        return _FAILED
    return _USAGE


def _parser() -> argparse.ArgumentParser:
    from shardio_indexer._sniff import FORMATS

    parser = argparse.ArgumentParser(
        prog="shardio-index",
        description="Adopt shards that others wrote: TFRecord, WebDataset tar, JSONL, text, codewithgpu. "
        "Nothing of them is changed; an index is put beside each, and a manifest makes them one dataset.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("urls", nargs="+", metavar="URL", help="shard, folder, glob, braces, or @file with a URL a line")
    add("--into", metavar="URL", help="where the dataset goes (default: beside the shards)")
    add(
        "--split",
        action="append",
        default=[],
        metavar="NAME[=PATTERN]",
        help="split of the shards whose name fits",
    )
    add("--format", choices=tuple(FORMATS), help="what the shards are, where it shall not be found out")
    add("--salvage", action="store_true", help="index around damage and say what was left out")
    add(
        "--update",
        action="store_true",
        help="index shards again that have changed, or whose index is damaged or gone",
    )
    add("--drop-missing", action="store_true", help="take shards out of the dataset that are no longer there")
    add("--use-index", action="store_true", help="take the records from the .index, .idx or .tar.idx beside")
    add("--trust", action="store_true", help="do not compute the checksums of records")
    add("--record-crc", choices=("crc32c", "crc32", "none"), default="crc32c", help="what the writer used")
    add(
        "--schema",
        metavar="JSON",
        help="features by name, in place of those that were inferred or given before, e.g. "
        '\'{"jpg": "image", "cls": {"type": "int64", "default": -1}}\'',
    )
    add(
        "--encoding",
        choices=_ENCODINGS,
        help="how records hold the features of --schema; default: example, or what it tells",
    )
    add("--no-schema", action="store_true", help="infer none: records are bytes")
    add("--block-bytes", type=int, default=64 << 10, metavar="N", help="size of a block (default: 65536)")
    add("--workers", type=int, metavar="N", help="processes (default: one a processor)")
    add("--export", choices=("dali",), help="write indexes for another program, from those of a dataset")
    storage = parser.add_argument_group("storage")
    pair: dict[str, Any] = {"metavar": "KEY=VALUE", "action": "append", "default": [], "type": _pair}
    storage.add_argument("--storage-option", **pair, help="option of the shards' fsspec filesystem; repeat")
    storage.add_argument("--into-option", **pair, help="the same for --into")
    storage.add_argument("--anon", action="store_true", help="read a public bucket without credentials")
    storage.add_argument(
        "--allow-root",
        metavar="URL",
        action="append",
        default=[],
        help="for --export: place of adopted shards",
    )
    add("--json", action="store_true", help="print one JSON document for programs")
    add("-q", "--quiet", action="store_true", help="no progress and no notes")
    add("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        message = f"expected KEY=VALUE, found {text!r}"
        raise argparse.ArgumentTypeError(message)
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _splits(given: list[str]) -> str | dict[str, str] | None:
    if not given:
        return None
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    pairs = [text.partition("=") for text in given]
    if any(not equals for _, equals, _ in pairs):
        raise ValueError("--split NAME alone names the one split; several need patterns: --split 'val=*val*'")
    return {name: pattern for name, _, pattern in pairs}


def _schema(text: str | None, encoding: str | None) -> Any:
    from shardio.metadata import Schema, parse_schema_json

    if text is None:
        if encoding is not None:
            raise ValueError("--encoding says how records hold the features of --schema, which is missing")
        return None
    try:
        mapping = parse_schema_json(text)
        return mapping if encoding is None else Schema.parse(mapping, encoding=encoding)
    except (TypeError, ValueError) as error:
        message = f"--schema: {error}"
        raise ValueError(message) from None


def _options(urls: Sequence[str], pairs: list[tuple[str, Any]], *, anon: bool) -> dict[str, Any] | None:
    options: dict[str, Any] = {}
    if anon:
        scheme = urls[0].partition("://")[0].lower()
        if scheme not in _ANONYMOUS:
            message = f"--anon is for buckets ({', '.join(_ANONYMOUS)}), not for {urls[0]}"
            raise ValueError(message)
        options |= _ANONYMOUS[scheme]
    options |= dict(pairs)
    return options or None


if __name__ == "__main__":
    sys.exit(main())
