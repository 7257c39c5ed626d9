"""What a caller asked a `DatasetWriter` for, checked before anything is touched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardio.catalog import MODES, Catalog
from shardio.errors import CommitConflictError, StorageError
from shardio.metadata import Schema, check_session, check_task, is_random_session
from shardio.storage import connect

if TYPE_CHECKING:
    from shardio.catalog import Version
    from shardio.codecs import RecordCodec

__all__ = ["catalog_to_write", "check_mode", "check_options", "check_shards", "is_codec", "settle_schema"]


DEFAULT_SHARD_BYTES = 256 << 20
MAX_SHARDS = 10**6  # of a dataset


def check_options(mode: str, session: str | None, task: int, *, commit: bool, shard_bytes: int) -> None:
    """Refuse options that make no sense, by name."""
    check_task(task)
    if mode not in MODES:
        message = f"mode={mode!r} must be one of {', '.join(MODES)}"
        raise ValueError(message)
    if session is not None:
        check_session(session)
        if is_random_session(session):
            message = f"session={session!r}: ids that begin like this are shardio's own; choose another"
            raise ValueError(message)
    elif task != 0 or not commit:
        raise ValueError("task= and commit=False need a session= that all tasks share")
    if shard_bytes < 1:
        message = f"shard_bytes={shard_bytes} must be at least 1"
        raise ValueError(message)


def check_shards(shards: int | None, shard_bytes: int, session: str | None = None) -> None:
    """Refuse a number of shards that makes no sense, or that a writer cannot keep."""
    if shards is None:
        return
    if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= MAX_SHARDS:
        message = f"shards={shards!r} must be a whole number between 1 and {MAX_SHARDS}"
        raise ValueError(message)
    if shard_bytes != DEFAULT_SHARD_BYTES:
        message = f"shards={shards} and shard_bytes={shard_bytes} both end a shard: give one of them"
        raise ValueError(message)
    if session is not None:
        message = (
            f"shards={shards} is the number of all shards of a write, and one task of session {session!r} "
            "cannot know what the others write: use write_dataset(shards=), or shard_bytes="
        )
        raise ValueError(message)


def is_codec(schema: object) -> bool:
    """Tell whether a writer's `schema` is a codec and not a schema."""
    if schema is None or isinstance(schema, Mapping):
        return False
    from shardio.codecs import RecordCodec

    return isinstance(schema, RecordCodec)


def check_mode(catalog: Catalog, base: Version | None, mode: str, session: str) -> None:
    """Refuse before any work what the commit would refuse after it.

    Raises:
        CommitConflictError: mode "create", and there is a dataset that this session is not part of; or
            garbage collection has given the session up.
    """
    if base is None:
        return
    if session in base.manifest.expiry.abandoned_sessions:
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


def settle_schema(
    given: Mapping[str, Any] | Schema | RecordCodec | None, encoding: str | None, base: Version | None = None
) -> Schema | None:
    """Return the schema to write with: the caller's, else that of the dataset appended to.

    The records of a codec of the caller's own, such as `codecs.Message(cls)`, are opaque to the dataset.
    """
    if is_codec(given):
        return None
    if given is None:
        if base is not None and base.manifest.schema is not None and encoding is None:
            return base.manifest.schema
        if encoding not in (None, "bytes"):
            message = f"encoding={encoding!r} needs a schema"
            raise ValueError(message)
        return None
    schema = Schema.parse(given, encoding=encoding)  # type: ignore[arg-type] # no codec, as was asked above
    for older in base.manifest.schemas if base is not None else ():
        schema.check_reads(older)
    return schema


def catalog_to_write(url: str, storage_options: Mapping[str, Any] | None, *, single_writer: bool) -> Catalog:
    """Return the catalog of a dataset to write.

    Raises:
        StorageError: the place is known to refuse it.
    """
    store = connect(url, storage_options=storage_options, single_writer=single_writer)
    if store.read_only:
        raise StorageError(f"this place cannot be written: {store.read_only_reason}", url=store.url)
    return Catalog(store)
