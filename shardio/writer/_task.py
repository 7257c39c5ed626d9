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
from typing import Any

from shardio.catalog import Base, Catalog, SafeWork
from shardio.errors import CommitConflictError, FormatError, StorageError
from shardio.metadata import Receipt, Schema, ShardEntry, ShardTable, SplitReceipt, encode_metadata, naming
from shardio.storage import Uploads
from shardio.writer._spool import FinishedShard, ShardSpool


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
            attempt=naming.random_id(),
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
        # Begun are all shards handed over; safe are those that are stored, and all before them too.
        self._begun: list[ShardEntry] = []
        self._safe: list[ShardEntry] = []
        self._splits: dict[str, SplitReceipt] = {}
        self._safe_splits: dict[str, SplitReceipt] = {}
        self._taken_over = ShardTable.from_entries([])
        self._previous = ""
        self._named = not naming.is_random_session(session)

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
        return Counter({name: part.rows for name, part in self._safe_splits.items()})

    @property
    def stored_bytes(self) -> int:
        """Bytes of all shards that are safely stored."""
        return int(self._taken_over.stored_bytes.sum()) + sum(entry.stored_bytes for entry in self._safe)

    def note_items(self, sha256: bytes) -> None:
        """Let its receipts say from which items the task is made."""
        self._template = replace(self._template, items_sha256=sha256)

    def rows(self, split: str) -> int:
        """Records of a split in the shards so far, those on their way too."""
        part = self._splits.get(split)
        return part.rows if part else 0

    def frames_crc32c(self, split: str) -> int:
        """CRC-32C over the decoded bytes of a split's shards so far, those on their way too."""
        part = self._splits.get(split)
        return part.frames_crc32c if part else 0

    def take_over(self, work: SafeWork | None) -> None:
        """Go on from what earlier attempts have stored."""
        if work is None:
            return
        self._taken_over = work.table
        self._splits = dict(work.receipt.splits)
        self._safe_splits = self._splits.copy()
        # A complete attempt leaves no chain of its own behind its last shard.
        self._previous = "" if work.receipt.complete else work.attempt

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
        sequence = len(self._taken_over) + len(self._begun)
        template = self._template
        name = naming.DataKey(split, template.session, template.task, template.attempt, sequence)
        head = shard.index.head
        entry = ShardEntry.of_index(head, split=split, key=name.key(head.compression.suffix))
        rows = self.rows(split) + head.rows
        splits = {**self._splits, split: SplitReceipt(rows, spool.frames_crc32c)}

        def put() -> None:
            try:
                self._put((entry.key, shard.path), (naming.usual_index_key(entry.key), shard.index.data))
            finally:
                spool.discard()

        self._begun.append(entry)
        self._uploads.begin(put, lambda: self._acknowledge(entry, sequence, splits, last=last))
        self._splits = splits

    def check(self) -> None:
        """Raise what storing a shard has failed with, if it has."""
        self._uploads.check()

    def _acknowledge(
        self, entry: ShardEntry, sequence: int, splits: dict[str, SplitReceipt], *, last: bool
    ) -> None:
        self._safe.append(entry)
        if last:
            return
        template = self._template
        if self._named and (sequence == len(self._safe) - 1 or self._previous):
            receipt = replace(
                template,
                table=ShardTable.from_entries([entry]),
                splits=splits,
                sequence=sequence,
                previous=self._previous,
            )
            self._put(self._sealed(receipt, sequence))
            self._previous = template.attempt
        self._safe_splits = splits

    def complete(self) -> Receipt:
        """Return the receipt of the whole task; stored too, where another process may commit or rerun it."""
        # Of all that were begun: by the time that this gets its name, they are safe.
        table = ShardTable.concatenate([self._taken_over, ShardTable.from_entries(self._begun)])
        receipt = replace(self._template, complete=True, table=table, splits=dict(self._splits))
        self._uploads.finish()
        if self._named:
            self._put(self._sealed(receipt))
        self._safe_splits = self._splits
        return receipt

    def _sealed(self, receipt: Receipt, sequence: int | None = None) -> tuple[str, bytes]:
        """Return name and content of a receipt."""
        key = naming.ReceiptKey(receipt.session, receipt.task, receipt.attempt, sequence).key()
        try:
            return key, receipt.seal(limits=self._limits)
        except FormatError as error:
            raise error.located(url=self._store.url_of(key)) from error

    def cancel(self) -> None:
        """Wait until nothing is on its way any more; what is safe stays so."""
        self._uploads.cancel()

    def remove_shards(self) -> None:
        """Remove the shards of an attempt that cannot be continued; what stays is left to `shardio gc`."""
        for entry in self._begun:
            for key in (entry.key, entry.usual_index_key):
                with contextlib.suppress(StorageError):
                    self._store.delete(key)
        self._safe, self._safe_splits = [], {}

    def _put(self, *objects: tuple[str, bytes | Path]) -> None:
        """Create objects under names of this attempt's own."""
        if not self._store.put_idempotent(*objects):
            raise CommitConflictError(
                "an object of this attempt exists already",
                url=self._store.url_of(objects[0][0]),
                advice="another process writes under the same attempt, which chance forbids; write again",
            )
