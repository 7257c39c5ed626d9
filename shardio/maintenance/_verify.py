"""Compare every byte of a dataset or shard with the checksums that cover it, and name all that is wrong.

Promises: the list is whole, because nothing found stops the search; its order depends on the data alone;
memory stays within some tens of megabytes and one block, apart from the metadata and the findings; nothing is
written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from shardio.arguments import checked_options
from shardio.catalog import Catalog, Version
from shardio.errors import (
    FormatError,
    NotFoundError,
    StaleIndexError,
    StorageError,
    UnsafeNameError,
    UnsupportedVersionError,
)
from shardio.format import DEFAULT_LIMITS, Limits
from shardio.keys import StoredRun
from shardio.maintenance._findings import SHARD_ADVICE, UNREADABLE, Survey, VerifyProgress, VerifyReport
from shardio.maintenance._indexed import check_indexed
from shardio.maintenance._stored_bytes import check_listed_bytes, check_records
from shardio.maintenance._values import ValueCheck, value_check
from shardio.metadata import COPY_ADVICE, ShardEntry, ShardTable, naming
from shardio.parallel import run, sliced
from shardio.progress import displayed
from shardio.reader import (
    MISSING_ADVICE,
    TABLE_ADVICE,
    ReadOptions,
    ShardSource,
    Slice,
    deleted_rows,
    is_shard,
    read_head,
    read_table_bytes,
)
from shardio.storage import Address, DataFile, Place, ShortReadError, Store, connect, connect_folder

# What is wrong with the data, as against what could not be read: a name that leads away is damage, too.
_WRONG = (FormatError, StaleIndexError, UnsafeNameError)


@checked_options
def verify(
    url: Place,
    *,
    split: str | None = None,
    version: int | str | None = None,
    digest: str | None = None,
    decode: bool = False,
    progress: bool | Callable[[VerifyProgress], None] = False,
    limits: Limits | None = None,
    executor: Executor | None = None,
) -> VerifyReport:
    """Check a version of a dataset, or a single shard, and list everything that is wrong.

    Of a dataset: the manifest and those before it, the lists of shards, every index, every shard, every
    deletion sidecar, table and index of keys. Of a single shard: it and its index; without an index its
    records, from the start.

    Args:
        url: of the dataset, or of a shard.
        split: name of the only split to look at; None for all.
        version: a number, a tag, or None for the latest.
        digest: `"sha256:..."` that the version must have.
        decode: whether each record is also decoded by the schema, and its images to pixels; what does not
            decode is a finding of the kind "value".
        progress: True for a bar on a terminal and lines in a log, or a function, called with a
            `VerifyProgress` after every few shards.
        limits: upper bounds for sizes that files claim, a `Limits`; None for those of the format.
        executor: any `concurrent.futures.Executor` that looks at the shards of a dataset; None for this
            process.

    Returns:
        The report; damage is in it and is not raised.

    Raises:
        NotFoundError: there is neither a dataset nor a shard, or no such version.
        UnsupportedVersionError: a newer shardio wrote the manifest.
        StorageError: the metadata could not be read, or a data root is not allowed. A shard that cannot be
            read is a finding instead, of the kind "unreadable".
        ValueError: there is no such split; of a shard, `split`, `version`, `digest` and `decode` make no
            sense.
        ModuleNotFoundError: images are to be decoded, and Pillow is not installed.

    Examples:
        >>> import shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/bytes"
        >>> with shardio.DatasetWriter(url) as out:
        ...     out.write(b"one")
        >>> report = shardio.verify(url)
        >>> report.ok, report.good_records, report.findings
        (True, 1, ())
    """
    address = Address.of(url)
    # A bad sector would end a process that has the file mapped, and is a finding.
    options = ReadOptions.at(address, limits=limits, mmap=False)
    name, chosen = address.url, (split, version, digest)
    with displayed(progress, "verify") as show:
        if _is_alone(name, options, version):
            if chosen != (None, None, None):
                raise ValueError(f"{name} is a single shard: it has no split, version or digest to choose")
            if decode:
                message = (
                    f"{name} is a single shard: the schema that decodes its records is that of a dataset"
                )
                raise ValueError(message)
            return _check_alone(name, options)
        store = connect(name, storage_options=options.storage_options, engine=options.engine)
        catalog = Catalog(store, limits=options.limits or DEFAULT_LIMITS)

        def check(version: Version) -> VerifyReport:
            report = _check_version(catalog, version, split, options, executor, show, decode=decode)
            if report.findings:
                # What garbage collection took meanwhile is not damage.
                catalog.check_expired(version)
            return report

        try:
            return catalog.reading(check, version, digest=digest)
        except UnsupportedVersionError:
            raise
        except _WRONG as error:
            survey = Survey()
            survey.note("manifest", error)
            return survey.report(store.url)


def _is_alone(name: str, options: ReadOptions, version: int | str | None) -> bool:
    try:
        return is_shard(
            name,
            version=version,
            limits=options.limits,
            storage_options=options.storage_options,
            engine=options.engine,
        )
    except UnsupportedVersionError:
        raise
    except _WRONG:
        return False  # the latest manifest of a dataset is damaged; what is wrong is found again


def _check_version(
    catalog: Catalog,
    version: Version,
    split: str | None,
    options: ReadOptions,
    executor: Executor | None,
    show: Callable[[VerifyProgress], None] | None,
    *,
    decode: bool,
) -> VerifyReport:
    """Check the metadata of a version here, and its shards here or in the workers of an executor."""
    survey, store = Survey(), catalog.store
    names = [total.name for total in version.manifest.splits]
    if split is not None and split not in names:
        message = f"{store.url} has no split {split!r}; it has {', '.join(map(repr, names)) or 'none'}"
        raise ValueError(message)
    _check_parents(survey, catalog, version)
    for ref in version.manifest.session_lists:  # without which no session can be committed
        with _noted(survey, "list", url=store.url_of(ref.key)):
            catalog.sessions_of(ref)
    check_keys(survey, catalog, version)
    table = _read_table(survey, catalog, version)
    if split is not None:
        table = table.of_split(split)
    found: dict[int, Survey] = {}
    results = run(
        partial(_check_slice, decode=decode),
        sliced(store.url, version, table, options),
        store.url,
        executor=executor,
        workers=None if executor else 1,
        progress=None if show is None else lambda at: show(VerifyProgress(at.done, at.total, all_findings)),
        on_lost=_lost_slice,
    )
    all_findings = [*survey.findings]
    with contextlib.closing(results):
        for part, its in results:
            found[part.number] = its
            all_findings += its.findings
    for number in sorted(found):
        survey.add(found[number])
    return survey.report(
        store.url,
        version=version.number,
        digest=version.digest,
        shards=len(table),
        records=int(table.rows.sum()),
        undecodable_records=survey.undecodable_records if decode else None,
        stored_bytes=int(table.stored_bytes.sum()),
    )


def _check_slice(part: Slice, *, decode: bool) -> Survey:
    """Return what is found in some shards, one after another."""
    survey, source = Survey(), part.open()
    with value_check(survey, source.schema) if decode else nullcontext() as values:
        for number, entry in enumerate(source.table):
            check_listed(survey, source, source.pool.stores[0], number, entry, values)
    return survey


def _lost_slice(part: Slice, error: StorageError) -> Survey:
    """Return the survey of shards whose worker was lost too often, so they were not looked at."""
    survey = Survey()
    for entry in part.shards:
        error.shard = entry.key
        survey.note(UNREADABLE, error, url=part.url)
    return survey


def check_keys(survey: Survey, catalog: Catalog, version: Version) -> None:
    """Compare every byte of the indexes of keys with the checksums that cover it."""
    store = catalog.store
    for index in version.manifest.keys:
        for ref in index.runs:
            with _noted(survey, "keys", url=store.url_of(ref.key)):
                for _ in StoredRun(store, ref, catalog.limits):
                    pass


def _check_parents(survey: Survey, catalog: Catalog, version: Version) -> None:
    """Follow the manifests to the first: each names its parent by SHA-256, and none is ever deleted."""
    child: Version | None = version
    for number in range(version.number - 1, 0, -1):
        url = catalog.store.url_of(naming.manifest_key(number))
        try:
            parent = catalog.load(number, known_live=True)
        except NotFoundError:
            what = "the manifest of an earlier version is gone, and manifests are never deleted"
            survey.note("missing", NotFoundError(what, url=url, advice=COPY_ADVICE))
            child = None
        except _WRONG as error:
            survey.note("manifest", error, url=url)
            child = None
        else:
            if child is not None and child.manifest.parent_sha256 != parent.sha256:
                replaced = FormatError(
                    f"a manifest is not the one that version {child.number} was built on",
                    url=url,
                    expected=f"SHA-256 {child.manifest.parent_sha256.hex()}",
                    found=f"SHA-256 {parent.sha256.hex()}",
                    advice=f"it was replaced: {COPY_ADVICE}",
                )
                survey.note("manifest", replaced)
            child = parent


def _read_table(survey: Survey, catalog: Catalog, version: Version) -> ShardTable:
    """Return the shards of all lists that can be read."""
    try:
        return catalog.table(version)
    except _WRONG as error:
        whole = error
    tables = []
    before = len(survey.findings)
    for ref in version.manifest.lists:
        try:
            tables.append(catalog.shards_of(ref))
        except _WRONG as error:
            survey.note("list", error, url=catalog.store.url_of(ref.key))
    if len(survey.findings) == before:
        survey.note("list", whole)
    table = ShardTable.concatenate(tables)
    # Shards under a data root that no manifest names cannot be found; that is among the findings already.
    known = np.isin(table.root, [0, *version.manifest.roots])
    return table if known.all() else table.take(np.flatnonzero(known))


def check_listed(
    survey: Survey,
    source: ShardSource,
    root: Store,
    number: int,
    entry: ShardEntry,
    values: ValueCheck | None = None,
) -> None:
    """Check one shard of a list of shards, its index and its deletions.

    Args:
        survey: takes the findings.
        source: of all the shards.
        root: the dataset's own store.
        number: of the shard in the source.
        entry: what the list says of it.
        values: decodes its records; None leaves that out.
    """
    limits = source.options.limits or DEFAULT_LIMITS
    survey.damage_advice = SHARD_ADVICE[entry.adopted]
    with contextlib.ExitStack() as files:
        opened = deleted = None
        with _noted(survey, "index", shard=entry.key):
            opened = source.pool.open_index(number)
        if entry.deletion_key:
            url = root.url_of(entry.deletion_key)
            with _noted(survey, "deletions", url=url, shard=entry.key):
                deleted = deleted_rows(root, entry, limits)
        if entry.table_key:
            url = root.url_of(entry.table_key)
            with _noted(survey, "table", url=url, shard=entry.key, gone=TABLE_ADVICE):
                read_table_bytes(root, entry, limits.index)
        gone = MISSING_ADVICE[entry.adopted]
        data = _open_data(survey, files, source.pool.store_of(number), entry.key, gone)
        if opened is not None:
            index, head = opened
            files.enter_context(index)
            url = source.pool.url_of(number)
            take = None if values is None else values.of_shard(entry, url, deleted).take
            check_indexed(
                survey, head, index, data, shard=entry.key, limits=limits, schema=source.schema, take=take
            )
        elif data is not None:
            check_listed_bytes(survey, data, entry, limits=limits)


@contextmanager
def _noted(survey: Survey, kind: str, *, gone: str | None = None, **places: Any) -> Iterator[None]:
    """Note what is wrong with an object, of a kind; `gone` is the advice for one that is missing."""
    try:
        yield
    except NotFoundError as error:
        survey.note("missing", error, **places, **({"advice": gone} if gone else {}))
    except UnsupportedVersionError as error:
        survey.note(UNREADABLE, error, **places)
    except (*_WRONG, ShortReadError) as error:
        survey.note(kind, error, **places)
    except StorageError as error:
        survey.note(UNREADABLE, error, **places)


def _open_data(
    survey: Survey, files: contextlib.ExitStack, store: Store, key: str, gone: str = COPY_ADVICE
) -> DataFile | None:
    with _noted(survey, "size", url=store.url_of(key), shard=key, gone=gone):
        data = files.enter_context(store.open(key))
        _ = data.size  # a remote object that is not there is found out here
        return data
    return None


def _check_alone(url: str, options: ReadOptions) -> VerifyReport:
    """Check a shard by itself: with its index, or without one its records from the start."""
    survey, limits = Survey(), options.limits or DEFAULT_LIMITS
    store, key = connect_folder(url, storage_options=options.storage_options, engine=options.engine)
    name = naming.usual_index_key(key)
    indexed, records = True, 0
    index = head = None
    with contextlib.ExitStack() as files:
        data = _open_data(survey, files, store, key)
        stored_bytes = 0 if data is None else data.size
        with _noted(survey, "index", shard=key):
            indexed = store.head(name) is not None
            if indexed:
                index = files.enter_context(store.open(name))
                head = read_head(index, limits)
        if index is not None and head is not None:
            records = head.rows
            check_indexed(survey, head, index, data, shard=key, limits=limits)
        elif data is not None:
            before = len(survey.findings)
            survey.good_records = check_records(survey, data, shard=key, limits=limits)
            records = survey.good_records + sum(f.kind == "record" for f in survey.findings[before:])
    return survey.report(
        store.url_of(key), indexed=indexed, shards=1, records=records, stored_bytes=stored_bytes
    )
