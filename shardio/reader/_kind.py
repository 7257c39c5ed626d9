"""What a URL leads to: a dataset, or one shard by itself."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from shardio.catalog import Catalog
from shardio.errors import NotFoundError, UnsafeNameError
from shardio.format import DEFAULT_LIMITS, Limits
from shardio.metadata import manifest_key
from shardio.storage import CannotListError, DeniedError, connect, connect_folder, url_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["is_shard"]


def is_shard(
    url: str | Path,
    *,
    version: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: str | None = None,
    limits: Limits | None = None,
) -> bool:
    """Tell whether a URL leads to one shard and not to a dataset.

    Args:
        url: of either.
        version: of a dataset; found by it where nothing can be listed and no hint tells the latest.
        storage_options: as in fsspec.
        engine, limits: as `shardio.open`.

    Raises:
        NotFoundError: it leads to neither.
        FormatError: it leads to a dataset whose latest manifest is damaged.
        StorageError: the environment failed.
    """
    name = url_text(url)
    # A web server may answer for a folder as if it were a file, so a dataset is looked for first,
    # except where the name leaves no doubt.
    if ".tfrecord" in name and _is_object(name, storage_options, engine):
        return True
    store = connect(name, storage_options=storage_options, engine=engine)
    try:
        if Catalog(store, limits=limits or DEFAULT_LIMITS).latest() is not None:
            return False
    except (CannotListError, DeniedError):
        # No hint tells of a dataset, and no listing can. What is forbidden may as well be absent; then the
        # reason why no dataset was found is the one to be told.
        with contextlib.suppress(DeniedError):
            if version is not None and store.head(manifest_key(version)) is not None:
                return False
        with contextlib.suppress(DeniedError):
            if _is_object(name, storage_options, engine):
                return True
        raise
    if _is_object(name, storage_options, engine):
        return True
    raise NotFoundError(
        "there is neither a shardio dataset nor a shard here",
        url=store.url,
        advice="check the address; a folder of TFRecord files becomes a dataset with `shardio index`",
    )


def _is_object(url: str, storage_options: Mapping[str, Any] | None, engine: str | None) -> bool:
    folder, _, name = url.rpartition("/")
    # The bucket itself, as in "s3://bucket", lies in no folder.
    if not name or folder.endswith((":/", "::")):
        return False
    store, key = connect_folder(url, storage_options=storage_options, engine=engine)
    try:
        return store.head(key) is not None
    except UnsafeNameError:
        return False
