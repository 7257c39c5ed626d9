"""What `shardio info` says: of a dataset, a shard, what the first records show, and what is installed here.

Datasets and shards are described by manifests, lists of shards and index heads; only where there is no schema
some records are read.
"""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from shardio.cli._console import CLEAN, DAMAGE
from shardio.display import count, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardio.catalog import Version
    from shardio.cli._console import Console
    from shardio.convert import ConvertReport, ExportReport
    from shardio.lifecycle import ChangeReport
    from shardio.metadata import Schema

DRY_RUN = "nothing was changed; without --dry-run it is done"
_SHOWN = 10  # names of classes in one line
_MOST_FEATURES = 40
_PACKAGES = (
    "numpy", "fsspec", "protobuf", "crc32c", "zstandard", "s3fs", "gcsfs", "adlfs", "obstore",
    "torch", "torchdata", "Pillow", "simplejpeg", "torchvision", "jax", "tqdm", "distributed",
    "ray", "pyarrow", "datasets", "matplotlib", "lmdb",
)  # fmt: skip


def dataset_facts(
    url: str, version: int | str | None, options: Mapping[str, Any] | None, engine: str | None
) -> dict[str, Any]:
    """Return what the manifest and the lists of a version say.

    Raises:
        NotFoundError, FormatError, UnsupportedVersionError, StorageError: the metadata cannot be read.
    """
    from shardio.catalog import Catalog
    from shardio.storage import connect
    from shardio.view import shard_facts as facts_of_shards, version_facts

    catalog = Catalog(connect(url, storage_options=options, engine=engine))

    def read(latest: Version) -> dict[str, Any]:
        chosen = latest if version is None else catalog.load(version)
        return version_facts(catalog.store.url, chosen, latest) | facts_of_shards(chosen.shards())

    facts = catalog.reading(read)
    return facts | {"committed": moment(facts.pop("created_ms"))}


def code_of_skipped(report: ConvertReport | ExportReport) -> int:
    """Return the exit code of what may leave records out."""
    return DAMAGE if report.skipped else CLEAN


def print_change(console: Console, report: ChangeReport) -> None:
    """Print what a change of a dataset did, or would do."""
    if report.version is not None or report.dry_run:
        both = (report.before, report.after)
        rows = [
            (f"  {name}", *(count(part[name]) if name in part else "-" for part in both))
            for name in sorted({*report.before, *report.after})
        ]
        console.table(rows, head=("  split", "records before", "after"), right=(1, 2))
    print_version(console, report)


def print_version(console: Console, report: ChangeReport, *, anything: bool = True) -> None:
    """Print which version a change made, or why it made none.

    Args:
        console: takes it.
        report: of the change.
        anything: in a dry run, whether there is something to change.
    """
    if report.version is not None:
        console.line(
            f"this is version {report.version}; `shardio restore` goes back to {report.base_version}"
        )
    elif report.dry_run and anything:
        console.line(DRY_RUN)
    else:
        console.line("there was nothing to do")


def moment(milliseconds: int) -> str:
    """Return a Unix time in milliseconds as UTC text."""
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms after 1970"


def feature_notes(facts: Mapping[str, Any], *, every_class: bool = False) -> str:
    """Return what `feature_facts` says of one feature beside name and type, in one line."""
    words = ["optional"] if facts["optional"] else []
    if facts["classes"] is not None:
        most = len(facts["classes"]) if every_class else _SHOWN
        shown = ", ".join(facts["classes"][:most]) + (", ..." if len(facts["classes"]) > most else "")
        words.append(f"{plural(len(facts['classes']), 'class', 'classes')}: {shown}")
    if facts["stored_name"] != facts["name"]:
        words.append(f"stored as {facts['stored_name']}")
    words += filter(None, (facts["unit"], facts["description"]))
    return "; ".join(words)


def feature_lines(schema: Schema | None) -> list[str]:
    """Return a line for each feature of a schema that a command has made, as far as people read them."""
    from shardio.catalog import feature_facts

    facts = [] if schema is None else feature_facts(schema)
    lines = []
    for each in facts[:_MOST_FEATURES]:
        words = feature_notes(each)
        lines.append(f"  {each['name']}: {each['type']}{f' ({words})' if words else ''}")
    if len(facts) > _MOST_FEATURES:
        lines.append(f"  ... and {len(facts) - _MOST_FEATURES:,} more; shardio schema shows all")
    return lines


def system_facts() -> dict[str, str | int | None]:
    """Return names and versions, None for what is not installed; nothing heavy is imported."""
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
