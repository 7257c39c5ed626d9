"""Arguments that several commands share, and what they mean for the library."""

from __future__ import annotations

import argparse
import json
from typing import Any

__all__ = ["add_reading", "add_storage", "add_url", "allow_roots", "storage_options"]

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


def add_url(parser: argparse.ArgumentParser, *, shard: bool = False, optional: bool = False) -> None:
    """Add the address of a dataset, or of a single shard too."""
    what = "dataset, or single shard" if shard else "dataset"
    parser.add_argument(
        "url", metavar="URL", nargs="?" if optional else None, help=f"{what}: a local path or any fsspec URL"
    )


def add_storage(parser: argparse.ArgumentParser) -> None:
    """Add how the place is reached."""
    group = parser.add_argument_group("storage")
    group.add_argument(
        "--storage-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=_pair,
        help="option of the fsspec filesystem; the value is JSON, or else text; may be repeated",
    )
    group.add_argument("--anon", action="store_true", help="open a public bucket without credentials")
    group.add_argument("--engine", choices=("fsspec", "obstore"), help="client of object stores")


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add which part of a dataset is meant."""
    group = parser.add_argument_group("dataset")
    group.add_argument("--split", metavar="NAME", help="one split")
    group.add_argument(
        "--version", metavar="N", type=int, dest="version_number", help="a version; default: latest"
    )
    group.add_argument("--digest", metavar="sha256:...", help="digest that the version must have")
    group.add_argument(
        "--allow-root",
        metavar="URL",
        action="append",
        default=[],
        help="place of adopted shards that may be read, without options of its own; may be repeated",
    )


def storage_options(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Return the storage options that were given, or None.

    Raises:
        ValueError: `--anon` for a place that knows no such thing.
    """
    options: dict[str, Any] = {}
    if arguments.anon:
        protocol = arguments.url.partition("://")[0].lower()
        if protocol not in _ANONYMOUS:
            message = f"--anon is for buckets ({', '.join(_ANONYMOUS)}), not for {arguments.url}"
            raise ValueError(message)
        options |= _ANONYMOUS[protocol]
    options |= dict(arguments.storage_option)
    return options or None


def allow_roots(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the roots of adopted shards that may be read."""
    return {root: {} for root in arguments.allow_root}


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        message = f"expected KEY=VALUE, found {text!r}"
        raise argparse.ArgumentTypeError(message)
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
