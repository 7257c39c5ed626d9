"""Where a new dataset may be: not within another one, whose garbage collection would meet its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardio.errors import CommitConflictError
from shardio.metadata import naming
from shardio.storage import DeniedError, connect, followed


def check_place(url: str, storage_options: Mapping[str, Any] | None) -> None:
    """Refuse a place for a new dataset that is within another one: one request for each folder above it.

    Args:
        url: as stores give it, absolute.
        storage_options: of the place.

    Raises:
        CommitConflictError: there is a dataset above.
        StorageError: the storage did not answer.
    """
    # A place that is reached by a link is within what is above the link, and above where it leads.
    for above in dict.fromkeys((*_above(url), *_above(followed(url)))):
        store = connect(above, storage_options=storage_options)
        try:
            found = store.head(naming.HINT_KEY)
        except DeniedError:
            # Who may write here need not be allowed to look there.
            continue
        if found is not None:
            raise CommitConflictError(
                "this place is within another dataset",
                url=url,
                found=f"a dataset at {store.url}",
                advice="choose a place outside of it",
            )


def _above(url: str) -> Iterator[str]:
    """Yield the folders above a place, the nearest first, down to the bucket."""
    if "::" in url:
        # Caches and the like keep datasets under names of their own.
        return
    scheme, _, path = url.rpartition("://")
    while "/" in path.strip("/"):
        path = path.rstrip("/").rpartition("/")[0]
        yield f"{scheme}://{path}" if scheme else path
    if not scheme and path.strip("/"):
        yield "/"
