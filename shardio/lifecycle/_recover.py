"""Records that earlier repairs lost come back from a mirror.

Promises: a record comes back once, and none that was deleted or replaced since; what the mirror has, and
cannot be told from what was deleted, is noted.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from shardio.catalog import Catalog, Loss, Version
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
    _deleted: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    def recover(self, losses: Sequence[Loss], slots: list[list[ShardEntry]]) -> None:
        """Put lost shards that the mirror has to their places.

        Args:
            losses: oldest first.
            slots: of each shard of the latest version, what takes its place; then what comes behind all.
        """
        # The last one first: it may have salvaged records from the result of an earlier one.
        for number, loss in enumerate(reversed(losses), len(slots)):
            (shard,) = self.job(self._slice(self.place, loss.version, loss.entry.without_table(), number))
            if shard.unrepaired or shard.new is None:
                continue
            places = {each.uuid: (i, k) for i, slot in enumerate(slots) for k, each in enumerate(slot)}
            i, k = places.get(loss.salvaged.uuid, (-1, -1)) if loss.salvaged else (-1, -1)
            salvaged = slots[i][k] if i >= 0 else None
            try:
                entry = self._without_spent(loss, salvaged, shard)
            except (FormatError, NotFoundError) as error:
                self.out.notes.append(
                    f"the mirror has {loss.entry.key}, of which an earlier repair lost {loss.lost_rows} "
                    f"records, but not which rows were deleted since: {error}"
                )
                remove_objects(self.catalog, shard.new_keys)
                continue
            # Nothing was repaired where an earlier attempt had put its bytes back, and then died.
            url = self.catalog.store.url_of(entry.key)
            restored = shard.repaired or [Repaired(how="recovered", what="shard", url=url)]
            shard.repaired = [replace(each, how="recovered") for each in restored]
            self.out.add(shard)
            if salvaged is not None:
                slots[i][k] = entry
                continue
            # Before the next shard of its split.
            shards = self.catalog.table(loss.version).of_split(loss.entry.split)
            uuids = [uuid.tobytes() for uuid in shards.uuid]
            following = (places[uuid] for uuid in uuids[uuids.index(entry.uuid) + 1 :] if uuid in places)
            i, k = next(following, (len(slots) - 1, len(slots[-1])))
            slots[i].insert(k, entry)

    def _without_spent(self, loss: Loss, salvaged: ShardEntry | None, shard: RepairedShard) -> ShardEntry:
        """Return a shard that comes back, without rows that were deleted since or are in other shards.

        Raises:
            FormatError, NotFoundError: the shard that was salvaged from it cannot be read.
        """
        assert shard.new is not None  # noqa: S101 - for mypy: the mirror has it
        entry = replace(shard.new, split=loss.split)
        if loss.salvaged is None or (salvaged is not None and not salvaged.deleted_rows):
            return entry
        deleted = self._deleted_rows(loss.entry)
        rows = self._find_rows(loss, loss.entry if self.job.dry_run else entry, deleted)
        data = np.union1d(deleted, rows if salvaged is None else rows[self._deleted_rows(salvaged)])
        content = data.astype("<u4").tobytes()
        key = naming.rows_key(naming.random_id() + naming.random_id())
        self._deleted[key] = data
        if not self.job.dry_run:
            self.catalog.store.put_idempotent((key, content))
            shard.new_keys.append(key)
        digest = hashlib.sha256(content).digest()
        return replace(entry, deleted_rows=len(data), deletion_key=key, deletion_sha256=digest)

    def _deleted_rows(self, entry: ShardEntry) -> NDArray[np.int64]:
        known = self._deleted.get(entry.deletion_key)
        return deleted_rows(self.catalog.store, entry, self.catalog.limits) if known is None else known

    def _find_rows(self, loss: Loss, entry: ShardEntry, deleted: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which rows of a shard were salvaged, in order; none of those that were deleted.

        Among equal records any will do: nothing tells them apart.
        """
        assert loss.salvaged is not None  # noqa: S101 - for mypy
        assert loss.salvaged_version is not None  # noqa: S101 - for mypy
        gone = {*deleted.tolist()}
        rows = (
            (row, each) for row, each in enumerate(self._payloads(loss.version, entry)) if row not in gone
        )
        found = []
        for payload in self._payloads(loss.salvaged_version, loss.salvaged):
            row = next((row for row, each in rows if each == payload), None)
            if row is None:
                raise FormatError("a salvaged record is not in the mirror's shard", shard=loss.salvaged.key)
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
