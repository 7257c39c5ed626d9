"""Mistakes are named: a clear ValueError or ResumeError, never a hang."""

from __future__ import annotations

import json

import numpy as np
import pytest

import shardio
from shardio.order import Plan
from shardio.streaming import in_all
from shardio.torch import StreamingDataset
from tests.streaming.datasets import edited, memory_url, plan, write
from tests.suites.errors import refused


@pytest.fixture(scope="module")
def ds():
    return shardio.open(write(memory_url(), [40, 3, 57]))


@pytest.mark.parametrize("take", [shardio.stream, StreamingDataset])
@pytest.mark.parametrize("given", [[b"a", b"b"], None, {"train": None}])
def test_what_is_not_an_opened_dataset(take, given):
    with pytest.raises(TypeError, match=r"takes what `shardio.open\(url\)` .* found"):
        take(given, batch_size=2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"global_batch": 0}, "at least 1, found 0"),
        ({"global_batch": -8}, "at least 1, found -8"),
        ({"batch_size": 0}, "batch_size=0 must be"),
        ({}, "exactly one of them"),
        ({"global_batch": 8, "batch_size": 8}, "exactly one of them"),
        ({"global_batch": 8, "rank": 8, "world_size": 8}, "rank=8 must be in"),
        ({"global_batch": 8, "rank": -1}, "rank=-1 must be in"),
        ({"global_batch": 4, "world_size": 5}, "world_size=5 is larger than global_batch=4"),
        ({"global_batch": 9, "plan": plan(ranks=6)}, "multiple of the plan's ranks, 6: found 9; use 6 or 12"),
        ({"global_batch": 101}, "larger than the 100 rows"),
        ({"global_batch": 8, "remainder": "wrap"}, "remainder must be"),
        ({"global_batch": 8, "valid": True}, "valid=True needs"),
        ({"global_batch": 8, "num_threads": -1}, "num_threads=-1"),
        (
            {"global_batch": 8, "memory_bytes": 10, "plan": Plan(chunk_rows=2, interleave=1)},
            "needs .* bytes .* memory_bytes=10",
        ),
        ({"global_batch": 8, "seed": -1}, "seed"),
        ({"global_batch": 8, "epoch": -1}, "epoch"),
        ({"global_batch": 8, "transform": abs, "random_transform": max}, "not both"),
    ],
)
def test_options_that_make_no_sense(ds, options, says):
    with pytest.raises(ValueError, match=says):
        shardio.stream(ds, **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"global_batch": 8.0}, "must be an integer"),
        ({"global_batch": "8"}, "must be an integer"),
        *(
            ({"global_batch": 8, name: wrong}, f"{name} must be an integer, found {wrong}")
            for name in ("seed", "epoch", "rank", "world_size", "num_threads")
            for wrong in (0.0, True)
        ),
        ({"batch_size": True}, "batch_size must be an integer, found True"),
        ({"global_batch": 8, "ahead_bytes": 1.5}, "ahead_bytes must be an integer, found 1.5"),
        ({"global_batch": 8, "transform": "abs"}, "transform= must be a function"),
    ],
)
def test_options_of_the_wrong_type(ds, options, says):
    with pytest.raises(TypeError, match=says):
        shardio.stream(ds, **options)


def test_integers_of_numpy_are_integers(ds):
    """Also in states, which are JSON."""
    given = {"rank": 1, "world_size": 2, "seed": 3, "epoch": 1, "num_threads": 0, "ahead_bytes": 1 << 20}
    numpy = {name: np.int64(value) for name, value in given.items()}
    one = shardio.stream(ds, global_batch=8, plan=plan(ranks=2, workers=1), **given)
    shape = plan(ranks=np.int32(2), workers=np.uint8(1))
    other = shardio.stream(ds, global_batch=np.int64(8), plan=shape, **numpy)
    for each in (one, other):
        each.set_epoch(np.int64(2))
        each.go_to(np.int64(3))
    assert json.loads(json.dumps(other.state_dict())) == one.state_dict()
    assert [batch["n"].tolist() for batch in other] == [batch["n"].tolist() for batch in one]
    with refused(TypeError, "step"):
        one.go_to(1.0)
    mixed = shardio.mix([(ds, 1), (ds, 1)], steps=np.int64(3))
    assert len(shardio.stream(mixed, global_batch=4)) == 3


