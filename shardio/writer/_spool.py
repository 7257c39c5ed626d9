"""A shard under construction: blocks in a local spool file, its index in memory (4 bytes a record).

An object store must never see half a shard, and fsspec publishes half-written files when an exception leaves
their `with` block; so shards are built here and handed to the store whole.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import uuid
import weakref
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

from shardio import kernels
from shardio.catalog import writer_name
from shardio.errors import StorageError
from shardio.format import (
    DEFAULT_BLOCK_BYTES,
    DEFAULT_LIMITS,
    Block,
    BlockBuilder,
    Buffer,
    Compression,
    Limits,
)
from shardio.metadata import FinishedIndex, IndexBuilder
from shardio.storage import Store, make_folders, new_temporary, remove_temporary
from shardio_indexer import iterate_payloads

_PIECE = 1 << 20
_WRITTEN = 256 << 10  # bytes that are written by one call


CLOSED = "the writer is closed, and nothing can be added; open another one"
FORKED = "a writer is used and closed by the process that opened it, not by a forked child"


class AtomicWriter(ABC):
    """What a `with` block closes where it ends, and aborts where it fails.

    Attributes:
        url: of what is written.
    """

    url: str
    # Why nothing is taken any more. Until everything is set, a failure leaves nothing to abort.
    _ended: str | None = CLOSED

    def _begin(self) -> None:
        self._ended = None
        _open_writers.add(self)

    def _refuse(self) -> NoReturn:
        """Say why a writer that has ended takes nothing more."""
        raise ValueError(f"{self.url}: {self._ended}")

    @abstractmethod
    def close(self) -> None:
        """Make all of it visible."""

    @abstractmethod
    def abort(self) -> None:
        """Drop all of it."""

    def _let_go(self) -> None:  # noqa: B027 - most have nothing that is the parent's
        """Forget what is written, in a forked child: it is the parent's."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


