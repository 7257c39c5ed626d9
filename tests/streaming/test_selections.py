"""Streams of a part: a selection is a set of live rows, as those that deletions leave."""

from __future__ import annotations

import hashlib
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import shardio
from shardio.errors import ResumeError, SchemaError
from tests.streaming.datasets import edited, flat, memory_url, numbers, plan, write
from tests.suites.errors import refused

SHARDS = [70, 5, 125, 40, 33]
ROWS = sum(SHARDS)
EDGES = np.concatenate([[0], np.cumsum(SHARDS)])


@pytest.fixture(scope="module", params=[None, "zstd"])
def ds(request):
    return shardio.open(write(memory_url(), SHARDS, compression=request.param))


def subsets():
    """Return masks over all records by name: dense, sparse, whole shards, one record."""
    rng = np.random.default_rng(5)
    every = np.zeros(ROWS, bool)
    every[::3] = True
    shard = np.zeros(ROWS, bool)
    shard[EDGES[2] : EDGES[3]] = True
    one = np.zeros(ROWS, bool)
    one[217] = True
    return {
        "dense": rng.random(ROWS) < 0.9,
        "half": rng.random(ROWS) < 0.5,
        "sparse": rng.random(ROWS) < 0.02,
        "every third": every,
        "one shard": shard,
        "one record": one,
    }


def without(ds, mask):
    """Return the dataset in which the records outside of a mask are deleted."""
    deleted = {}
    for number, (first, stop) in enumerate(itertools.pairwise(EDGES.tolist())):
        gone = np.flatnonzero(~mask[first:stop])
        if len(gone):
            deleted[number] = gone.tolist()
    return edited(ds, deleted=deleted)


def ways(ds, mask):
    """Return readers of the same records, made in every way."""
    positions = np.flatnonzero(mask)
    kept = set(positions.tolist())
    twice = ds.filter(mask | (np.arange(ROWS) % 2 == 0))
    return [
        ds.filter(mask),
        ds.select(positions),
        ds.filter(lambda columns: np.isin(columns["n"], positions), features=["n"], batch_size=32),
        ds.filter(lambda columns: [int(n) in kept for n in columns["n"]]),
        twice.filter(mask[np.asarray(twice.selection)]),
        ds[:].select(positions)[0 : len(positions)],
    ]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("name", subsets())
