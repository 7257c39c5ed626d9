"""One shard with all that belongs to it: index, deletions, bytes; what is missing does not stop the rest."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from shardio.errors import (
    FormatError,
    NotFoundError,
    StaleIndexError,
    StorageError,
    UnsafeNameError,
    UnsupportedVersionError,
)
from shardio.format import DEFAULT_LIMITS
from shardio.maintenance._findings import UNREADABLE, VerifyReport
from shardio.maintenance._indexed import check_indexed
from shardio.maintenance._sequential import check_listed_bytes, check_records
from shardio.metadata import parse_deletions, parse_head, usual_index_key
from shardio.storage import ShortReadError, connect_folder

if TYPE_CHECKING:
    from shardio.format import Limits
    from shardio.maintenance._findings import Survey
    from shardio.metadata import IndexHead, ShardEntry
    from shardio.reader import ReadOptions, Source
    from shardio.storage import DataFile, Store

__all__ = ["WRONG", "check_alone", "check_listed"]

# What is wrong with the data, as against what could not be read: a name that leads away is damage, too.
WRONG = (FormatError, StaleIndexError, UnsafeNameError)


def check_listed(survey: Survey, source: Source, root: Store, number: int, entry: ShardEntry) -> None:
    """Check one shard of a list of shards, its index and its deletions.

    Args:
        survey: takes the findings.
        source: of all the shards.
        root: the dataset's own store.
        number: of the shard in the source.
        entry: what the list says of it.
    """
    limits = source.options.limits or DEFAULT_LIMITS
    with contextlib.ExitStack() as files:
        opened = _open_listed_index(survey, source, number, entry)
        _check_deletions(survey, root, entry, limits)
        data = _open_data(survey, source.pool.store_of(number), entry.key, shard=entry.key)
        if data is not None:
            files.enter_context(data)
        if opened is not None:
            index, head = opened
            files.enter_context(index)
            check_indexed(survey, head, index, data, shard=entry.key, limits=limits, schema=source.schema)
        elif data is not None:
            check_listed_bytes(survey, data, entry, limits=limits)


def _open_listed_index(
    survey: Survey, source: Source, number: int, entry: ShardEntry
) -> tuple[DataFile, IndexHead] | None:
    try:
        return source.pool.open_index(number)
    except NotFoundError as error:
        survey.note("missing", error)
    except UnsupportedVersionError as error:
        survey.note(UNREADABLE, error, shard=entry.key)
    except (*WRONG, ShortReadError) as error:
        survey.note("index", error, shard=entry.key)
    except StorageError as error:
        survey.note(UNREADABLE, error, shard=entry.key)
    return None


def _check_deletions(survey: Survey, root: Store, entry: ShardEntry, limits: Limits) -> None:
    if not entry.deletion_key:
        return
    url = root.url_of(entry.deletion_key)
    try:
        parse_deletions(root.get(entry.deletion_key, max_bytes=limits.manifest), entry, url=url)
    except NotFoundError as error:
        survey.note("missing", error, url=url, shard=entry.key)
    except WRONG as error:
        survey.note("deletions", error, url=url, shard=entry.key)
    except StorageError as error:
        survey.note(UNREADABLE, error, url=url, shard=entry.key)


def _open_data(survey: Survey, store: Store, key: str, *, shard: str) -> DataFile | None:
    try:
        data = store.open(key)
        _ = data.size  # a remote object that is not there is found out here
    except NotFoundError as error:
        survey.note("missing", error, url=store.url_of(key), shard=shard, advice="restore it from a copy")
    except StorageError as error:
        survey.note(UNREADABLE, error, url=store.url_of(key), shard=shard)
    else:
        return data
    return None


def check_alone(survey: Survey, url: str, options: ReadOptions) -> VerifyReport:
    """Check a shard by itself: with its index, or without one its records from the start."""
    limits = options.limits or DEFAULT_LIMITS
    store, key = connect_folder(url, storage_options=options.storage_options, engine=options.engine)
    indexed = True
    index = head = None
    with contextlib.ExitStack() as files:
        data = _open_data(survey, store, key, shard=key)
        if data is not None:
            files.enter_context(data)
            survey.total_bytes = data.size
        try:
            index = files.enter_context(store.open(usual_index_key(key)))
            head = _read_head(index, limits)
        except NotFoundError:
            indexed = False
        except UnsupportedVersionError as error:
            survey.note(UNREADABLE, error, shard=key)
        except (FormatError, ShortReadError) as error:
            survey.note("index", error, shard=key)
        except StorageError as error:
            survey.note(UNREADABLE, error, shard=key)
        if index is not None and head is not None:
            survey.records = head.rows
            check_indexed(survey, head, index, data, shard=key, limits=limits)
        elif data is not None:
            before = len(survey.findings)
            survey.good_records = check_records(survey, data, shard=key, limits=limits)
            survey.records = survey.good_records + sum(f.kind == "record" for f in survey.findings[before:])
    return VerifyReport(
        url=store.url_of(key),
        indexed=indexed,
        shards=1,
        records=survey.records,
        good_records=survey.good_records,
        stored_bytes=survey.total_bytes,
        findings=tuple(survey.findings),
    )


def _read_head(index: DataFile, limits: Limits) -> IndexHead:
    if index.size > limits.index:
        raise FormatError(
            "an index is over the limit",
            url=index.url,
            expected=f"at most {limits.index} bytes",
            found=index.size,
        )
    return parse_head(index.read(0, index.size), url=index.url, limits=limits)
