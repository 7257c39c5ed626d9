"""Commands to look at data."""

from __future__ import annotations

import html
import ipaddress
import json
import platform
import signal
import sys
import tempfile
import warnings
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shardio.cli._command import READING, Given, command
from shardio.cli._console import CLEAN, Console
from shardio.cli._options import Takes
from shardio.cli._records import ReadAs, RecordGroup, Where, open_parts, reader_of
from shardio.cli._values import Positions, Whole
from shardio.display import count, describe, moment, plain, plural
from shardio.errors import ShardioError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardio.reader import Location

_PACKAGES = (
    "numpy", "fsspec", "protobuf", "crc32c", "zstandard", "s3fs", "gcsfs", "adlfs", "obstore",
    "torch", "torchdata", "Pillow", "simplejpeg", "torchvision", "jax", "tqdm", "distributed",
    "ray", "pyarrow", "datasets", "matplotlib", "lmdb",
)  # fmt: skip


@command(
    Takes("shardio:open", only=("version", "storage_options", "engine")),
    examples={
        "shardio info s3://bucket/birds": "versions, splits, records, bytes, schema, digest",
        "shardio info --system": "for a bug report",
    },
)
def info(
    given: Given,
    console: Console,
    url: Annotated[
        str | None, Parameter(help="dataset, or single shard: a local path or any fsspec URL")
    ] = None,
    *,
    system: Annotated[bool, Parameter(help="installed versions, and the components in use")] = False,
    cache: Annotated[str | None, Parameter(help="folder of a local cache of blocks")] = None,
) -> int:
    if sum(one is not None for one in (url, system or None, cache)) != 1:
        raise ValueError("give one of: a URL, --system, --cache DIR")
    if cache is not None:
        from shardio.storage import BlockCache, CacheOptions

        usage = BlockCache(CacheOptions(cache, max_bytes=1)).usage()
        console.facts({"folder": usage.folder, "blocks": usage.entries, "cached_bytes": usage.num_bytes})
    elif url is None:
        console.facts(system_facts())
    else:
        _describe(given, console, url)
    return CLEAN


def _describe(given: Given, console: Console, url: str) -> None:
    import shardio
    from shardio.reader import is_shard
    from shardio.view import shard_facts, version_facts

    if given.call(is_shard):
        if given.version is not None:
            raise ValueError(f"{url} is a single shard: it has no versions")
        with warnings.catch_warnings():
            # The facts say that a shard has no index.
            warnings.simplefilter("ignore", UserWarning)
            shard = given.call(shardio.open_shard)
        facts = {**shard.facts(), "seen": _seen(shard)}
        schema = None
    else:
        latest = given.call(shardio.log, n=1, version=None)[0]
        # Opening resolves a tag, and refuses a version that is not there or has expired.
        ds = given.call(shardio.open, split="all", decode=False)
        chosen = latest
        if ds.version != latest.number:
            chosen = given.call(shardio.log, n=1, version=ds.version)[0]
        facts = version_facts(given.options(shardio.log)["url"].url, chosen, latest) | shard_facts(
            chosen.shards()
        )
        facts["committed"] = moment(facts.pop("created_ms"))
        schema = chosen.manifest.schema
        if schema is None:
            facts["seen"] = _seen(ds)
    seen = facts.get("seen")
    shown = {**facts, "seen": None, "schema": None}
    shown["metadata"] = json.dumps(facts["metadata"], ensure_ascii=False) if facts.get("metadata") else None
    console.facts(shown, document=facts, hide=("kind", "dataset_uuid", "sessions", "table"))
    if console.json:
        return
    if "splits" in facts:
        console.line("schema:" if schema is not None else "no schema: records are bytes")
    for line in str(schema).splitlines() if schema is not None else ():
        console.line(f"  {line}")
    if seen is not None:
        kind = "tf.train.SequenceExample" if seen["encoding"] == "sequence_example" else "tf.train.Example"
        console.line(f"the first {plural(seen['records'], 'record')}: {kind}; a schema that fits so far:")
        rows = [(row["name"], row["type"] or "-", "; ".join(row["notes"])) for row in seen["features"]]
        console.table(rows)