def test_an_empty_split(ds):
    with refused(ValueError, "'train'"):
        shardio.stream(ds[:0], global_batch=8)
    with pytest.raises(ValueError, match="no records"):
        shardio.stream(edited(ds, shards=[1], deleted={0: [0, 1, 2]}), global_batch=8)
    with pytest.raises(ValueError, match="no records"):
        shardio.stream(shardio.mix([(ds, 1), (ds[:0], 1)]), global_batch=8)


def test_what_is_streamed_is_in_storage_order(ds):
    for chosen in (ds[::-1], ds.select([3, 1, 2])):
        with pytest.raises(ValueError, match="must be in storage order"):
            shardio.stream(chosen, global_batch=1)


def test_mixtures_that_make_no_sense(ds):
    with pytest.raises(ValueError, match="finite and above 0"):
        shardio.mix([])
    with refused(ValueError, "steps="):
        shardio.mix([(ds, 1)], stop="all", steps=3)
    with refused(ValueError, "stop"):
        shardio.mix([(ds, 1)], stop="last")
    with refused(ValueError, "stop"):
        shardio.mix([(ds, 1)], steps=0)
    with pytest.raises(TypeError, match=r"\(reader, weight\) pairs"):
        shardio.mix([ds, ds])
    with pytest.raises(TypeError, match="found str"):
        shardio.mix([("s3://bucket/a", 1)])
    other = shardio.open(write(memory_url(), [3], schema={"m": "int64"}, value=lambda n: {"m": n}))
    with pytest.raises(ValueError, match="one schema"):
        shardio.mix([(ds, 1), (other, 1)])
    raw = shardio.open(ds.source.url, decode=False)
    with refused(ValueError, "decode="):
        shardio.mix([(ds, 1), (raw, 1)])


def test_a_mixture_without_a_whole_period(ds):
    mixture = shardio.mix([(ds, 1), (ds[:3], 5)])
    with refused(ValueError, "period"):
        shardio.stream(mixture, global_batch=8, plan=plan(ranks=8, workers=4), remainder="keep")


def test_a_state_whose_plan_needs_too_much_memory(ds):
    state = shardio.stream(ds, global_batch=8, plan=plan(chunk_rows=100)).state_dict()
    other = shardio.stream(ds, global_batch=8, memory_bytes=1 << 30)
    other.load_state_dict(state)
    small = shardio.stream(ds, global_batch=8, plan=plan(chunk_rows=100))
    need = shardio.plan_report(ds, global_batch=8, plan=plan(chunk_rows=100))[0].memory_bytes
    assert need > 0
    del small
    # Scratch takes the records, whose entries take more than this.
    with refused(ValueError, "memory_bytes"):
        shardio.stream(ds, global_batch=8, plan=plan(chunk_rows=100), memory_bytes=need // 2)
    shardio.stream(ds, global_batch=8, plan=plan(chunk_rows=100), memory_bytes=need)


def test_a_failure_that_cannot_be_encoded_reaches_the_other_processes():
    """A path may hold bytes that are not text; the collective call must not fail in this process alone."""
    told = []

    def gather(text):
        told.append(text.encode().decode())
        return [told[0], ""]

    def fail():
        raise OSError("no file caf\udce9")

    with refused(OSError, "no file caf"):
        in_all(fail, gather, what="a rank cannot make its stream", unit="rank")
    with pytest.raises(ValueError, match=r"^a rank cannot make its stream: rank 0: no file caf\\udce9$"):
        in_all(int, gather, what="a rank cannot make its stream", unit="rank")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("on_error", r"shardio\.stream has no option on_error=; it is one of shardio\.open"),
        ("globl_batch", r"shardio\.stream has no option globl_batch=; did you mean global_batch=\?"),
        ("xyz", r"shardio\.stream has no option xyz=$"),
    ],
)
def test_options_that_a_stream_has_not(name, says, tmp_path):
    with shardio.DatasetWriter(tmp_path / "d") as out:
        out.write(b"x")
    with pytest.raises(TypeError, match=says):
        shardio.stream(shardio.open(tmp_path / "d"), **{"global_batch": 1, name: 1})
