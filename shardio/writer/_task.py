"""One task of a session: stores shards, keeps count, leaves receipts.

Under a caller's own session id each stored shard is followed by a receipt, so that a rerun finds it; receipts
are created in the order of the shards, so a receipt acknowledges all before it.  Shards are stored in the
background, several at once, and may end in any order; receipts do not.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from shardio.catalog import Base, Catalog, SafeWork
from shardio.errors import CommitConflictError, FormatError, StorageError
from shardio.metadata import Receipt, Schema, ShardEntry, ShardTable, SplitReceipt, encode_metadata, naming
from shardio.storage import UnknownOutcomeError, Uploads
from shardio.writer._spool import FinishedShard, ShardSpool


class _Shard(NamedTuple):
    """A shard that was handed over, and rows and checksum of each split up to its end."""

    entry: ShardEntry
    splits: dict[str, SplitReceipt]


class Task:
    """The shards that one attempt of one task has stored.

    Args:
        catalog: of the dataset.
        session, task: whose shards they are.
        schema, metadata, mode, base: what its receipts say beside them; see `Receipt`.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        session: str,
        task: int,
        schema: Schema | None,
        metadata: Mapping[str, Any],
        mode: str,
        base: Base,
    ) -> None:
        encode_metadata(metadata)
        self._store = catalog.store
        self._limits = catalog.limits
        self._template = Receipt(
            session=session,
            task=task,
            attempt=naming.random_attempt(),
            complete=False,
            table=ShardTable.from_entries([]),
            splits={},
            schema=schema,
            metadata=metadata,
            mode=mode,
            base_version=base.number,
            base_sha256=base.sha256,
        )
        self._uploads = Uploads()
        # In order. Those before `_safe_until` are stored, with receipts where a rerun could find them; those
        # before `_named_until` are named by receipts that are there, or may be.
        self._shards: list[_Shard] = []
        self._safe_until = self._named_until = 0
        self._stored: set[str] = set()  # keys of shards and indexes that this task created
        self._is_named = not naming.is_random_session(session)
        # A complete attempt that was taken over leaves no chain of receipts to continue.
        self._chained = self._is_named

    @property
    def number(self) -> int:
        """The task's number."""
        return self._template.task

    @property
    def attempt(self) -> str:
        """Id of this attempt."""
        return self._template.attempt

    @property
    def written(self) -> Counter[str]:
        """Records of each split that are safely stored."""
        return Counter({name: part.rows for name, part in self._splits_until(self._safe_until).items()})

    @property
    def stored_bytes(self) -> int:
        """Bytes of all shards that are safely stored."""
        return sum(shard.entry.stored_bytes for shard in self._shards[: self._safe_until])

    def note_items(self, sha256: bytes) -> None:
        """Let its receipts say from which items the task is made."""
        self._template = replace(self._template, items_sha256=sha256)

    def split(self, name: str) -> SplitReceipt:
        """Return rows and CRC-32C of a split in the shards so far, those on their way too."""
        return self._splits_until(len(self._shards)).get(name, SplitReceipt(0, 0))

    def _splits_until(self, stop: int) -> dict[str, SplitReceipt]:
        """Return rows and CRC-32C of each split in the shards before a number."""
        return self._shards[stop - 1].splits if stop else {}

    def take_over(self, work: SafeWork | None) -> None:
        """Continue from what earlier attempts have stored."""
        if work is not None and len(work.table):
            splits = dict(work.receipt.splits)
            self._shards = [_Shard(entry, splits) for entry in work.table]
            self._safe_until = self._named_until = len(self._shards)
            self._chained &= not work.receipt.complete

    def store(self, split: str, spool: ShardSpool, *, last: bool = False) -> None:
        """Finish a shard and begin to store it, its index, and a receipt where a rerun could find it.

        The spool file is removed when it is no longer needed, also if this raises.

        Args:
            split: name of its split.
            spool: the shard.
            last: `complete` follows, so the receipt of the whole task will acknowledge this shard too.

        Raises:
            StorageError: this shard could not be finished, or an earlier one not be stored.
        """
        try:
            shard = spool.finish()
            if shard.index.head.rows:
                self._begin(split, shard, spool, last=last)
                return
        except BaseException:
            spool.discard()
            raise
        spool.discard()

    def _begin(self, split: str, shard: FinishedShard, spool: ShardSpool, *, last: bool) -> None:
        number, head = len(self._shards), shard.index.head
        template = self._template
        session = naming.session_id(template.session)
        name = naming.DataKey(split, session, template.task, template.attempt, number)
        entry = ShardEntry.of_index(head, split=split, key=name.key(head.compression.suffix))
        total = SplitReceipt(self.split(split).rows + head.rows, spool.frames_crc32c)

        def put() -> None:
            try:
                objects = (entry.key, shard.path), (entry.usual_index_key, shard.index.data)
                # On a disk files are flushed together; elsewhere each is known by itself.
                for group in [objects] if self._store.is_local else [[each] for each in objects]:
                    self._put(*group)
                    self._stored.update(key for key, _ in group)
            finally:
                spool.discard()

        self._shards.append(_Shard(entry, {**self._splits_until(number), split: total}))
        self._uploads.begin(put, lambda: None if last else self._acknowledge(number))

    def check(self) -> None:
        """Raise what storing a shard has failed with, if it has."""
        self._uploads.check()

    def _acknowledge(self, number: int) -> None:
        """Count a shard as safe, for all before it are; where a rerun could find it, by a receipt."""
        entry, splits = self._shards[number]
        if self._chained:
            before = naming.DataKey.parse(self._shards[number - 1].entry.key) if number else None
            receipt = replace(
                self._template,
                table=ShardTable.from_entries([entry]),
                splits=splits,
                sequence=number,
                previous=before.attempt if before is not None else "",
            )
            self._put_receipt(receipt, number + 1, number)
        self._safe_until = number + 1

    def complete(self) -> Receipt:
        """Return the receipt of the whole task; stored too, where another process may commit or rerun it."""
        # Of all that were begun: by the time that this gets its name, they are safe.
        table = ShardTable.from_entries(shard.entry for shard in self._shards)
        splits = self._splits_until(len(self._shards))
        receipt = replace(self._template, complete=True, table=table, splits=splits)
        self._uploads.finish()
        if self._is_named:
            self._put_receipt(receipt, len(self._shards))
        self._safe_until = len(self._shards)
        return receipt

    def _put_receipt(self, receipt: Receipt, stop: int, sequence: int | None = None) -> None:
        """Store a receipt that names the shards before a number."""
        key = naming.ReceiptKey(receipt.session, receipt.task, receipt.attempt, sequence).key()
        try:
            data = receipt.seal(limits=self._limits)
        except FormatError as error:
            raise error.located(url=self._store.url_of(key)) from error
        named, self._named_until = self._named_until, stop
        try:
            self._put((key, data))
        except BaseException as error:
            # On a local disk no request is in flight: without the receipt no rerun finds these shards.
            known = self._store.is_local and not isinstance(error.__cause__ or error, UnknownOutcomeError)
            with contextlib.suppress(StorageError):
                if known and self._store.head(key) is None:
                    self._named_until = named
            raise

    def cancel(self) -> None:
        """Wait until nothing is on its way any more; what is safe stays so."""
        self._uploads.cancel()

    def remove_shards(self) -> None:
        """Remove what this task stored and no rerun can find; what stays is left to `shardio gc`."""
        for entry, _ in self._shards[self._named_until :]:
            # Not what another writer stored under a name that both drew.
            for key in self._stored.intersection((entry.key, entry.usual_index_key)):
                with contextlib.suppress(StorageError):
                    self._store.delete(key)
        if not self._is_named:
            self._shards, self._safe_until = [], 0

    def _put(self, *objects: tuple[str, bytes | Path]) -> None:
        """Create objects under names of this attempt's own."""
        if not self._store.put_idempotent(*objects):
            raise CommitConflictError(
                "an object of this attempt exists already",
                url=self._store.url_of(objects[0][0]),
                advice="another process writes under the same attempt, which chance forbids; write again",
            )
