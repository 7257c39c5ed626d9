"""The third budget of a plan: a local disk, for windows that do not fit in memory."""

from __future__ import annotations

import pytest

from shardio.order import (
    SCRATCH_BYTES,
    Budget,
    Identity,
    Order,
    ShardSizes,
    Source,
    SourceReading,
    advice,
    make_order,
    mixing_warning,
    process_memory,
    report,
)
from tests.suites.errors import refused

GIB = 1 << 30


def order_of(record: int, total: int, budget: Budget) -> tuple[Order, ShardSizes]:
    """Return the default order of shards of 64 MB, of blocks of 64 KiB."""
    each = max(1, 64_000_000 // record)
    shards = max(1, total // (each * record))
    stored = [each * record] * shards
    sizes = ShardSizes([each] * shards, stored, stored, [-(-each * record // (64 << 10))] * shards)
    return make_order([Source(sizes, Identity("", 1, "", ""))], global_batch=256, budget=budget), sizes


@pytest.mark.parametrize("record", [1000, 8192, 100_000])
@pytest.mark.parametrize(("gib", "most"), [(4, 1.25), (16, 1.10)])
def test_sorted_records_are_mixed_nearly_as_by_chance(record: int, gib: int, most: float) -> None:
    """At about a request for each MiB, in 512 MiB of memory."""
    order, sizes = order_of(record, 64_000_000_000, Budget(scratch_bytes=gib * GIB))
    found = report(order, global_batch=256, read=[SourceReading(sizes, scratch=True)])
    assert found.mixing.recurrence <= most
    assert found.requests / (found.epoch_bytes / 2**20) <= 1.2
    assert found.memory_bytes <= 512 << 20
    assert 0.5 * gib * GIB < found.scratch_bytes <= gib * GIB


@pytest.mark.parametrize("total", [300_000_000, 3_200_000_000, 64_000_000_000])
@pytest.mark.parametrize("record", [300, 8192])
def test_windows_fit_in_what_they_are_given(total: int, record: int) -> None:
    for gib in (1, 4, 16):
        order, sizes = order_of(record, total, Budget(scratch_bytes=gib * GIB))
        held = process_memory(order, global_batch=256).held_bytes
        rows = process_memory(order, global_batch=256, read=[SourceReading(sizes, scratch=True)]).held_bytes
        assert held <= max(512 << 20, 1.01 * gib * GIB)
        assert rows <= 512 << 20


@pytest.mark.parametrize(
    "budget",
    [
        Budget(local=True, scratch_bytes=SCRATCH_BYTES),
        Budget(decoded=True, scratch_bytes=SCRATCH_BYTES),
        Budget(scratch_bytes=100 << 20),
        Budget(memory_bytes=8 * GIB, scratch_bytes=SCRATCH_BYTES),
    ],
)
def test_scratch_changes_no_plan_of_local_files_or_of_what_memory_holds(budget: Budget) -> None:
    without = Budget(local=budget.local, decoded=budget.decoded, memory_bytes=budget.memory_bytes)
    large = 64_000_000_000
    assert order_of(8192, large, budget)[0].plans == order_of(8192, large, without)[0].plans
    assert (
        order_of(8192, 300_000_000, Budget(scratch_bytes=SCRATCH_BYTES))[0].plans
        == order_of(8192, 300_000_000, Budget())[0].plans
    )


def test_advice_tells_of_the_disk_first() -> None:
    order, _ = order_of(8192, 64_000_000_000, Budget())
    [line] = advice(order, global_batch=256, budget=Budget(), shuffled=[False])
    assert "scratch= with a folder on a local disk" in line
    told = mixing_warning(order, ["s3://bucket/d"], shuffled=[False], budget=Budget())
    assert told is not None
    assert "scratch= with a folder" in told
    enough = Budget(scratch_bytes=SCRATCH_BYTES)
    order, _ = order_of(8192, 64_000_000_000, enough)
    assert not advice(order, global_batch=256, budget=enough, shuffled=[False])


def test_a_scratch_below_zero_is_refused() -> None:
    with refused(ValueError, "scratch_bytes"):
        Budget(scratch_bytes=-1)
