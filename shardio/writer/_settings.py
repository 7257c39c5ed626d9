"""What a caller asked a `DatasetWriter` for, checked before anything is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from shardio.arguments import closest, integer, no_option
from shardio.catalog import MODES, Catalog, Version, check_place
from shardio.errors import CommitConflictError
from shardio.metadata import Schema, naming
from shardio.storage import connect

if TYPE_CHECKING:
    from shardio.codecs import RecordCodec

DEFAULT_SHARD_BYTES = 256 << 20
MAX_SHARDS = 10**6  # of a dataset


class LayoutOptions(TypedDict, total=False):
    """The options of `DatasetWriter` that `convert_dataset` hands on as they are."""

    compression: str | None
    level: int | None
    shard_bytes: int
    block_bytes: int
    splits: Iterable[str] | None
    single_writer: bool


class WriterOptions(LayoutOptions, total=False):
    """The options of `DatasetWriter` that `write_dataset` hands on as they are."""

    encoding: str | None
    metadata: Mapping[str, Any] | None


def check_writer_options(given: Mapping[str, Any], function: str, own: Iterable[str] = ()) -> None:
    """Refuse an option that no writer has, before any process is started.

    Args:
        given: the options.
        function: that hands them on.
        own: its other options, which may be meant.

    Raises:
        TypeError: names it, and the one that it may stand for.
    """
    known = (*WriterOptions.__annotations__, *own)
    for name in given:
        if name in ("task", "commit"):
            raise TypeError(f"{name}= is what {function} gives each task itself; leave it out")
        if name not in known:
            raise no_option(function, name, known)


def split_names(splits: Iterable[str] | None) -> frozenset[str] | None:
    """Return the splits that a caller declares, checked; None where none are declared.

    Raises:
        TypeError: a text in place of several names.
        UnsafeNameError: not a name for a split.
        ValueError: no names at all.
    """
    if splits is None:
        return None
    if isinstance(splits, str):
        raise TypeError(f"splits={splits!r} must be several names, as [{splits!r}]")
    names = frozenset(map(naming.check_split, splits))
    if not names:
        raise ValueError("splits=[] allows no split at all; leave it out, or name the splits")
    return names


def check_new_split(split: str, declared: frozenset[str] | None, others: Iterable[str]) -> None:
    """Refuse a split that was not meant: one that is not declared, or without a declaration looks mistyped.

    Raises:
        UnsafeNameError: not a name for a split.
        ValueError: it is not declared, or may be another split, mistyped.
    """
    naming.check_split(split)
    if declared is not None:
        if split not in declared:
            near = closest(split, sorted(declared))
            meant = f"; did you mean {near!r}?" if near else ""
            raise ValueError(f"split {split!r} is not one of splits={sorted(declared)}{meant}")
        return
    alike = sorted(other for other in others if naming.look_alike(split, other))
    if alike:
        raise ValueError(
            f"split {split!r} would be a new one and may be {alike[0]!r}, mistyped; "
            f"if both are meant, declare them: splits={sorted({split, *others})}"
        )


def check_options(mode: str, session: str | None, task: int, *, commit: bool, shard_bytes: int) -> None:
    """Refuse options that make no sense, by name."""
    naming.check_task(task)
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} must be one of {', '.join(MODES)}")
    if session is not None:
        naming.check_session(session)
        if naming.is_random_session(session):
            message = f"session={session!r}: ids that begin like this are shardio's own; choose another"
            raise ValueError(message)
    elif task != 0 or not commit:
        raise ValueError("task= and commit=False need a session= that all tasks share")
    if shard_bytes < 1:
        raise ValueError(f"shard_bytes={shard_bytes} must be at least 1")


def check_shards(shards: int | None, shard_bytes: int, session: str | None = None) -> None:
    """Refuse a number of shards that makes no sense, or that a writer cannot keep."""
    if shards is None:
        return
    if not 1 <= integer("shards", shards) <= MAX_SHARDS:
        raise ValueError(f"shards={shards!r} must be a whole number between 1 and {MAX_SHARDS}")
    if shard_bytes != DEFAULT_SHARD_BYTES:
        raise ValueError(f"shards={shards} and shard_bytes={shard_bytes} both end a shard: give one of them")
    if session is not None:
        raise ValueError(
            f"shards={shards} is the number of all shards of a write, and one task of session {session!r} "
            "cannot know what the others write: use write_dataset(shards=), or shard_bytes="
        )


def is_codec(schema: object) -> bool:
    """Tell whether a writer's `schema` is a codec and not a schema."""
    if schema is None or isinstance(schema, Mapping):
        return False
    from shardio.codecs import RecordCodec

    return isinstance(schema, RecordCodec)