def test_the_order_is_that_of_the_dataset_without_the_others(ds, name, shuffle):
    """Batches, positions and random transforms: bit for bit, in two epochs."""
    mask = subsets()[name]
    options = {
        "global_batch": 4,
        "shuffle": shuffle,
        "seed": 3,
        "remainder": "keep",
        "plan": plan(),
        "positions": True,
        "random_transform": lambda value, rng: {"n": value["n"], "r": rng.random()},
    }

    def seen(reader):
        stream = shardio.stream(reader, **options)
        return [
            [(name, column.tolist()) for name, column in batch.items()] for _ in range(2) for batch in stream
        ]

    expected = seen(without(ds, mask))
    assert sorted(n for batch in expected[: len(expected) // 2] for n in batch[0][1]) == (
        np.flatnonzero(mask).tolist()
    )
    for reader in ways(ds, mask):
        assert seen(reader) == expected


def test_a_full_selection_is_the_dataset(ds):
    everything = numbers(shardio.stream(ds, global_batch=7, seed=1))
    state = shardio.stream(ds, global_batch=7, seed=1).state_dict()
    for part in (
        ds.filter(np.ones(ROWS, bool)),
        ds.select(np.arange(ROWS)),
        ds.filter(lambda columns: columns["n"] >= 0),
        ds[::1],
    ):
        stream = shardio.stream(part, global_batch=7, seed=1)
        stream.load_state_dict(state)
        assert numbers(stream) == everything
    assert "selection" not in state["datasets"][0]


def test_parts_of_parts(ds):
    """Slices of selections, selections of slices, filters of filters: the records that NumPy would give."""
    every = np.arange(ROWS)
    mask = every % 3 > 0
    part = ds[20:250].filter(mask[20:250])
    assert [value["n"] for value in part] == every[20:250][mask[20:250]].tolist()
    cut = part[10:-10:2]
    expected = every[20:250][mask[20:250]][10:-10:2]
    assert [value["n"] for value in cut] == expected.tolist()
    odd = cut.filter(lambda columns: columns["n"] % 2 == 1)
    assert [value["n"] for value in odd] == expected[expected % 2 == 1].tolist()
    stream = shardio.stream(odd, global_batch=3, remainder="keep")
    assert sorted(flat(numbers(stream))) == expected[expected % 2 == 1].tolist()
    assert odd[-1]["n"] == expected[expected % 2 == 1][-1]
    assert odd.read_batch([3, 0, 3])["n"].tolist() == expected[expected % 2 == 1][[3, 0, 3]].tolist()


def test_a_state_of_another_selection_is_refused(ds):
    masks = subsets()
    state = shardio.stream(ds.filter(masks["half"]), global_batch=4).state_dict()
    for other in (ds, ds.filter(masks["dense"]), ds[::2], ds.select(np.flatnonzero(masks["half"])[:-1])):
        with pytest.raises(ResumeError) as caught:
            shardio.stream(other, global_batch=4).load_state_dict(state)
        assert "same filter()" in str(caught.value)
    whole = shardio.stream(ds, global_batch=4).state_dict()
    with pytest.raises(ResumeError):
        shardio.stream(ds[::2], global_batch=4).load_state_dict(whole)


def test_reports_and_pickles(ds):
    mask = subsets()["half"]
    part = ds.filter(mask)
    chosen_ones = np.flatnonzero(mask)
    stream = shardio.stream(part, global_batch=5, positions=True)
    state = stream.state_dict()
    batch = next(iter(stream))
    records = shardio.audit(part, state, 0)
    assert [part[record.position]["n"] for record in records] == batch["n"].tolist()
    for record in records:
        place = part.locate(record.position)
        assert (place.shard, place.row) == (record.shard, record.row)
        assert place == ds.locate(int(chosen_ones[record.position]))
    figures, _ = shardio.plan_report(part, global_batch=5)
    assert figures.steps == len(stream)
    other = pickle.loads(pickle.dumps(part))
    assert numbers(shardio.stream(other, global_batch=5)) == numbers(shardio.stream(part, global_batch=5))


def test_blocks_without_a_chosen_record_are_not_read(tmp_path):
    ds = shardio.open(write(tmp_path / "d", [4096], compression="zstd", block_bytes=256), mmap=False)
    part = ds.filter(np.arange(4096) % 512 == 0)
    before = ds.stats["blocks_opened"]
    assert sorted(flat(numbers(shardio.stream(part, global_batch=2, num_threads=0)))) == (
        np.arange(0, 4096, 512).tolist()
    )
    assert ds.stats["blocks_opened"] - before <= 16


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda ds: ds.filter("n"), ValueError, "compare it with something"),
        (lambda ds: ds.filter([True, False]), ValueError, rf"needs the shape \({ROWS},\).*found \(2,\)"),
        (lambda ds: ds.filter(np.arange(ROWS)), TypeError, r"int64.*ds\.select"),
        (lambda ds: ds.filter(lambda c: c["n"] > 0, features=["label"]), ValueError, "label"),
        (lambda ds: ds.filter(lambda c: c["n"] > 0, features="n"), TypeError, r"features=\['n'\]"),
        (lambda ds: ds.filter(lambda c: c["n"]), TypeError, "bool for each record.*int64"),
        (lambda ds: ds.filter(lambda c: True), TypeError, "bool for each record"),
        (lambda ds: ds.filter(lambda c: c["n"] > 0, batch_size=0), ValueError, "batch_size=0"),
        (lambda ds: ds.filter(lambda c: c["n"] > 0, num_threads=0), ValueError, "num_threads=0"),
        (lambda ds: stream_of(ds.filter(lambda c: c["n"] < 0)), ValueError, "no records in this selection"),
        (lambda ds: stream_of(ds[5:5]), ValueError, "no records.*selection"),
        (lambda ds: stream_of(ds.select([3, 1])), ValueError, r"numpy\.unique"),
        (lambda ds: stream_of(ds.select([3, 3])), ValueError, "each record once"),
        (lambda ds: stream_of(ds[::-1]), ValueError, "storage order"),
    ],
)
def test_bad_input(ds, make, error, says):
    with pytest.raises(error, match=says):
        make(ds)


