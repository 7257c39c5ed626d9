"""Write a dataset: values in, one new version out, or nothing.

An exception, Ctrl-C, `del` or the death of the process inside the `with` block publishes nothing: shards are
stored under names that no version mentions, and only `close` commits.
"""

from __future__ import annotations

import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from shardio.arguments import checked_options
from shardio.catalog import Base, Version, commit_receipts, find_safe_work
from shardio.errors import (
    CommitConflictError,
    CommitOutcomeUnknownError,
    SchemaError,
    ShardioError,
    StorageError,
)
from shardio.format import DEFAULT_BLOCK_BYTES, Block, Compression
from shardio.metadata import Schema, naming
from shardio.storage import on_io_thread, url_text
from shardio.writer._settings import (
    DEFAULT_SHARD_BYTES,
    catalog_to_write,
    check_mode,
    check_new_split,
    check_options,
    check_shards,
    encoder,
    is_codec,
    resolve_schema,
    split_names,
)
from shardio.writer._spool import CLOSED, FORKED, AtomicWriter, Layout, ShardSpool, spool_folder
from shardio.writer._task import Task

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

    from shardio.codecs import RecordCodec

_MANY = 1024  # records of an iterable that are taken from it at once


class OpenSplit:
    """One split under construction: the shard that takes the next record, and how many came before it."""

    __slots__ = ("add", "before", "fits", "spool")

    def __init__(self, before: int, spool: ShardSpool) -> None:
        self.before = before
        self.spool = spool
        # Bound once: a record costs few calls.
        self.fits = spool.blocks.fits
        self.add = spool.blocks.add

    @property
    def rows(self) -> int:
        """Number of records so far."""
        return self.before + self.spool.rows