def _seen(records: Iterable[bytes]) -> dict[str, Any] | None:
    """Return what the first records show, or None where they are not Examples or damaged."""
    from shardio.view import seen_facts

    try:
        return seen_facts(records)
    except ShardioError:
        return None


def system_facts() -> dict[str, str | int | None]:
    """Return package versions, None for packages that are not installed; imports nothing heavy."""
    from importlib.metadata import PackageNotFoundError, version as version_of

    import shardio
    from shardio import codecs

    facts: dict[str, str | int | None] = {
        "shardio": shardio.__version__,
        "jpeg_decoder": codecs.image_decoder(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "byte_order": sys.byteorder,
    }
    for package in _PACKAGES:
        try:
            facts[package] = version_of(package)
        except PackageNotFoundError:
            facts[package] = None
    return facts


@command(
    Takes("shardio:open", only=("url", "features"), shard=True),
    READING,
    examples={
        "shardio head s3://bucket/birds -n 2": "the first two records of every split",
        "shardio head s3://bucket/birds --where 'label = 3'": "the first records that meet a condition",
        "shardio head train-00000.tfrecord": "a single file, with or without its index",
    },
)
def head(
    given: Given,
    console: Console,
    *,
    n: Annotated[Whole, Parameter(name="-n", help="records of each split")] = 5,
    where: Where = None,
    read_as: ReadAs = "auto",
) -> int:
    if n < 0:
        raise ValueError(f"-n {n} must be at least 0")
    read = reader_of(read_as)
    parts = open_parts(given, decode=True)
    shown = []
    for part in parts:
        if not console.json and len(parts) > 1:
            if part is not parts[0]:
                console.line()
            console.line(f"{part.name}: {plural(len(part), 'record')}")
        matching = part.first(n) if where is None else part.pick(part.matching(where)[:n])
        for position, value in matching:
            if console.json:
                shown.append({"split": part.name or None, "position": position, "value": plain(read(value))})
                continue
            console.line(f"[{position}]")
            for line in describe(read(value), width=console.width - 2):
                console.line(f"  {line}")
    if console.json:
        console.document({"url": given.url, "version": parts[0].version, "records": shown})
    return CLEAN


_FIRST_BYTES = 512


@command(
    Takes("shardio:open", only=("url", "features"), shard=True),
    READING,
    examples={
        "shardio get s3://bucket/birds 17 -1 --split train": "two records",
        "shardio get s3://bucket/birds --where 'label = 3' --split train": "all that meet a condition",
        "shardio get s3://bucket/birds 17 --split train --raw": "where a record is, and its bytes",
    },
)
def get(
    given: Given,
    console: Console,
    positions: Positions | None = None,
    *,
    where: Where = None,
    raw: Annotated[bool, Parameter(help="payload bytes as hex, with url, shard, row and bytes")] = False,
    all: Annotated[  # noqa: A002 - what is typed
        bool, Parameter(help=f"with --raw: more than {_FIRST_BYTES} bytes of each")
    ] = False,
    read_as: ReadAs = "auto",
) -> int:
    if bool(positions) == (where is not None):
        raise ValueError("name records by their positions or by --where, one of the two")
    parts = open_parts(given, decode=not raw)
    if len(parts) > 1:
        names = ", ".join(part.name for part in parts)
        raise ValueError(f"{given.url} has several splits, choose one with --split: {names}")
    part = parts[0]
    chosen = (positions or []) if where is None else part.matching(where)
    read = reader_of("bytes" if raw else read_as)
    shown = []
    for number, (position, value) in enumerate(part.pick(chosen)):
        place = part.locate(position)
        if console.json:
            shown.append(_record(part, position, place, read(value)))
            continue
        if number:
            console.line()
        if raw:
            _print_raw(console, position, place, value, whole=all)
            continue
        console.line(f"[{position}]" + (f"  row {place.row} of {place.url}" if place else ""))
        for line in describe(read(value), width=console.width - 2):
            console.line(f"  {line}")
    if console.json:
        console.document({"url": given.url, "version": part.version, "records": shown})
    return CLEAN


def _record(part: RecordGroup, position: int, place: Location | None, value: Any) -> dict[str, Any]:
    address = place._asdict() if place else {}
    return {"split": part.name or None, "position": position, **address, "value": plain(value)}


def _print_raw(
    console: Console, position: int, place: Location | None, payload: bytes, *, whole: bool
) -> None:
    base = 0
    facts = [("position", count(position))]
    if place is not None:
        # A TFRecord frame has 12 bytes before the payload and 4 after it; other framings have none before.
        extra = place.stop - place.start - len(payload)
        base = place.start + (12 if extra == 16 else 0)
        facts += [
            ("url", place.url),
            ("shard", place.shard),
            ("row", count(place.row)),
            ("frame", f"bytes [{place.start}, {place.stop}){_of_what(place)}"),
        ]
    facts.append(("payload", f"{plural(len(payload), 'byte')} from {base}"))
    console.table(facts)
    shown = payload if whole else payload[:_FIRST_BYTES]
    for line in _hex_lines(shown, base):
        console.line(line)
    if len(shown) < len(payload):
        console.line(f"... {plural(len(payload) - len(shown), 'more byte')} (--all shows them)")


def _of_what(place: Location) -> str:
    compressed = place.shard.endswith((".zst", ".gz", ".zz"))
    return " of its decoded block" if compressed else " of the object"


def _hex_lines(data: bytes, base: int) -> Iterator[str]:
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        left, right = row[:8].hex(" "), row[8:].hex(" ")
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{base + start:08x}  {left:<23}  {right:<23}  |{text}|"


@command(
    Takes("shardio.view:Pages"),
    examples={
        "shardio view s3://bucket/birds": "schema, records, images, statistics, versions; Ctrl-C ends it",
        "shardio view s3://bucket/birds --no-browser --port 8000": (
            "on a machine elsewhere, through `ssh -L 8000:127.0.0.1:8000`"
        ),
    },
)
def view(
    given: Given,
    console: Console,
    *,
    host: Annotated[str, Parameter(help="address to listen on; by default this machine alone")] = "127.0.0.1",
    port: Annotated[Whole, Parameter(help="port to listen on; default: a free one")] = 0,
    no_browser: Annotated[bool, Parameter(help="print the address, and open no browser")] = False,
) -> int:
    from shardio.view import Pages, make_server

    pages = given.call(Pages)
    # What cannot be opened at all is said here, not in the browser.
    facts = pages.summary()
    server = make_server(pages, host=host, port=port)
    # Who ends it from outside means the same as Ctrl-C.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if console.json:
            console.document(
                {
                    "url": server.url,
                    "host": server.host,
                    "port": server.port,
                    "dataset": facts["url"],
                    "version": facts["version"],
                }
            )
        else:
            console.line(f"{facts['url']}, version {facts['version']}, is shown at")
            console.line(f"  {server.url}")
            console.line("Ctrl-C ends it")
        console.flush()
        if not _is_loopback(host):
            console.note(
                "others on your network can reach this address; without its token they see nothing, but the "
                "connection is not encrypted, and traffic that they can read holds the token"
            )
        if no_browser or console.json:
            server.run()
        else:
            with tempfile.TemporaryDirectory(prefix="shardio-view-") as folder:
                _open_browser(server.url, Path(folder))
                server.run()
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        server.close()
    return CLEAN


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _open_browser(url: str, folder: Path) -> None:
    """Open the browser with a file that leads to the page.

    Arguments of a program can be read by every user of the machine, and the address holds the token.

    Args:
        url: of the page.
        folder: that only this user can read.
    """
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return
    # A browser of plain terminals would take this one over.
    if type(browser) is not webbrowser.GenericBrowser:
        page = folder / "open.html"
        page.touch(mode=0o600)
        page.write_text(
            f'<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
            f'<meta http-equiv="refresh" content="0; url={html.escape(url)}"><title>shardio view</title>'
            f'<a href="{html.escape(url)}">shardio view</a>'
        )
        browser.open(page.as_uri())