# Those of this process.  A child that is forked while they are open has copies of them that it must not use.
_open_writers: weakref.WeakSet[AtomicWriter] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for writer in list(_open_writers):
        if writer._ended is None:  # noqa: SLF001 - its own
            writer._ended = FORKED  # noqa: SLF001 - its own
            writer._let_go()  # noqa: SLF001 - its own
    _open_writers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How records are stored in shards; a value that pickles, for whatever writes shards.

    Attributes:
        compression: of their blocks.
        level: the library's level, or None for its usual one.
        block_bytes: target size of a block, decoded.
        shard_bytes: a shard is closed once it has this many stored bytes.
        limits: size of a record.

    Raises:
        ValueError: options that make no sense.
    """

    compression: Compression = Compression.NONE
    level: int | None = None
    block_bytes: int = DEFAULT_BLOCK_BYTES
    shard_bytes: int = 256 << 20
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        self.builder()

    def builder(self) -> BlockBuilder:
        """Return a builder of such blocks."""
        return BlockBuilder(
            compression=self.compression,
            level=self.level,
            block_bytes=self.block_bytes,
            limits=self.limits,
        )


@dataclass(frozen=True)
class FinishedShard:
    """A shard ready to be stored: its spool file and its index."""

    path: Path
    index: FinishedIndex


def spool_folder(store: Store, wanted: str | Path | None) -> Path:
    """Return where spool files go: beside the data of a local dataset, where a finished shard need not be
    copied to get its name; else the system's temporary folder, or the one the caller wants.
    """  # noqa: D205 - one thought
    beside = wanted is None and store.is_local
    folder = Path(store.url) / "data" if beside else Path(wanted or tempfile.gettempdir())
    try:
        if beside:
            make_folders(str(folder), root=store.url)
        else:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            "the spool folder cannot be made", url=str(folder), found=error.strerror
        ) from error
    return folder


class ShardSpool:
    """Take payloads, write blocks to a file in a folder; `finish` or `discard` ends it.

    Attributes:
        blocks: the builder that payloads go to; what feeds it hands closed blocks to `store`.
        frames_crc32c: CRC-32C over all decoded bytes so far, from the one given on.
    """

    _pid = -1  # of the process whose file it is, while there is one

    def __init__(self, layout: Layout, folder: Path, *, frames_crc32c: int = 0) -> None:
        self.frames_crc32c = frames_crc32c
        level = 6 if layout.level is None else layout.level
        self._stream = zlib.compressobj(level) if layout.compression is Compression.ZLIB else None
        self._stream_bytes = self._stream_crc32c = 0
        self.blocks = layout.builder()
        self._index = IndexBuilder(
            uuid=uuid.uuid4().bytes,
            compression=layout.compression,
            writer=writer_name(),
            limits=layout.limits,
        )
        self._path = Path(new_temporary(folder))
        self._pid = os.getpid()
        # Blocks that are not in the file yet, and their bytes.
        self._waiting: list[Buffer] = []
        self._waiting_bytes = 0
        try:
            # A forked child drops its copy: what a buffer held would be written a second time.
            self._file = self._path.open("xb", buffering=0)
        except OSError as error:
            raise self._failed(error) from error

    @property
    def stored_bytes(self) -> int:
        """Stored bytes so far, without the block that is being built."""
        return self._index.stored_bytes if self._stream is None else self._stream_bytes

    @property
    def rows(self) -> int:
        """Number of records so far, with those of the block that is being built."""
        return self._index.rows + self.blocks.rows

    def add(self, payload: bytes) -> None:
        """Take one payload."""
        block = self.blocks.add(payload)
        if block is not None:
            self.store(block)

    def payloads(self) -> Iterator[bytes]:
        """Yield the payloads of a finished spool without compression; their checksums are compared.

        Raises:
            StorageError: the file cannot be read.
            FormatError: the disk returned something else than was written.
        """
        try:
            with self._path.open("rb") as file:
                pieces = iter(lambda: file.read(_PIECE), b"")
                yield from itertools.chain.from_iterable(iterate_payloads(pieces))
        except OSError as error:
            raise self._failed(error) from error

    def finish(self) -> FinishedShard:
        """Close the last block and return the shard; its spool file is the caller's from now on."""
        block = self.blocks.flush()
        if block is not None:
            self.store(block)
        index = self._index
        if self._stream is not None:
            self._write_stream(self._stream.flush())
            index.mark_stream(stored_bytes=self._stream_bytes, crc32c=self._stream_crc32c)
        self._write_waiting()
        if os.name == "nt":  # an open file cannot be moved there
            self._file.close()
        # Else it stays open until `discard`: with its last use a system may forget that writing it failed.
        return FinishedShard(self._path, index.finish())

    def discard(self) -> None:
        """Remove the spool file."""
        # Whatever fails here comes after what ended the write; a file that stays is listed by `shardio gc`.
        with contextlib.suppress(OSError, AttributeError):  # an interrupt may come before it is known
            self._file.close()
        remove_temporary(str(self._path))
        self._pid = -1

    def __del__(self) -> None:
        # An interrupt came before anyone had it to discard. In a forked child the file is the parent's.
        if self._pid == os.getpid():
            self.discard()

    def store(self, block: Block) -> None:
        """Take a block that `blocks` has closed."""
        if self._stream is None:
            self._write(block.stored)
        else:
            self._write_stream(self._stream.compress(block.stored))
        index = self._index
        join = kernels.crc32c_joined
        index.crc32c = join(index.crc32c, block.crc32c, len(block.stored))
        self.frames_crc32c = join(self.frames_crc32c, block.decoded_crc32c, block.decoded_bytes)
        index.add_block(
            stored_bytes=len(block.stored),
            decoded_bytes=block.decoded_bytes,
            crc32c=block.crc32c,
            frame_stop=block.frame_stop,
        )

    def _write_stream(self, stored: bytes) -> None:
        self._write(stored)
        self._stream_bytes += len(stored)
        self._stream_crc32c = kernels.crc32c(stored, self._stream_crc32c)

    def _write(self, stored: Buffer) -> None:
        # Many blocks at a time: the page cache keeps them in larger pieces, cheaper to write and to map.
        self._waiting.append(stored)
        self._waiting_bytes += len(stored)
        if self._waiting_bytes >= _WRITTEN:
            self._write_waiting()

    def _write_waiting(self) -> None:
        rest = memoryview(b"".join(self._waiting))
        self._waiting, self._waiting_bytes = [], 0
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> StorageError:
        return StorageError(
            "a spool file cannot be written",
            url=str(self._path.parent),
            found=error.strerror or str(error),
            advice="nothing was published; make room or name another folder with spool_dir=",
        )
