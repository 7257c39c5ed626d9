"""Records that earlier repairs lost come back from a mirror.

Promises: a record comes back once, and none that was deleted or replaced since; what the mirror has, and
cannot be told from what was deleted, is noted.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardio.catalog import Catalog, Loss, Salvaged, Version
from shardio.errors import FormatError, NotFoundError
from shardio.lifecycle._repair_report import Repaired, Repairs
from shardio.lifecycle._repair_shard import RepairedShard, RepairJob
from shardio.lifecycle._rewrite import remove_objects
from shardio.metadata import ShardEntry, ShardTable, naming
from shardio.reader import ReadOptions, RecordSequence, Slice, deleted_rows
from shardio.storage import Address

_AT_ONCE = 1024  # records


@dataclass(frozen=True)
class Recovery:
    """What brings lost shards back.

    Attributes:
        catalog, place: the dataset.
        mirror: a copy of it.
        job: fetches a shard from the mirror.
        out: takes what is to be reported.
    """

    catalog: Catalog
    place: Address
    mirror: Address
    job: RepairJob
    out: Repairs

    def recover(self, losses: Sequence[Loss], slots: list[list[ShardEntry]]) -> list[RepairedShard]:
        """Put lost shards that the mirror has to their places.

        Args:
            losses: oldest first.
            slots: of each shard of the latest version, what takes its place; then what comes behind all.
        """
        back: list[tuple[Loss, ShardEntry]] = []
        shards = []
        for number, loss in enumerate(losses, len(slots)):
            if any(each.holds(loss.entry.uuid) for each, _ in back):
                continue  # all of it came back with the shard that it was salvaged from
            (shard,) = self.job(self._slice(self.place, loss.version, loss.entry.without_table(), number))
            if shard.unrepaired or shard.new is None:
                continue
            try:
                entry = self._without_spent(loss, shard)
            except (FormatError, NotFoundError) as error:
                self.out.notes.append(
                    f"the mirror has {loss.entry.key}, of which an earlier repair lost {loss.lost_rows} "
                    f"records, but not which rows were deleted since: {error}"
                )
                remove_objects(self.catalog, shard.new_keys)
                continue
            back.append((loss, entry))
            shards.append(shard)
            # Nothing was repaired where an earlier attempt had put its bytes back, and then died.
            url = self.catalog.store.url_of(entry.key)
            restored = shard.repaired or [Repaired(how="recovered", what="shard", url=url)]
            shard.repaired = [replace(each, how="recovered") for each in restored]
            self.out.add(shard)
        # Those lost last stand beside those lost before them.
        for loss, entry in reversed(back):
            self._put(loss, entry, slots)
        return shards

    def _put(self, loss: Loss, entry: ShardEntry, slots: list[list[ShardEntry]]) -> None:
        """Put a shard in the place of what was salvaged of it, else before the next of its split."""
        places = {each.uuid: (i, k) for i, slot in enumerate(slots) for k, each in enumerate(slot)}
        if loss.place is not None:
            i, k = places[loss.place]
            slots[i][k] = entry
            return
        shards = self.catalog.table(loss.version).of_split(loss.entry.split)
        uuids = [uuid.tobytes() for uuid in shards.uuid]
        following = (places[uuid] for uuid in uuids[uuids.index(entry.uuid) + 1 :] if uuid in places)
        i, k = next(following, (len(slots) - 1, len(slots[-1])))
        slots[i].insert(k, entry)

    def _without_spent(self, loss: Loss, shard: RepairedShard) -> ShardEntry:
        """Return a shard that comes back, without rows that were deleted since or are in other shards.

        Raises:
            FormatError, NotFoundError: a shard that was salvaged from it cannot be read.
        """
        assert shard.new is not None  # noqa: S101 - for mypy: the mirror has it
        store, limits, entry = self.catalog.store, self.catalog.limits, replace(shard.new, split=loss.split)
        if loss.recovered_rows == entry.live_rows:
            return entry
        stored = loss.entry if self.job.dry_run else entry
        deleted = deleted_rows(store, loss.entry, limits)
        for stage in loss.salvaged:
            if stage.spent_rows:
                rows = self._find_rows(loss.version, stored, deleted, stage)
                gone = slice(None) if stage.merged else deleted_rows(store, stage.entry, limits)
                deleted = np.union1d(deleted, rows[gone])
        data = deleted.astype("<u4").tobytes()
        key = naming.rows_key(naming.random_id() + naming.random_id())
        if not self.job.dry_run:
            store.put_idempotent((key, data))
            shard.new_keys.append(key)
        digest = hashlib.sha256(data).digest()
        return replace(entry, deleted_rows=len(deleted), deletion_key=key, deletion_sha256=digest)

    def _find_rows(
        self, version: Version, entry: ShardEntry, deleted: NDArray[np.int64], salvaged: Salvaged
    ) -> NDArray[np.int64]:
        """Return which rows of a shard were salvaged, in order; none of those that were deleted.

        Among equal records any will do: nothing tells them apart.
        """
        gone = {*deleted.tolist()}
        rows = ((row, each) for row, each in enumerate(self._payloads(version, entry)) if row not in gone)
        found = []
        for payload in self._payloads(salvaged.version, salvaged.entry):
            row = next((row for row, each in rows if each == payload), None)
            if row is None:
                raise FormatError("a salvaged record is not in the mirror's shard", shard=salvaged.entry.key)
            found.append(row)
        return np.array(found, np.int64)

    def _payloads(self, version: Version, entry: ShardEntry) -> Iterator[bytes]:
        """Yield the payloads of all rows of a shard, deleted ones too; where it is damaged, the mirror's."""

        def read(place: Address) -> Iterator[bytes]:
            part = self._slice(place, version, entry.without_deletions())
            return itertools.chain.from_iterable(RecordSequence(part.open()).iter_batches(_AT_ONCE))

        count = 0
        try:
            for payload in read(self.place):
                yield payload
                count += 1
        except (FormatError, NotFoundError):
            yield from itertools.islice(read(self.mirror), count, None)

    def _slice(self, place: Address, version: Version, entry: ShardEntry, number: int = 0) -> Slice:
        options = ReadOptions.at(place, decode=False, mmap=False)
        shards = ShardTable.from_entries([entry])
        return Slice.of_version(place.url, version, shards, options, number=number)
