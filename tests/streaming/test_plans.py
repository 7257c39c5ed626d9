"""Default plans by storage, memory, scratch and mixing, and what is advised about them."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from shardio.order import Identity, Order, Plan, ShardSizes, Source, make_order, measured_mixing
from shardio.streaming._plans import (
    UNREAD_ROW_BYTES,
    Resources,
    advice,
    check_memory,
    mixing_advice,
    open_bytes,
)

GIB = 1 << 30
BUCKET, LOCAL, BLOCKS = Resources(), Resources(is_local=True), Resources(has_local_blocks=True)
IDENTITY = Identity("uuid-1", 3, "print-1", "train")


def order_of(sizes: ShardSizes, resources: Resources, batch: int = 256, plan: Plan | None = None) -> Order:
    """Return the order of a stream that may use these resources."""
    source = Source(sizes, IDENTITY)
    return make_order(
        [source], global_batch=batch, plan=plan, budgets=resources.budgets([sizes]), remainder="keep"
    )


def shards(rows: int, record: int, *, stored: float = 1.0, block: int = 64 << 10) -> ShardSizes:
    """Return a hundred shards."""
    each = np.full(100, rows // 100)
    blocks = np.maximum(1, np.minimum(each, -(-each * record // block)))
    return ShardSizes(each, (each * record * stored).astype(np.int64), each * record, blocks)


IMAGES = shards(1_281_100, 110_000)
TOKENS = shards(7 * 10**6, 8208, stored=5 / 8)
TEXTS = shards(10**8, 100)


@pytest.mark.parametrize(
    ("sizes", "batch", "resources", "expected"),
    [
        (IMAGES, 256, BUCKET, (128, 2, 13)),
        (IMAGES, 256, LOCAL, (128, 1, 1)),
        (IMAGES, 1000, BUCKET, (200, 2, 8)),
        (TOKENS, 64, BUCKET, (32, 256, 5)),
        (TOKENS, 64, BLOCKS, (32, 24, 59)),
        (TOKENS, 64, replace(BLOCKS, mixing="best"), (32, 6, 238)),
        (shards(10**6, 100_000, stored=5 / 8), 256, BLOCKS, (128, 3, 9)),
        (shards(1_281_100, 1_000_000), 256, BUCKET, (128, 1, 1)),
        (TEXTS, 256, BUCKET, (128, 13_107, 2)),
        (TEXTS, 256, LOCAL, (128, 328, 82)),
        (TEXTS, 256, replace(LOCAL, mixing="best"), (128, 82, 331)),
        (TEXTS, 256, replace(LOCAL, mixing="cheap"), (128, 1311, 20)),
        (TEXTS, 256, replace(BUCKET, mixing="best"), (128, 2621, 10)),
        (TEXTS, 256, replace(BUCKET, memory_bytes=64 << 20), (128, 3276, 1)),
        (shards(2 * 10**5, 1000), 256, BUCKET, (128, 2097, 8)),
        (shards(2 * 10**5, 1000), 256, replace(BUCKET, mixing="cheap"), (128, 2097, 2)),
        (TEXTS, 257, LOCAL, (1, 328, 10_608)),
    ],
)
def test_default_plans(
    sizes: ShardSizes, batch: int, resources: Resources, expected: tuple[int, int, int]
) -> None:
    """A run that has begun keeps its plan; this test shows when the rules change."""
    [plan] = order_of(sizes, resources, batch).plans
    assert (plan.ranks, plan.chunk_rows, plan.interleave) == expected
    assert (plan.workers, plan.window) == (1, plan.chunk_rows)


@pytest.mark.parametrize("batch", [64, 256])
@pytest.mark.parametrize(("record", "most"), [(300, 1.6), (8208, 1.5), (100_000, 1.3)])
def test_chunks_of_compressed_local_files_are_smaller_and_mix_more(
    record: int, most: float, batch: int
) -> None:
    """In as much memory, at 8 GiB of sorted records."""
    sizes = shards((8 << 30) // record, record, stored=5 / 8)
    order, usual = order_of(sizes, BLOCKS, batch), order_of(sizes, BUCKET, batch)
    assert order.plans[0].chunk_rows <= usual.plans[0].chunk_rows
    assert order.plans[0].open_windows >= 0.9 * usual.plans[0].open_windows
    assert measured_mixing(order, order.schedule(0, batch), 1)[0].recurrence <= most


@pytest.mark.parametrize("record", [1000, 8192, 100_000])
@pytest.mark.parametrize(("gib", "most"), [(4, 1.25), (16, 1.10)])
def test_scratch_mixes_sorted_records_nearly_as_by_chance(record: int, gib: int, most: float) -> None:
    """In 512 MiB of memory."""
    sizes = shards(64_000_000_000 // record, record)
    order = order_of(sizes, replace(BUCKET, scratch_bytes=gib * GIB))
    assert measured_mixing(order, order.schedule(0, 256), 1)[0].recurrence <= most
    assert open_bytes(order, [UNREAD_ROW_BYTES], global_batch=256) <= 512 << 20
    kept = open_bytes(order, [sizes.row_decoded_bytes], global_batch=256)
    assert 0.5 * gib * GIB < kept <= 1.01 * gib * GIB


@pytest.mark.parametrize("record", [1000, 8192, 100_000])
@pytest.mark.parametrize("mebibytes", [96, 200, 350, 400, 500, 1000])
def test_what_memory_or_scratch_holds_is_read_by_large_requests_and_mixes(
    record: int, mebibytes: int
) -> None:
    sizes = shards((mebibytes << 20) // record, record)
    order = order_of(sizes, replace(BUCKET, scratch_bytes=4 * GIB))
    [plan] = order.plans
    assert plan.chunk_rows * sizes.row_stored_bytes > 1.8 * 2**20
    assert measured_mixing(order, order.schedule(0, 256), 1)[0].recurrence <= 1.3


@pytest.mark.parametrize("resources", [LOCAL, BLOCKS, replace(BUCKET, memory_bytes=8 * GIB)])
def test_scratch_changes_no_plan_of_local_files_or_of_what_memory_holds(resources: Resources) -> None:
    large, small = shards(8_000_000, 8192), shards(36_000, 8192)
    with_disk = replace(resources, scratch_bytes=4 * GIB)
    assert order_of(large, resources).plans == order_of(large, with_disk).plans
    assert order_of(small, resources).plans == order_of(small, with_disk).plans


def test_a_plan_over_memory_bytes_names_both_numbers() -> None:
    order = order_of(IMAGES, BUCKET, plan=Plan(chunk_rows=19))
    rows = [IMAGES.row_decoded_bytes]
    needed = open_bytes(order, rows, global_batch=256)
    check_memory(order, rows, None, global_batch=256)
    check_memory(order, rows, needed, global_batch=256)
    with pytest.raises(ValueError, match=rf"needs {needed} bytes .* memory_bytes=1000000"):
        check_memory(order, rows, 1_000_000, global_batch=256)


@pytest.mark.parametrize(
    ("sizes", "world_size", "workers", "says"),
    [
        (IMAGES, 8, 4, []),
        (IMAGES, 6, 4, ["6 ranks slices of 42 and 43 rows", "rows * 6 / 256", "a batch of 192 or 384"]),
        (IMAGES, 256, 4, ["ranks that divide 64"]),
        (IMAGES, 8, 3, ["workers that divide 4", "Plan(workers=3)"]),
        (shards(500, 110_000), 256, 3, []),
    ],
)
def test_advice_names_what_would_divide(
    sizes: ShardSizes, world_size: int, workers: int, says: list[str]
) -> None:
    order = order_of(sizes, LOCAL, plan=Plan(ranks=64, workers=4))
    found = advice(order, LOCAL, global_batch=256, world_size=world_size, workers=workers)
    assert len(found) == bool(says)
    assert all(each in found[0] for each in says)


@pytest.mark.parametrize(
    ("resources", "says"),
    [
        (BUCKET, "scratch= with a folder on a local disk"),
        (replace(BUCKET, scratch_bytes=1), 'mixing="best" mixes more'),
        (replace(BUCKET, scratch_bytes=1, memory_bytes=64 << 20, mixing="best"), "a larger memory_bytes="),
        (replace(BUCKET, scratch_bytes=4 * GIB), None),
        (LOCAL, None),
    ],
)
def test_sorted_records_that_a_plan_mixes_too_little_are_a_warning(
    resources: Resources, says: str | None
) -> None:
    """What it names mixes more."""
    sizes = shards((64 << 30) // 8192, 8192)
    order = order_of(sizes, resources)
    named = mixing_advice(order, resources, ["s3://bucket/d"], shuffled=[False])
    assert (named is None) == (says is None)
    if named is not None:
        assert says in named
        assert "s3://bucket/d are sorted" in named
    assert mixing_advice(order, resources, ["s3://bucket/d"], shuffled=[True]) is None


@pytest.mark.parametrize("resources", [LOCAL, BUCKET], ids=["local", "bucket"])
def test_memory_for_less_than_a_record_is_a_warning(resources: Resources) -> None:
    """There is no smaller plan; the memory that is named needs no warning, and chunks as well."""
    sizes = shards(100_000, 1000)

    def advised(memory: int) -> list[str]:
        bound = replace(resources, memory_bytes=memory)
        order = order_of(sizes, bound, 64)
        check_memory(order, [sizes.row_decoded_bytes], memory, global_batch=64)
        return advice(order, bound, global_batch=64)

    [line] = advised(1)
    assert "one record takes" in line
    lines = advised(int(line.split("memory_bytes=")[2].split()[0]))
    assert len(lines) == (resources is BUCKET)
    if lines:
        enough = int(lines[0].split("memory_bytes=")[2].split()[0])
        assert not any("with its block" in line for line in advised(enough))


def test_plans_of_any_dataset_fit_in_their_memory() -> None:
    rnd = random.Random(3)
    for _ in range(300):
        record = int(2 ** rnd.uniform(4, 24))
        sizes = shards(int(2 ** rnd.uniform(7, 30)), record, stored=rnd.choice([1.0, 0.4]))
        resources = Resources(
            is_local=rnd.random() < 0.3,
            has_local_blocks=rnd.random() < 0.3,
            memory_bytes=int(2 ** rnd.uniform(22, 34)),
            scratch_bytes=rnd.choice([0, GIB, 4 * GIB]),
            mixing=rnd.choice(["cheap", "default", "best"]),
            shuffle=rnd.random() < 0.8,
        )
        budgets = resources.budgets([sizes])
        order = make_order(
            [Source(sizes, IDENTITY)],
            global_batch=rnd.choice([1, 60, 256]),
            remainder="keep",
            shuffle=resources.shuffle,
            budgets=budgets,
        )
        held = open_bytes(order, [sizes.row_decoded_bytes], global_batch=order.ranks)
        rows = open_bytes(order, [UNREAD_ROW_BYTES], global_batch=order.ranks)
        assert min(held, rows) <= resources.memory_bytes or record + 8 > resources.memory_bytes * 0.7
        assert (
            held <= max(resources.memory_bytes, 1.01 * resources.scratch_bytes) or order.plans[0].window == 1
        )