def foretell_write(
    url: str,
    mode: str,
    session: str | None,
    storage_options: Mapping[str, Any] | None,
    *,
    single_writer: bool,
) -> None:
    """Refuse what a writer of these options would refuse before its first record; writes nothing.

    Raises:
        ValueError, CommitConflictError, StorageError: as `DatasetWriter`.
    """
    check_options(mode, session, 0, commit=True, shard_bytes=1)
    catalog = catalog_to_write(url, storage_options, single_writer=single_writer)
    check_mode(catalog, catalog.latest(), mode, session or "", storage_options)


def check_mode(
    catalog: Catalog,
    base: Version | None,
    mode: str,
    session: str,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Refuse before any work what the commit would refuse after it, and a new dataset within another one.

    Raises:
        CommitConflictError: mode "create", and there is a dataset that this session is not part of; or
            garbage collection has given the session up; or the place is within another dataset.
    """
    if base is None:
        check_place(catalog.store.url, storage_options)
        return
    if base.manifest.expiry.abandons(session):
        raise CommitConflictError(
            f"session {session!r} was abandoned by garbage collection",
            url=catalog.store.url,
            advice="write its records under a new session",
        )
    if mode == "create" and catalog.merged(base, session) is None:
        raise CommitConflictError(
            "there is a dataset already",
            url=catalog.store.url,
            found=f"version {base.number}",
            advice='use mode="append" or mode="overwrite", or another place',
        )


def resolve_schema(
    given: Mapping[str, Any] | Schema | RecordCodec | None, encoding: str | None, base: Version | None = None
) -> Schema | None:
    """Return the schema to write with: the caller's, else that of the dataset appended to.

    What the caller's does not say of a feature that the dataset has is the dataset's: above all the names of
    its classes, in their order. So is the encoding that a mapping does not say. The records of a codec of the
    caller's own, such as `codecs.Message(cls)`, are opaque to the dataset.

    Raises:
        SchemaError: it cannot read the dataset's records, lacks a required feature of the dataset, or numbers
            classes in another way.
    """
    if is_codec(given):
        return None
    if given is None:
        if base is not None and base.manifest.schema is not None and encoding is None:
            return base.manifest.schema
        if encoding not in (None, "bytes"):
            raise ValueError(f"encoding={encoding!r} needs a schema")
        return None
    known = base.manifest.schema if base is not None else None
    if known is not None and encoding is None and not isinstance(given, Schema):
        encoding = known.encoding
    schema = Schema.parse(given, encoding=encoding)  # type: ignore[arg-type] # no codec, as was asked above
    if known is not None:
        schema = schema.completed(known).keeping_optional(known)
    for older in base.manifest.schemas if base is not None else ():
        schema.check_reads(older)
    if known is not None:
        schema.check_lacks_nothing(known)
    return schema


def catalog_to_write(url: str, storage_options: Mapping[str, Any] | None, *, single_writer: bool) -> Catalog:
    """Return the catalog of a dataset to write.

    Raises:
        ValueError: the place is in the metadata of another dataset.
        StorageError: the place is known to refuse it.
    """
    store = connect(url, storage_options=storage_options, single_writer=single_writer)
    if naming.METADATA in store.url.split("/"):
        message = (
            f"{store.url} is in a folder {naming.METADATA}/, which holds the metadata of another dataset"
        )
        raise ValueError(message)
    store.refuse_writing()
    return Catalog(store)


def encoder(schema: Schema | RecordCodec | None) -> Callable[[Any], bytes]:
    """Return the function that encodes values by a schema or codec; without one it passes bytes on."""
    if schema is None:
        return _plain_bytes
    from shardio.codecs import record_codec

    encode: Callable[[Any], bytes] = record_codec(schema).encode
    return encode


def _plain_bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    message = f"without a schema records are bytes, not {type(value).__name__}; give the writer a schema="
    raise TypeError(message)
