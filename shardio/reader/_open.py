"""The ways in: a dataset by its URL, one TFRecord file by itself, and which of the two a URL leads to.

A file with its index is a `Sequence` of payloads like any dataset.  Without one it can only be read from the
start, and says so: every record's own checksums are compared then.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from shardio.arguments import checked_options, names, options_by_root
from shardio.callers import warn
from shardio.catalog import Catalog
from shardio.codecs import CenterCrop, ImageOptions, RandomResizedCrop, RecordCodec
from shardio.display import plural
from shardio.errors import NotFoundError, ShardioError, UnsafeNameError
from shardio.format import (
    DEFAULT_LIMITS,
    Limits,
    decode_stream,
    sniff_compression,
)
from shardio.metadata import ShardEntry, ShardTable, naming
from shardio.reader._groups import DatasetDict
from shardio.reader._options import ReadOptions
from shardio.reader._pool import read_head
from shardio.reader._records import DatasetReader, RecordSequence
from shardio.reader._source import DatasetSource, ShardSource, several_splits
from shardio.redact import redact
from shardio.storage import (
    CacheOptions,
    CannotListError,
    DeniedError,
    Store,
    connect,
    connect_folder,
    url_text,
)
from shardio_indexer import iterate_payloads

_PIECE = 1 << 20  # stored bytes of one read, of a file without an index


@checked_options
def open(  # noqa: A001, PLR0913 - the name and the options are the public contract
    url: str | Path,
    split: str | None = None,
    *,
    version: int | str | None = None,
    digest: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: str | None = None,
    decode: bool | str | ImageOptions | RecordCodec = True,
    image_size: int | tuple[int, int] | None = None,
    image_crop: str | CenterCrop | RandomResizedCrop | None = None,
    features: Sequence[str] | None = None,
    cache: CacheOptions | None = None,
    verify: bool = True,
    on_error: Literal["raise", "skip", "quarantine"] = "raise",
    allow_roots: Mapping[str, Mapping[str, Any]] | None = None,
    mmap: bool = True,
    decoded_bytes: int = 16 << 20,
    limits: Limits | None = None,
) -> DatasetReader | Any:
    """Open a dataset; reads its manifest and its lists of shards, nothing else.

    Args:
        url: of the dataset; any fsspec URL or local path.
        split: its name; "all" for all of them, joined in the order of their names. None for the only one, and
            where there are several for a `DatasetDict` with a reader of each, by name.
        version: a number, a tag, or None for the latest. The reader stays with the version that it found.
        digest: `"sha256:..."` that the version must have; see `DatasetReader.digest`.
        storage_options: as in fsspec.
        engine: None for the best at hand, "fsspec" or "obstore".
        decode: True for values by the schema, False for payload bytes, "image" to decode images too, to
            uint8 [height, width, channels]; `ImageOptions`, to say how; or a codec, such as
            `codecs.Message(cls)`.
        image_size: with `decode="image"`, (height, width) of every image, or one number for both. Images are
            then RGB, and a batch of them is one array uint8 [n, height, width, 3]. JPEGs are decoded at a
            half, a quarter or an eighth of their size where that suffices.
        image_crop: which part of an image becomes that size. None takes all of it and does not keep its
            aspect. For evaluation take "center" or a `CenterCrop`. For training, in streams alone, take
            "random" or a `RandomResizedCrop`.
        features: names of the features wanted; others are not parsed.
        cache: where blocks of a remote dataset are kept on local disk, or None.
        verify: compare the checksum of every block before anything of it is returned.
        on_error: what iteration and streams do about damage: "raise", "skip" (counted in `stats`), or
            "quarantine" (skip, and list what, where and why in `shardio-quarantine.jsonl`).
            Lookups always raise. Those of a reader that skips compare whole blocks: what is left out is the
            same however it is read.
        allow_roots: roots of adopted shards that may be read, each with its storage options.
        mmap: look into local shards that shardio wrote as mapped memory, the fastest way. False reads them
            instead, for files that may be cut or overwritten in place while they are read: that ends a
            process which has them mapped (SIGBUS). Adopted shards are always read.
        decoded_bytes: of the blocks of compressed shards that lookups keep decoded, in this process; those
            that were not used for longest make room. 0 keeps none.
        limits: upper bounds for sizes that files claim, a `Limits`; None for those of the format.

    Returns:
        A `DatasetReader`; a `DatasetDict` of them where the dataset has several splits and none was named.

    Raises:
        NotFoundError: there is no dataset, or no such version.
        ValueError: there is no such split.
        TypeError: there is no such option; says which one may be meant.
        FormatError, UnsupportedVersionError: the metadata is damaged or newer.
        StorageError: the environment failed, or a data root is not allowed.

    Examples:
        >>> import shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/numbers"
        >>> _ = shardio.from_generator(({"n": n} for n in range(100)), url)
        >>> ds = shardio.open(url)
        >>> len(ds), int(ds[-1]["n"]), ds[10:12].read_batch([1])
        (100, 99, {'n': array([11])})
    """
    for name, value, default, kinds, wanted in (
        ("storage_options", storage_options, None, Mapping, "a mapping"),
        ("decode", decode, True, bool | str | ImageOptions | RecordCodec, 'True, False or "image"'),
        ("cache", cache, None, CacheOptions, "shardio.CacheOptions(dir=..., max_bytes=...)"),
        ("limits", limits, None, Limits, "shardio.Limits(...)"),
    ):
        if value is not default and not isinstance(value, kinds):
            # Not the value: it may be a secret.
            raise TypeError(f"{name}= takes {wanted}, found {type(value).__name__}")
    if image_size is not None or image_crop is not None:
        if decode != "image":
            raise ValueError('image_size= and image_crop= need decode="image"')

        decode = ImageOptions(size=image_size, crop=image_crop)
    options = ReadOptions(
        storage_options=dict(storage_options) if storage_options else None,
        engine=engine,
        decode=decode,
        features=None if features is None else names("features", features),
        cache=cache,
        verify=verify,
        on_error=on_error,
        allow_roots=options_by_root(allow_roots),
        mmap=mmap,
        decoded_bytes=decoded_bytes,
        limits=limits,
    )
    sources = DatasetSource.resolve_each(url_text(url), split, options, version=version, digest=digest)
    if len(sources) > 1:
        return DatasetDict({source.split: DatasetReader(source) for source in sources})
    return DatasetReader(sources[0])


def open_split(url: str | Path, split: str | None = None, **options: Any) -> DatasetReader:
    """Open one split of a dataset; arguments are those of `open`.

    Raises:
        ValueError: there are several splits and none was named.
    """
    found = open(url, split, **options)
    if isinstance(found, DatasetDict):
        raise several_splits(url_text(url), list(found))
    return found


def is_shard(
    url: str | Path,
    *,
    version: int | str | None = None,
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
        NotFoundError: it leads to neither, or the dataset has no such version.
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
        Catalog(store, limits=limits or DEFAULT_LIMITS).load(version)
    except (NotFoundError, CannotListError, DeniedError):
        # Without a listing, or permission, an object may still be found by its name.
        with contextlib.suppress(DeniedError):
            if _is_object(name, storage_options, engine):
                return True
        raise
    return False


def _is_object(url: str, storage_options: Mapping[str, Any] | None, engine: str | None) -> bool:
    folder, _, name = url.rpartition("/")
    # The bucket itself, as in "s3://bucket", is in no folder.
    if not name or folder.endswith((":/", "::")):
        return False
    store, key = connect_folder(url, storage_options=storage_options, engine=engine)
    try:
        return store.head(key) is not None
    except UnsafeNameError:
        return False


class _SingleShard(ShardSource):
    """A shard by itself: its table has one row, made from its own index."""

    def __init__(self, url: str, options: ReadOptions) -> None:
        store, name = connect_folder(url, storage_options=options.storage_options, engine=options.engine)
        table = ShardTable.from_entries([_entry(store, name, options.limits or DEFAULT_LIMITS)])
        super().__init__(url, table, {0: store}, options, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _SingleShard, (self.url, self.options)


class ShardReader(RecordSequence):
    """The records of one shard, as payload bytes; made by `shardio.open_shard`."""

    def __repr__(self) -> str:
        return f"<shardio.ShardReader {redact(self.source.url)}: {plural(len(self), 'record')}>"

    def facts(self) -> dict[str, Any]:
        """Return what the index says of the shard, for JSON."""
        options = self.source.options
        store, key = connect_folder(
            self.source.url, storage_options=options.storage_options, engine=options.engine
        )
        with store.open(naming.usual_index_key(key)) as index:
            head = read_head(index, options.limits or DEFAULT_LIMITS)
            url = index.url
        return {
            "kind": "shard",
            "url": store.url_of(key),
            "stored_bytes": head.stored_bytes,
            "index": url,
            "framing": head.framing.name.lower(),
            "record_crc": head.record_crc.name.lower(),
            "compression": head.compression.name.lower(),
            "records": head.rows,
            "blocks": head.blocks,
            "decoded_bytes": head.decoded_bytes,
            "crc32c": f"{head.crc32c:#010x}",
            "uuid": head.uuid.hex(),
            "writer": head.writer,
        }


class SequentialShard:
    """A TFRecord file without an index: its records in order, from the start, as payload bytes.

    Plain, gzip, ZLIB and Zstandard files are recognised by their first bytes. Both checksums of every record
    are compared.
    """

    def __init__(self, url: str, options: ReadOptions) -> None:
        self.url = url
        self._options = options
        self._store, self._name = connect_folder(
            url, storage_options=options.storage_options, engine=options.engine
        )

    def __iter__(self) -> Iterator[bytes]:
        """Yield the payloads; memory stays within a few megabytes and one record.

        Raises:
            NotFoundError: there is no such file.
            FormatError, CorruptRecordError: with row and bytes.
        """
        limits = self._options.limits or DEFAULT_LIMITS
        with self._store.open(self._name) as file:
            try:
                compression = sniff_compression(bytes(file.read(0, min(12, file.size))))
                pieces = decode_stream(map(bytes, file.pieces(_PIECE)), compression, limits=limits)
                yield from itertools.chain.from_iterable(iterate_payloads(pieces, limits=limits))
            except ShardioError as error:
                raise error.located(url=self.url) from error

    def facts(self) -> dict[str, Any]:
        """Return what the file shows by its size and first bytes, for JSON."""
        with self._store.open(self._name) as file:
            return {
                "kind": "shard",
                "url": file.url,
                "stored_bytes": file.size,
                "compression": sniff_compression(bytes(file.read(0, min(12, file.size)))).name.lower(),
                "index": "none: it can only be read in order",
            }

    def __len__(self) -> int:
        raise TypeError(self._sequential_only("has no length"))

    def __getitem__(self, item: object) -> bytes:
        raise TypeError(self._sequential_only("cannot be looked up by number"))

    def _sequential_only(self, what: str) -> str:
        url = redact(self.url)
        return f"{url} has no index, so it {what}: iterate over it, or adopt it with `shardio adopt`"


@checked_options
def open_shard(
    url: str | Path,
    *,
    storage_options: Mapping[str, Any] | None = None,
    engine: str | None = None,
    verify: bool = True,
    limits: Limits | None = None,
) -> ShardReader | SequentialShard:
    """Open one TFRecord file.

    Args:
        url: of the file; its index, if there is one, is beside it as `<name>.shardidx`.
        storage_options: as in fsspec.
        engine: None for the best at hand, "fsspec" or "obstore".
        verify: compare the checksum of every block before anything of it is returned.
        limits: upper bounds for sizes that the file claims, a `Limits`; None for those of the format.

    Returns:
        A `Sequence` of payloads where there is an index; else an iterable of payloads in order, and a
        warning that says so.

    Raises:
        NotFoundError: there is no such file.
        StaleIndexError: the index was made for another file, or the file changed since.
    """
    options = ReadOptions(
        storage_options=dict(storage_options) if storage_options else None,
        engine=engine,
        verify=verify,
        limits=limits,
    )
    name = url_text(url)
    if "/" not in name:
        name = f"./{name}"
    try:
        return ShardReader(_SingleShard(name, options))
    except NotFoundError:
        shard = SequentialShard(name, options)
        shard.facts()  # a file that is not there is found out here
    warn(f"{name} has no index: it can only be read in order")
    return shard


def _entry(store: Store, name: str, limits: Limits) -> ShardEntry:
    """Return a shard as a list of shards would describe it, from its index."""
    with store.open(naming.usual_index_key(name)) as index:
        head = read_head(index, limits)
    # No list of shards has checksums of a single file: it is read, not mapped, and measured each time.
    return ShardEntry.of_index(head, split="shard", key=name, etag="alone")
