"""The way in: a dataset by its URL, and whether a URL leads to one, or to one shard by itself."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from shardio.catalog import Catalog
from shardio.errors import NotFoundError, UnsafeNameError
from shardio.format import DEFAULT_LIMITS, Limits
from shardio.metadata import manifest_key
from shardio.reader._options import ReadOptions
from shardio.reader._records import DatasetReader
from shardio.reader._source import DatasetSource
from shardio.storage import CannotListError, DeniedError, connect, connect_folder, url_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shardio.codecs import RecordCodec
    from shardio.storage import CacheOptions

__all__ = ["is_shard", "open"]


def open(  # noqa: A001, PLR0913 - the name and the options are the public contract
    url: str | Path,
    split: str | None = None,
    *,
    version: int | None = None,
    digest: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: str | None = None,
    decode: bool | str | RecordCodec = True,
    features: Sequence[str] | None = None,
    cache: CacheOptions | None = None,
    verify: bool = True,
    on_error: str = "raise",
    allow_roots: Mapping[str, Mapping[str, Any]] | None = None,
    mmap: bool = True,
    limits: Limits | None = None,
) -> DatasetReader:
    """Open a split of a dataset; reads its manifest and its lists of shards, nothing else.

    Args:
        url: of the dataset; any fsspec URL or local path.
        split: its name; None for the only one; "all" for all of them, joined in the order of their names.
        version: a number, or None for the latest. The reader stays with the version that it found.
        digest: `"sha256:..."` that the version must have; see `DatasetReader.digest`.
        storage_options: as in fsspec.
        engine: None for the best at hand, "fsspec" or "obstore".
        decode: True for values by the schema, False for payload bytes, "image" to decode images too, to
            uint8 [height, width, channels]; or a codec, such as `codecs.Message(cls)`.
        features: names of the features wanted; others are not parsed.
        cache: where blocks of a remote dataset are kept on local disk, or None.
        verify: compare the checksum of every block before anything of it is returned.
        on_error: what iteration and streams do about damage: "raise", "skip" (counted in `stats`), or
            "quarantine" (skip, and write what, where and why to a file). Lookups always raise.
        allow_roots: roots of adopted shards that may be read, each with its storage options.
        mmap: look into local shards that shardio wrote as mapped memory, the fastest way. False reads them
            instead, for files that somebody may cut or overwrite in place while they are read: that ends a
            process which has them mapped (SIGBUS). Adopted shards are always read.
        limits: upper bounds for sizes that files claim, a `Limits`; None for those of the format.

    Raises:
        NotFoundError: there is no dataset, or no such version.
        ValueError: there is no such split, or several and none was named.
        FormatError, UnsupportedVersionError: the metadata is damaged or newer.
        StorageError: the environment failed, or a data root is not allowed.

    Examples:
        >>> import shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/numbers"
        >>> with shardio.DatasetWriter(url, schema={"n": "int64"}) as out:
        ...     for n in range(100):
        ...         out.write({"n": n})
        >>> ds = shardio.open(url)
        >>> len(ds), int(ds[-1]["n"]), ds[10:12].read_batch([1])
        (100, 99, {'n': array([11])})
    """
    options = ReadOptions(
        storage_options=dict(storage_options) if storage_options else None,
        engine=engine,
        decode=decode,
        features=None if features is None else tuple(features),
        cache=cache,
        verify=verify,
        on_error=on_error,
        allow_roots={root: dict(given or {}) for root, given in (allow_roots or {}).items()},
        mmap=mmap,
        limits=limits,
    )
    return DatasetReader(DatasetSource.resolve(url_text(url), split, options, version=version, digest=digest))


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
