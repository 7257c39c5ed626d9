"""Records that earlier repairs lost come back from a mirror.

Promises: a record comes back once, and none that was deleted or replaced since; what the mirror has, and
cannot be told from what was deleted, is noted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from shardio.catalog import Catalog, Loss, Version, find_losses
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
    """Restores lost shards to their places.

    Attributes:
        catalog, place: the dataset.
        mirror: a copy of it.
        job: fetches a shard from the mirror.
        out: takes what is to be reported.
        slots: of each shard of the latest version, what takes its place; then what follows all of them.
    """

    catalog: Catalog
    place: Address
    mirror: Address
    job: RepairJob
    out: Repairs
    slots: list[list[ShardEntry]]

    def recover(self, versions: Mapping[int, Version]) -> None:
        """Restore the records that were lost up to the latest of these versions.

        Oldest first: the first shard holds the records of all that were salvaged from it.
        """
        try:
            losses = find_losses(self.catalog, versions)
        except (FormatError, NotFoundError) as error:  # a list that stays damaged, or does in a dry run
            self.out.notes.append(f"what earlier repairs lost is looked up once all lists are there: {error}")
            return
        recovered: dict[bytes, tuple[Loss, ShardEntry]] = {}
        covered: set[bytes] = set()
        for number, loss in enumerate(losses, len(self.slots)):
            if loss.entry.uuid in covered:
                continue
            (shard,) = self.job(self._slice(self.place, loss.version, loss.entry.without_table(), number))
            entry = None if shard.unrepaired or shard.new is None else self._without_spent(loss, shard)
            if entry is None:
                remove_objects(self.catalog, shard.new_keys)
                self.out.repaired += shard.repaired  # earlier versions have these objects again
                continue
            # Nothing was repaired where an earlier attempt had stored the bytes, and was killed then.
            url = self.catalog.store.url_of(entry.key)
            restored = shard.repaired or [Repaired(how="recovered", what="shard", url=url)]
            shard.repaired = [replace(each, how="recovered") for each in restored]
            self.out.add(shard)
            recovered[entry.uuid] = loss, entry
            covered.update(loss.uuids)
        # The place of a shard is before the one that followed it when it was lost, which may have been lost
        # before it.
        for loss in reversed(losses):
            if loss.entry.uuid in recovered:
                self._insert(*recovered[loss.entry.uuid], losses)

    def _insert(self, loss: Loss, entry: ShardEntry, losses: Sequence[Loss]) -> None:
        """Put a shard in the place of the one salvaged from it, or before the next shard of its split."""
        slots = self.slots
        places = {each.uuid: (i, k) for i, slot in enumerate(slots) for k, each in enumerate(slot)}
        for other in losses:
            at = [places[uuid] for uuid in other.uuids if uuid in places]
            places |= dict.fromkeys(other.uuids, at[0]) if at else {}
        if loss.uuids[-1] in places:
            i, k = places[loss.uuids[-1]]
            slots[i][k] = entry
            return
        uuids = [each.tobytes() for each in self.catalog.table(loss.version).of_split(loss.entry.split).uuid]
        following = (places[uuid] for uuid in uuids[uuids.index(entry.uuid) + 1 :] if uuid in places)
        i, k = next(following, (len(slots) - 1, len(slots[-1])))
        slots[i].insert(k, entry)

    def _without_spent(self, loss: Loss, shard: RepairedShard) -> ShardEntry | None:
        """Return a shard that comes back, without rows that were deleted since or are in other shards."""
        assert shard.new is not None  # noqa: S101 - for mypy: the mirror has it
        entry = replace(shard.new, split=loss.split)
        try:
            deleted = self._deleted_rows(loss.entry)
            spent = self._spent_rows(loss, loss.entry if self.job.dry_run else entry, deleted)
        except (FormatError, NotFoundError) as error:
            self.out.notes.append(
                f"the mirror has {loss.entry.key}, of which earlier repairs lost {sum(loss.lost_rows)} "
                f"records, but not which rows were deleted since: {error}"
            )
            return None
        if len(spent) == len(deleted):
            return entry
        content = spent.astype("<u4").tobytes()
        key = naming.rows_key(naming.random_id() + naming.random_id())
        if not self.job.dry_run:
            self.catalog.store.put_idempotent((key, content))
            shard.new_keys.append(key)
        digest = hashlib.sha256(content).digest()
        return replace(entry, deleted_rows=len(spent), deletion_key=key, deletion_sha256=digest)

    def _spent_rows(self, loss: Loss, entry: ShardEntry, deleted: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of a shard that were deleted, there or after a salvage, or are in other shards.

        Raises:
            FormatError, NotFoundError: a shard that was salvaged from it cannot be read.
        """
        listed = {each.uuid: each for each in chain.from_iterable(self.slots)}
        spent = deleted
        for version, salvaged in loss.shards[1:]:
            here = listed.get(salvaged.uuid)
            if here is None and salvaged.uuid == loss.uuids[-1] and not loss.dropped:
                rows = np.arange(salvaged.rows)  # it was rewritten since
            else:
                rows = self._deleted_rows(here or salvaged)
            if len(rows):
                spent = np.union1d(spent, self._find_rows(loss, entry, spent, version, salvaged)[rows])
        return spent

    def _deleted_rows(self, entry: ShardEntry) -> NDArray[np.int64]:
        """Return the deleted rows of a shard, by the mirror's object where its own is damaged or gone."""
        try:
            return deleted_rows(self.catalog.store, entry, self.catalog.limits)
        except (FormatError, NotFoundError):
            with suppress(FormatError, NotFoundError):
                return deleted_rows(self.mirror.connect(), entry, self.catalog.limits)
            raise

    def _find_rows(
        self, loss: Loss, entry: ShardEntry, spent: NDArray[np.int64], version: Version, salvaged: ShardEntry
    ) -> NDArray[np.int64]:
        """Return which rows of a shard were salvaged, in order; none of those that are spent.

        Among equal records any will do: nothing tells them apart.
        """
        gone = {*spent.tolist()}
        rows = (item for item in enumerate(self._payloads(loss.version, entry)) if item[0] not in gone)
        found = []
        for payload in self._payloads(version, salvaged):
            row = next((row for row, each in rows if each == payload), None)
            if row is None:
                raise FormatError("a salvaged record is not in the mirror's shard", shard=salvaged.key)
            found.append(row)
        return np.array(found, np.int64)

    def _payloads(self, version: Version, entry: ShardEntry) -> Iterator[bytes]:
        """Yield the payloads of all rows of a shard, deleted ones too; where it is damaged, the mirror's."""

        def read(place: Address) -> Iterator[bytes]:
            part = self._slice(place, version, entry.without_deletions())
            return chain.from_iterable(RecordSequence(part.open()).iter_batches(_AT_ONCE))

        count = 0
        try:
            for payload in read(self.place):
                yield payload
                count += 1
        except (FormatError, NotFoundError):
            yield from islice(read(self.mirror), count, None)

    def _slice(self, place: Address, version: Version, entry: ShardEntry, number: int = 0) -> Slice:
        options = ReadOptions.at(place, decode=False, mmap=False)
        shards = ShardTable.from_entries([entry])
        return Slice.of_version(place.url, version, shards, options, number=number)
