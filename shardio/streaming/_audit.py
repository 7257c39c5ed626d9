"""Which records were in a step: recomputed from the state and the dataset, on any machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shardio.order import audit as audit_order
from shardio.streaming._members import Member
from shardio.streaming._mix import Mix

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardio.reader import DatasetReader

__all__ = ["AuditedRecord", "audit"]


class AuditedRecord(NamedTuple):
    """One record of a step.

    Attributes:
        source: number of its dataset in the mixture; 0 without one.
        position: in its dataset, as the stream was given it: `ds[position]` is the record.
        shard: key of its shard.
        row: within the shard.
        valid: False where `remainder="pad"` filled the step up.
    """

    source: int
    position: int
    shard: str
    row: int
    valid: bool


def audit(
    ds: DatasetReader | Mix, state: Mapping[str, Any], step: int, *, rank: int = 0, world_size: int = 1
) -> list[AuditedRecord]:
    """Return which records a rank got, or will get, in a step of the state's epoch, in order.

    Reads no shard. Earlier steps went through the batches of the state; later ones go on with its last.

    Raises:
        ResumeError: the state is damaged or belongs to another dataset.
        IndexError: the epoch has no such step.
    """
    members = [Member(reader) for reader in (ds.readers if isinstance(ds, Mix) else (ds,))]
    batch = audit_order(state, [member.order for member in members], step, rank=rank, world_size=world_size)
    records = []
    rows = zip(batch.sources.tolist(), batch.positions.tolist(), batch.valid.tolist(), strict=True)
    for number, local, valid in rows:
        member = members[number]
        shard, row = member.source.shard_of(local + member.start)
        records.append(AuditedRecord(number, local, member.source.table.key[shard], row, valid))
    return records
