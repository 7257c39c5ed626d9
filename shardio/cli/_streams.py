"""What commands about streams share: datasets, one or several, as a stream would be given them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from shardio.cli._options import add_reading, add_storage, allow_roots, storage_options

if TYPE_CHECKING:
    from shardio.reader import DatasetReader

__all__ = ["add_datasets", "open_dataset"]


def add_datasets(parser: argparse.ArgumentParser) -> None:
    """Add the addresses of a dataset, or of those of a mixture, and how they are opened."""
    parser.add_argument(
        "urls", metavar="URL", nargs="+", help="dataset, or those of a mixture, in its order: any fsspec URL"
    )
    parser.add_argument(
        "--records",
        metavar="A:B",
        type=_slice,
        help="the slice that was streamed, with one number for either end left out: 1000:",
    )
    add_reading(parser)
    add_storage(parser)


def open_dataset(
    arguments: argparse.Namespace, url: str, *, split: str | None = None, version: int | None = None
) -> DatasetReader:
    """Open one of the datasets; split and version are for where the command line names none."""
    import shardio

    # Credentials are checked against the address that they are for.
    here = argparse.Namespace(**{**vars(arguments), "url": url})
    reader = shardio.open(
        url,
        arguments.split or split,
        version=version if arguments.version_number is None else arguments.version_number,
        digest=arguments.digest,
        storage_options=storage_options(here),
        engine=arguments.engine,
        allow_roots=allow_roots(here),
    )
    return reader if arguments.records is None else reader[arguments.records]


def _slice(text: str) -> slice:
    start, colon, stop = text.partition(":")
    try:
        if not colon:
            raise ValueError  # noqa: TRY301 - one message for all
        return slice(int(start) if start else None, int(stop) if stop else None)
    except ValueError:
        message = f"expected A:B, found {text!r}"
        raise argparse.ArgumentTypeError(message) from None