class DatasetWriter(AtomicWriter):
    """Write records into a new version of a dataset.

    Args:
        url: of the dataset; a local folder or any URL that can be written.
        schema: mapping of feature names to types, a `Schema`, or None: records are bytes then. Appending
            without one takes the dataset's. A codec, as `codecs.Message(cls)`, encodes values of its own.
        compression: of the records; None for none. "zstd" or "gzip" compress block by block; "zlib" makes
            each shard one stream, for programs that read no other: a lookup then decodes its shard from the
            start.
        mode: "create" (no dataset yet), "append", or "overwrite" (the new version holds the new
            records only; older versions stay until `shardio gc`).
        level: the compression library's level; None for its usual one.
        shard_bytes: stored bytes after which a shard is closed.
        shards: cut each split into so many shards instead, whose numbers of records differ by one at most. A
            split of fewer records gets one shard per record. Records keep their order. They wait in
            `spool_dir`, which needs room for all of them, until `close`.
        block_bytes: target size of a block in decoded bytes; the unit of compression and checksum.
        encoding: of the records: "example" (default with a schema), "sequence_example", "tensors", "array",
            "bytes".
        metadata: free metadata, a mapping that JSON can hold.
        splits: names of the splits that may be written; any other is refused. Without it a split appears with
            its first record, unless its name looks like that of another split of the dataset, mistyped
            ("trian" beside "train").
        session: the caller's own id of this write; a rerun under the same id can continue, see `written`,
            and never doubles anything. An id names one write, not a habit.
        task: number of this process among those that write the session.
        commit: False leaves the commit to `shardio.commit(url, session=, tasks=)`.
        spool_dir: folder for shards under construction; by default beside the data where that is local, else
            the system's temporary folder. Needs room for one shard a split, and three on their way.
        storage_options: as in fsspec.
        single_writer: state that no other writer is at work here, for places that cannot create exclusively.

    Raises:
        CommitConflictError: mode "create" and there is a dataset already.
        StorageError: the place cannot be written.
        ValueError: an option that makes no sense, by name.

    Not for use by several threads at once.

    Examples:
        >>> import shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/birds"
        >>> with shardio.DatasetWriter(url, schema={"name": "text", "legs": "int64"}) as out:
        ...     out.write({"name": "wren", "legs": 2})
        >>> shardio.open(url)[0]["name"]
        'wren'
    """

    _version: Version | None = None
    _failure: BaseException | None = None

    @checked_options
    def __init__(  # noqa: PLR0913 - the options are the public contract
        self,
        url: str | Path,
        schema: Mapping[str, Any] | Schema | RecordCodec | None = None,
        compression: str | None = None,
        mode: str = "create",
        *,
        level: int | None = None,
        shard_bytes: int = DEFAULT_SHARD_BYTES,
        shards: int | None = None,
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        encoding: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        splits: Iterable[str] | None = None,
        session: str | None = None,
        task: int = 0,
        commit: bool = True,
        spool_dir: str | Path | None = None,
        storage_options: Mapping[str, Any] | None = None,
        single_writer: bool = False,
    ) -> None:
        check_options(mode, session, task, commit=commit, shard_bytes=shard_bytes)
        check_shards(shards, shard_bytes, session)
        self._declared = split_names(splits)
        kind = Compression.parse(compression)
        self._layout = Layout(compression=kind, level=level, block_bytes=block_bytes, shard_bytes=shard_bytes)
        self.url = url_text(url)
        self.mode = mode
        self.session = session if session is not None else naming.random_session()
        self._catalog = catalog_to_write(self.url, storage_options, single_writer=single_writer)
        base = self._catalog.latest()
        check_mode(self._catalog, base, mode, self.session, storage_options)
        self.schema = resolve_schema(schema, encoding, base if mode == "append" else None)
        self._encode: Callable[[Any], bytes] = encoder(schema if is_codec(schema) else self.schema)  # type: ignore[arg-type] # then it is a codec
        self._as_it_is = bytes if schema is None and self.schema is None else None
        self._commit = commit
        self._splits: dict[str, OpenSplit] = {}
        appended = base.manifest.splits if base is not None and mode == "append" else ()
        self._base_splits = frozenset(total.name for total in appended)
        self._task = Task(
            self._catalog, session=self.session, task=naming.check_task(task), schema=self.schema,
            metadata=dict(metadata or {}), mode=mode, base=Base.of(base),
        )  # fmt: skip
        # Made last, for it makes a folder, and nothing is touched where an option makes no sense.
        self._spool_folder = spool_folder(self._catalog.store, spool_dir)
        self._shards = shards
        if shards is not None:
            # What is not cut yet is neither compressed nor closed by its size.
            # What is gathered is cut into shards later, so no limit of a shard's index holds for it.
            limits = replace(self._layout.limits, index=sys.maxsize)
            self._gather = Layout(block_bytes=block_bytes, shard_bytes=sys.maxsize, limits=limits)
        self._begin()

    def note_items(self, sha256: bytes) -> None:
        """Let the receipts of this task say from which items it is made: a rerun from others is refused.

        Args:
            sha256: what tells them from others, 32 bytes; `shardio.write_dataset` gives it.
        """
        self._task.note_items(sha256)

    @property
    def written(self) -> Counter[str]:
        """How many records of each split are safely stored; a split without any counts 0.

        With a session of your own, read this before the first `write` to take over what earlier runs of the
        task have stored. Then skip that many records of each split and write the rest. A rerun that does not
        read it starts again from its first record, and `shardio gc` removes what the earlier run stored.
        """
        if not self._splits and self._ended is None and not naming.is_random_session(self.session):
            self._task.take_over(find_safe_work(self._catalog, self.session, self._task.number))
        return self._task.written

    @property
    def attempt(self) -> str:
        """Id of this attempt at the task: which one counts is for the process that commits to say."""
        return self._task.attempt

    @property
    def stored_bytes(self) -> int:
        """Stored bytes of the shards that are safely stored."""
        return self._task.stored_bytes

    @property
    def version(self) -> int | None:
        """The version that `close` committed, or None before that and with `commit=False`."""
        return self._version.number if self._version else None

    @property
    def digest(self) -> str | None:
        """What `open(url, digest=...)` pins, of the committed version."""
        return self._version.digest if self._version else None

    def write(self, value: Any, split: str = "train") -> None:
        """Append one record to a split.

        Args:
            value: a mapping by the schema, or bytes where there is none.
            split: its name; splits appear with their first record, see `splits`.

        Raises:
            SchemaError: the value does not fit; names feature and record number. Nothing was taken, and
                writing may continue.
            StorageError: the spool or the store failed, now or earlier.
            ValueError: the split is not declared, or looks mistyped; the writer is closed, or was opened by
                the process that this one was forked from.
        """
        # A record costs few calls; a writer that has ended has no splits, so it need not be asked each time.
        part = self._splits.get(split) if isinstance(split, str) else None
        if part is None:
            part = self._open_split(split)
        try:
            payload = value if type(value) is self._as_it_is else self._encode(value)
            if part.fits(payload):
                return
        except ShardioError as error:
            raise error.located(row=part.rows, url=self.url) from error
        except ValueError as error:
            raise SchemaError(str(error), url=self.url, row=part.rows) from error
        self._add(split, part, payload)

    def write_many(self, values: Iterable[Any], split: str = "train") -> None:
        """Append records one after another, as `write` does each; for many small ones of bytes less work.

        Args:
            values: any iterable, gone through once.
            split: of all of them.

        Raises:
            SchemaError: a value does not fit; names feature and record number. Those before it were taken,
                and writing may continue.
            StorageError: the spool or the store failed, now or earlier.
            ValueError: the split is not declared, or looks mistyped; the writer is closed, or was opened by
                the process that this one was forked from.
            Exception: what the iterable raises; those that it gave before were taken.
        """
        source = iter(values)
        if self._as_it_is is None:
            for value in source:
                self.write(value, split)
            return
        ended = False
        while not ended:
            some: list[Any] = []
            try:
                some.extend(itertools.islice(source, _MANY))
                ended = len(some) < _MANY
            finally:
                # Those before an error of the iterable, too.
                self._write_list(some, split)

    def write_batch(self, columns: Mapping[str, Any], split: str = "train") -> None:
        """Append the rows of columns one after another, as `write` does each.

        Args:
            columns: by feature, all of one length: arrays [n, ...], lists, or `RaggedColumn`s, as
                `read_batch` of a reader returns them. A row that is None in a list lacks the feature. Without
                a schema the one column `"payload"`.
            split: of all rows.

        Raises:
            SchemaError: columns of differing length, of which nothing was taken; or a value does not fit, and
                the rows before it were taken.
            StorageError: the spool or the store failed, now or earlier.
            TypeError: `columns` is not a mapping, or a column neither an array nor a list.
            ValueError: the split is not declared, or looks mistyped; the writer is closed, or was opened by
                the process that this one was forked from.

        Examples:
            >>> import numpy as np, shardio, tempfile
            >>> url = tempfile.mkdtemp() + "/birds"
            >>> with shardio.DatasetWriter(url, schema={"name": "text", "legs": "int64"}) as out:
            ...     out.write_batch({"name": ["wren", "robin"], "legs": np.array([2, 2])})
            >>> len(shardio.open(url))
            2
        """
        if not isinstance(columns, Mapping):
            message = f"write_batch takes a mapping of features to columns, found {type(columns).__name__}"
            raise TypeError(message)
        rows = {name: _rows_of(name, column) for name, column in columns.items()}
        lengths = {name: len(items) for name, items in rows.items()}
        if len(set(lengths.values())) > 1:
            what = "the columns of a batch have differing lengths"
            raise SchemaError(
                what, url=self.url, found=lengths, advice="give every column a value for each row"
            )
        if self._as_it_is is not None:
            if set(rows) != {"payload"}:
                what = "without a schema a batch has the one column 'payload'"
                raise SchemaError(
                    what, url=self.url, found=sorted(rows), advice="open the writer with schema="
                )
            self.write_many(rows["payload"], split)
            return
        names = tuple(rows)
        for row in zip(*rows.values(), strict=True):
            value = {name: item for name, item in zip(names, row, strict=True) if item is not None}
            self.write(value, split)

    def _write_list(self, some: list[Any], split: str) -> None:
        number = 0
        while number < len(some):
            # What opens a split, ends a block or is refused is told by `write`.
            self.write(some[number], split)
            number = self._splits[split].spool.blocks.fits_many(some, number + 1)

    def encode(self, value: Any) -> bytes:
        """Return the payload that `write` would store for a value, and store nothing.

        Raises:
            SchemaError: the value does not fit; names the feature.
        """
        return self._encode(value)

    def write_encoded(self, payload: bytes, split: str = "train") -> None:
        """Append one record that `encode`, or another dataset of the same schema, has made, as it is."""
        part = self._splits.get(split) if isinstance(split, str) else None
        self._add(split, part or self._open_split(split), payload)

    def _add(self, split: str, part: OpenSplit, payload: bytes) -> None:
        try:
            block = part.add(payload)
        except ShardioError as error:
            raise error.located(row=part.rows, url=self.url) from error
        except ValueError as error:
            raise SchemaError(str(error), url=self.url, row=part.rows) from error
        if block is not None:
            self._take_block(split, part, block)

    def close(self) -> None:
        """Store what is left and commit; with `commit=False`, leave the task's receipt.

        Raises:
            CommitConflictError, CommitOutcomeUnknownError, SchemaError, StorageError: nothing of this write
                is visible (of an unknown outcome: nothing else is).
        """
        if self._failure is not None or self._ended is FORKED:
            self._refuse()
        if self._ended is not None:
            return
        committing = False
        try:
            for split, part in self._splits.items():
                if self._shards is None:
                    self._task.store(split, part.spool, last=True)
                else:
                    self._cut(split, part.spool, self._shards)
            receipt = self._task.complete()
            committing = self._commit
            if self._commit:
                self._version = commit_receipts(self._catalog, [receipt], mode=self.mode)
        except BaseException as error:
            # A commit whose outcome is unknown may have happened: its shards must stay.
            self._abandon(error, keep_shards=committing and not isinstance(error, CommitConflictError))
            raise
        self._ended = CLOSED
        self._splits = {}

    def abort(self) -> None:
        """Drop what was written; nothing becomes visible. Safe shards of a named session stay for a rerun."""
        if self._ended is None:
            self._abandon(None, keep_shards=False)

    def __del__(self) -> None:
        if self._ended is None:
            # The collector may run in the I/O thread, which cannot wait for itself; `gc` removes shards then.
            self._abandon(None, keep_shards=on_io_thread())
            message = (
                f"the writer of {self.url} was dropped before it was closed: nothing was committed; "
                "use it in a with block, or call close()"
            )
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    def _let_go(self) -> None:
        self._splits = {}

    def _refuse(self) -> NoReturn:
        if isinstance(self._failure, CommitOutcomeUnknownError):
            raise self._failure
        if self._failure is not None:
            raise StorageError(
                "writing failed earlier and nothing was published",
                url=self.url,
                found=str(self._failure),
                advice="leave the block with that error, and write again",
            ) from self._failure
        super()._refuse()

    def _take_block(self, split: str, part: OpenSplit, block: Block) -> None:
        """Spool a block; store the shard once it is large enough.

        The record that closed the block has been taken, so a failure ends the write: going on would lose it.
        """
        try:
            self._task.check()
            part.spool.store(block)
            if self._shards is None and part.spool.stored_bytes >= self._layout.shard_bytes:
                rows = part.rows
                self._task.store(split, part.spool)
                self._splits[split] = OpenSplit(rows, self._new_spool(split))
        except BaseException as error:
            self._abandon(error, keep_shards=False)
            raise

    def _open_split(self, split: str) -> OpenSplit:
        if self._ended is not None:
            self._refuse()
        naming.check_split(split)
        if split not in self._base_splits or self._declared is not None:
            check_new_split(split, self._declared, self._base_splits.union(self._splits))
        part = OpenSplit(self._task.split(split).rows, self._new_spool(split))
        self._splits[split] = part
        return part

    def _cut(self, split: str, gathered: ShardSpool, shards: int) -> None:
        """Store what was gathered of a split as so many shards."""
        try:
            rows = gathered.finish().index.head.rows
            payloads = gathered.payloads()
            for k in range(shards):
                self._task.check()
                spool = self._new_shard(split)
                try:
                    for payload in itertools.islice(payloads, rows * (k + 1) // shards - rows * k // shards):
                        spool.add(payload)
                except BaseException:
                    spool.discard()
                    raise
                self._task.store(split, spool, last=True)
        finally:
            gathered.discard()

    def _new_spool(self, split: str) -> ShardSpool:
        if self._shards is not None:
            return ShardSpool(self._gather, self._spool_folder)
        return self._new_shard(split)

    def _new_shard(self, split: str) -> ShardSpool:
        crc32c = self._task.split(split).frames_crc32c
        return ShardSpool(self._layout, self._spool_folder, frames_crc32c=crc32c)

    def _abandon(self, failure: BaseException | None, *, keep_shards: bool) -> None:
        self._ended = CLOSED
        self._failure = failure
        for part in self._splits.values():
            part.spool.discard()
        self._splits = {}
        self._task.cancel()
        if not keep_shards:
            self._task.remove_shards()


def _rows_of(name: str, column: Any) -> Sequence[Any]:
    """Return the values of a column, one a row."""
    # NumPy would make NaN of what is missing in other libraries' columns, and drop a mask.
    if hasattr(column, "to_pylist"):  # pyarrow
        rows: Sequence[Any] = column.to_pylist()
        return _with_nan_bits(rows, lambda: column.to_numpy(zero_copy_only=False))
    if isinstance(column, list | tuple) or (hasattr(column, "offsets") and hasattr(column, "values")):
        return cast("Sequence[Any]", column)  # a `RaggedColumn` is a sequence of its rows, too
    if hasattr(column, "is_null") and hasattr(column, "to_list"):  # polars
        return _with_nan_bits(column.to_list(), column.to_numpy)
    if hasattr(column, "isna") and not isinstance(column.dtype, np.dtype):  # types of pandas' own
        pairs = zip(column.tolist(), column.isna(), strict=True)
        return [None if missing else value for value, missing in pairs]
    array = column if isinstance(column, np.ndarray) else np.asarray(column)
    if array.ndim == 0:
        message = f"column {name!r} is a single value, {column!r:.80}; a column has a value for each row"
        raise TypeError(message)
    # Plain numbers are taken faster than NumPy's, and are the same; but a float32 becomes a double, which
    # makes a signalling NaN quiet, and of uint16 the dtype says that they are the bits of bfloat16.
    plain = type(array) is np.ndarray and array.ndim == 1 and array.dtype.kind in "biuf"
    exact = array.dtype.kind != "f" or array.dtype.itemsize == 8 or not np.isnan(array).any()
    return array.tolist() if plain and exact and array.dtype.name != "uint16" else list(array)


def _with_nan_bits(rows: Sequence[Any], array: Callable[[], Any]) -> Sequence[Any]:
    """Return rows with the NaNs of the array they come from: a float32 made a double loses some bits."""
    places = [row for row, value in enumerate(rows) if isinstance(value, float) and math.isnan(value)]
    if not places:
        return rows
    found = list(rows)
    values = np.asarray(array())
    for row in places:
        found[row] = values[row]
    return found
