"""One shard with its index, as two files or objects side by side; no dataset around them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardio.arguments import checked_options
from shardio.errors import CommitConflictError, ShardioError, StorageError
from shardio.format import DEFAULT_BLOCK_BYTES, Compression
from shardio.metadata import naming
from shardio.storage import UnknownOutcomeError, connect_folder, url_text
from shardio.writer._spool import (
    CLOSED,
    FORKED,
    AtomicWriter,
    FinishedShard,
    Layout,
    ShardSpool,
    spool_folder,
)


class ShardWriter(AtomicWriter):
    """Write one TFRecord shard and its index; both appear when the block is left normally, or neither.

    Args:
        url: of the shard; a local path or any URL that can be written. The index gets `.shardidx` behind it.
        compression: None, "zstd", "gzip", or "zlib" (one stream: a lookup decodes it from the start).
        level: the library's compression level.
        block_bytes: target size of a block in decoded bytes.
        spool_dir: folder for the file under construction.
        storage_options: as in fsspec.

    Raises:
        CommitConflictError: there is an object of that name already (at the end of the block).
        StorageError: the place cannot be written.

    Examples:
        >>> import shardio, tempfile
        >>> path = tempfile.mkdtemp() + "/birds.tfrecord"
        >>> with shardio.ShardWriter(path) as out:
        ...     out.write(b"wren")
        >>> shardio.open_shard(path)[0]
        b'wren'
    """

    @checked_options
    def __init__(
        self,
        url: str | Path,
        *,
        compression: str | None = None,
        level: int | None = None,
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        spool_dir: str | Path | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.url = url_text(url)
        self._store, self._name = connect_folder(self.url, storage_options=storage_options)
        spool = spool_dir if spool_dir is not None or not self._store.is_local else self._store.url
        self._spool = ShardSpool(
            Layout(compression=Compression.parse(compression), level=level, block_bytes=block_bytes),
            spool_folder(self._store, spool),
        )
        self._begin()

    def write(self, payload: bytes) -> None:
        """Append one record.

        Raises:
            ValueError: the shard is closed, or was opened by the process that this one was forked from.
            StorageError: the spool failed.
        """
        if self._ended is not None:
            self._refuse()
        self._spool.add(payload)

    def close(self) -> None:
        """Store the shard, then its index."""
        if self._ended is FORKED:
            self._refuse()
        if self._ended is None:
            self._ended = CLOSED
            try:
                self._store_both(self._spool.finish())
            finally:
                self._spool.discard()

    def abort(self) -> None:
        """Drop everything; nothing appears."""
        if self._ended is None:
            self._ended = CLOSED
            self._spool.discard()

    def __del__(self) -> None:
        if self._ended is None:
            self.abort()
            message = f"the writer of {self.url} was dropped before it was closed: nothing was stored"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    def _let_go(self) -> None:
        del self._spool

    def _store_both(self, shard: FinishedShard) -> None:
        # The index goes first: a shard that is seen has its index, and an index alone does no harm.
        index_key = naming.usual_index_key(self._name)
        self._put(index_key, shard.index.data)
        try:
            self._put(self._name, shard.path)
        except UnknownOutcomeError:
            raise  # the shard may be there, or come yet: it needs its index
        except BaseException as error:
            # What this call created is its own; left there, it would stand in the way of the next try. An
            # interrupt may come when the shard is there, or on its way to a bucket: then it needs its index.
            with contextlib.suppress(StorageError):
                if isinstance(error, ShardioError) or (
                    self._store.is_local and self._store.head(self._name) is None
                ):
                    self._store.delete(index_key)
            raise

    def _put(self, key: str, data: bytes | Path) -> None:
        if not self._store.put_if_absent(key, data, move=not isinstance(data, bytes)):
            raise CommitConflictError(
                "there is an object of that name already",
                url=self._store.url_of(key),
                advice="shards are never overwritten: choose a new name, or remove both objects first",
            )
