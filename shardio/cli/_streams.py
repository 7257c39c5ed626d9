"""What commands about streams share: datasets, one or several, as a stream would be given them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import Argument, Option, Place, Value
from shardio.cli._options import READING, STORAGE, allow_roots, storage_options

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.reader import DatasetReader

__all__ = ["DATASETS", "open_dataset"]


def open_dataset(
    arguments: SimpleNamespace, url: str, *, split: str | None = None, version: int | None = None
) -> DatasetReader:
    """Open one of the datasets; split and version are for where the command line names none."""
    import shardio

    reader = shardio.open(
        url,
        arguments.split or split,
        version=version if arguments.version_number is None else arguments.version_number,
        digest=arguments.digest,
        storage_options=storage_options(arguments, url),
        engine=arguments.engine,
        allow_roots=allow_roots(arguments),
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
        raise ValueError(message) from None


# The addresses of a dataset, or of those of a mixture, and how they are opened.
DATASETS = (
    Argument(
        ["urls"],
        metavar="URL...",
        nargs=-1,
        required=True,
        type=Place(),
        help="dataset, or those of a mixture, in its order: any fsspec URL",
    ),
    Option(
        ["--records"],
        metavar="A:B",
        type=Value(_slice),
        help="the slice that was streamed, with one number for either end left out: 1000:",
    ),
    *READING,
    *STORAGE,
)