@pytest.mark.parametrize(
    "take",
    [
        lambda ds, function, **options: ds.filter(function, **options),
        lambda ds, function, **options: ds.split_by({"a": 0.5, "b": 0.5}, by=function, **options),
    ],
    ids=["filter", "split_by"],
)
def test_a_function_that_uses_a_column_it_is_not_given(take):
    """It is told which there are, and what to add; a key that its own dict lacks stays its own error."""
    schema = {"n": "int64", "text": "text"}
    url = write(memory_url(), [30], schema=schema, value=lambda n: {"n": n, "text": str(n)})
    ds = shardio.open(url)
    for reader, options in ((ds, {"features": ["n"]}), (shardio.open(url, features=["n"]), {})):
        with refused(SchemaError, "'text'", "'n'", "features=") as caught:
            take(reader, lambda columns: np.array([text > "1" for text in columns["text"]]), **options)
        assert caught.value.url == url
        take(
            reader, lambda columns: np.array([text > "1" for text in columns["text"]]), features=["n", "text"]
        )
    with refused(SchemaError, "'label'", "'n'", "'text'"):
        take(ds, lambda columns: columns["label"] == 3, features=["n"])
    take(ds, lambda columns: columns["n"] == 3, features=["n"])
    with refused(KeyError, "'mine'"):
        take(ds, lambda columns: {}["mine"], features=["n"])
    raw = shardio.open(write(memory_url(), [30], value=lambda n: bytes([n])))
    with refused(SchemaError, "'payload'"):
        take(raw, lambda columns: columns["label"] == 3)
    take(raw, lambda columns: np.array([payload > bytes([3]) for payload in columns["payload"]]))


def stream_of(reader):
    return shardio.stream(reader, global_batch=2)


def test_a_function_that_raises_ends_the_filter(ds):
    def function(columns):
        if 100 in columns["n"].tolist():
            raise LookupError("mine")
        return columns["n"] > 0

    with refused(LookupError, "mine"):
        ds.filter(function, batch_size=10, num_threads=2)


def test_progress_is_told(ds):
    states = []
    ds.filter(lambda columns: columns["n"] < 100, batch_size=50, progress=states.append)
    assert (states[-1].done, states[-1].total, states[-1].found) == (ROWS, ROWS, 100)
    assert [state.done for state in states] == sorted(state.done for state in states)


def test_records_without_a_schema():
    ds = shardio.open(write(memory_url(), [30], value=lambda n: bytes([n])))
    part = ds.filter(lambda columns: [payload[0] % 2 == 0 for payload in columns["payload"]])
    assert list(part) == [bytes([n]) for n in range(0, 30, 2)]


MANY = 70_000  # two blocks of a digest


@pytest.fixture(scope="module")
def many():
    url = memory_url()
    with shardio.DatasetWriter(url) as out:
        out.write_many(b"%d" % n for n in range(MANY))
    return shardio.open(url)


def known_by(part):
    """Return what states know a part by."""
    return shardio.stream(part, global_batch=1, scratch=False).state_dict()["datasets"][0]["selection"]


def digest_of(mask):
    """Compute the same as docs/order.md says it."""
    digest = hashlib.sha256(b"shardio selection 1")
    for block in range(0, MANY, 1 << 16):
        bits = np.zeros(1 << 16, bool)
        bits[: len(mask) - block] = mask[block : block + (1 << 16)]
        if bits.any():
            digest.update(
                (block >> 16).to_bytes(8, "little") + np.packbits(bits, bitorder="little").tobytes()
            )
    return digest.hexdigest()


@settings(max_examples=max(15, settings().max_examples // 5))
@given(st.integers(0, 2**32), st.sampled_from([0.001, 0.02, 0.3, 0.999]), st.lists(st.integers(0, 2**31)))
def test_every_form_of_a_selection_is_the_same(many, seed, share, at):
    """As NumPy has it: positions, slices, choices; few take 8 bytes each, many a bit."""
    mask = np.random.default_rng(seed).random(MANY) < share
    positions = np.flatnonzero(mask)
    numbers = [each % len(positions) for each in at]
    for part in (many.filter(mask), many.select(positions)):
        assert np.array_equal(part.selection, positions)
        assert np.array_equal(part.select(numbers).selection, positions[numbers])
        assert (part.selection[-len(part)], part.locate(-1).row) == (positions[0], positions[-1])
        for cut in (slice(len(positions) // 3, -1), slice(None, None, -2), slice(5, None, 7)):
            assert np.array_equal(part[cut].selection, positions[cut])
        assert known_by(part) == digest_of(mask)
        assert len(pickle.dumps(part)) < 36_000
    third, every = many[MANY // 3 :: 3], np.arange(MANY // 3, MANY, 3)
    assert known_by(third) == known_by(many.select(every))
    assert np.array_equal(third.filter(mask[every]).selection, every[mask[every]])
