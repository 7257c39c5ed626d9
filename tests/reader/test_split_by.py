"""Parts of a dataset by a hash: disjoint, together all of it, groups whole, the same every time."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st

import shardio
from shardio.errors import CorruptBlockError
from tests.streaming.datasets import flat, flip, memory_url, write

SCHEMA = {
    "n": "int64",
    "user": "int32",
    "name": "text",
    "raw": shardio.Feature("bytes", optional=True),
    "x": "float32",
}
ROWS = [300, 200]


FROZEN = [0, 1, 4, 9, 11, 12, 21, 26, 27, 30, 33, 34]
FROZEN_POSITIONS = [1, 2, 3, 4, 5, 7, 8, 9]


def record(n):
    user = n * n % 37
    return {
        "n": n,
        "user": user,
        "name": f"user {user}",
        "raw": None if user % 5 == 0 else bytes([user]),
        "x": n / 2,
    }


@pytest.fixture(scope="module")
def ds():
    return shardio.open(write(memory_url(), ROWS, schema=SCHEMA, value=record))


def numbers(part):
    return part.read_batch(range(len(part)))["n"].tolist() if len(part) else []


def as_text(columns):
    return [str(user) for user in columns["user"]]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("by", [None, "user", "name", "raw", as_text])
def test_parts_are_disjoint_and_groups_stay_together(ds, by, exact):
    fractions = {"train": 0.7, "validation": 0.2, "test": 0.1}
    parts = ds.split_by(fractions, by=by, exact=exact, seed=3)
    assert list(parts) == list(fractions)
    found = {name: numbers(part) for name, part in parts.items()}
    assert sorted(flat(found.values())) == list(range(500))
    assert all(own == sorted(own) for own in found.values()), "in storage order"
    if by is None:
        return
    groups = [{record(n)["raw" if by == "raw" else "user"] for n in own} for own in found.values()]
    assert not groups[0] & groups[1]
    assert not (groups[0] | groups[1]) & groups[2]


@given(st.integers(0, 500), st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(0, 5))
def test_without_groups_sizes_are_exact(ds, rows, shares, seed):
    shares = shares if sum(shares) else [1]
    parts = ds[:rows].split_by({str(k): share / sum(shares) for k, share in enumerate(shares)}, seed=seed)
    ends = np.cumsum([len(part) for part in parts.values()])
    wanted = np.cumsum(shares) / sum(shares) * rows
    assert np.abs(ends - wanted).max() <= 0.5 + 1e-9
    assert ends[-1] == rows


def test_groups_are_dealt_as_near_as_they_allow(ds):
    """The end of a part is nearer to its fraction than any other border of groups in the order of hashes."""
    largest = max(Counter(record(n)["user"] for n in range(500)).values())
    for seed in range(20):
        parts = ds.split_by({"a": 0.5, "b": 0.5}, by="user", seed=seed)
        assert abs(len(parts["a"]) - 250) <= largest / 2


def test_the_seed_and_the_value_alone_decide(ds):
    """Not the type, not the batch, not the number of threads, not what else is there."""
    fractions = {"a": 0.6, "b": 0.4}
    expected = numbers(ds.split_by(fractions, by="user", exact=False)["a"])
    assert expected == numbers(ds.split_by(fractions, by="user", exact=False, num_threads=1)["a"])
    wide = lambda columns: columns["user"].astype(np.uint64)  # noqa: E731
    assert expected == numbers(ds.split_by(fractions, by=wide, features=["user"], exact=False)["a"])
    listed = lambda columns: columns["user"].tolist()  # noqa: E731
    assert expected == numbers(ds.split_by(fractions, by=listed, exact=False)["a"])
    part = ds[100:300]
    assert numbers(part.split_by(fractions, by="user", exact=False)["a"]) == [
        n for n in expected if 100 <= n < 300
    ]
    assert expected != numbers(ds.split_by(fractions, by="user", exact=False, seed=1)["a"])
    # Frozen: another release must not move records from train to validation.
    assert sorted({record(n)["user"] for n in expected}) == FROZEN
    assert numbers(ds.split_by(fractions)["b"])[:8] == FROZEN_POSITIONS


def test_a_dataset_that_grew_keeps_every_group_in_its_part():
    url = write(memory_url(), [100], schema=SCHEMA, value=record)
    options = {"fractions": {"a": 0.5, "b": 0.5}, "by": "user", "exact": False}
    before = numbers(shardio.open(url).split_by(**options)["a"])
    with shardio.DatasetWriter(url, mode="append") as out:
        for n in range(100, 200):
            out.write(record(n))
    assert [n for n in numbers(shardio.open(url).split_by(**options)["a"]) if n < 100] == before
    positions = [
        set(numbers(shardio.open(url)[:k].split_by({"a": 0.5, "b": 0.5}, exact=False)["a"]))
        for k in (100, 200)
    ]
    assert positions[0] == {n for n in positions[1] if n < 100}


def test_parts_stream(ds):
    parts = ds.split_by({"train": 0.8, "validation": 0.2}, by="name")
    seen = [
        n
        for batch in shardio.stream(parts["train"], global_batch=16, remainder="keep")
        for n in batch["n"].tolist()
    ]
    assert sorted(seen) == numbers(parts["train"])
    assert len(parts["train"].split_by({"all": 1})["all"]) == len(parts["train"])


def test_records_without_a_schema():
    url = memory_url()
    with shardio.DatasetWriter(url) as out:
        for n in range(100):
            out.write(b"%d" % (n % 10))
    parts = shardio.open(url).split_by({"a": 0.5, "b": 0.5}, by="payload")
    assert len(parts["a"]) == 50
    assert not set(parts["a"]) & set(parts["b"])


def test_damaged_records_are_in_no_part(tmp_path):
    url = tmp_path / "d"
    write(url, [100], schema=SCHEMA, value=record, block_bytes=1024)
    (shard,) = (path for path in (url / "data").iterdir() if path.suffix != ".shardidx")
    flip(shard, shard.stat().st_size // 2)
    with pytest.raises(CorruptBlockError):
        shardio.open(url).split_by({"a": 0.5, "b": 0.5}, by="user")
    ds = shardio.open(url, on_error="skip")
    with pytest.warns(UserWarning, match="skipped"):
        parts = ds.split_by({"a": 0.5, "b": 0.5}, by="user")
    lost = ds.stats["records_skipped"]
    assert lost
    assert sum(map(len, parts.values())) == 100 - lost
    assert len(flat(map(numbers, parts.values()))) == 100 - lost


@pytest.mark.parametrize(
    ("fractions", "options", "error", "reason"),
    [
        ({}, {}, ValueError, "their sum must be 1"),
        ({"a": 0.5, "b": 0.4}, {}, ValueError, "their sum must be 1"),
        ({"a": 1.5, "b": -0.5}, {}, ValueError, "must not be negative"),
        ({"a": 1}, {"by": "other"}, ValueError, "other"),
        ({"a": 1}, {"by": "x"}, TypeError, "feature 'x' gives float32; records are grouped by integers"),
        ({"a": 1}, {"by": "user", "features": ["n"]}, ValueError, "give one, by=f"),
        ({"a": 1}, {"features": ["n"]}, ValueError, "give one, by=f"),
        ({"a": 1}, {"by": lambda columns: columns["user"][:1]}, TypeError, "gives 1 values for 500 records"),
        ({"a": 1}, {"by": lambda columns: 3}, TypeError, "gives 0 values|gives int"),
        ({"a": 1}, {"seed": "x"}, TypeError, "seed must be an integer, found 'x'"),
        ({"a": 1}, {"by": "user", "num_threads": 0}, ValueError, "num_threads=0"),
    ],
)
def test_what_makes_no_sense_is_refused(ds, fractions, options, error, reason):
    with pytest.raises(error, match=reason):
        ds.split_by(fractions, **options)


@pytest.mark.parametrize(
    ("by", "validation"),
    [
        ("name", [6, 15, 16, 21, 22, 31]),
        ("raw", [3, 12, 16, 21, 25, 34]),
        (None, [4, 5, 9, 18, 20, 28, 30, 31, 37]),
    ],
)
def test_groups_stay_where_they_were(ds, by, validation):
    """A split that was made once is made again by every later shardio: these parts are frozen."""
    parts = ds[:40].split_by({"train": 0.8, "validation": 0.2}, by=by, exact=False, seed=7)
    assert numbers(parts["validation"]) == validation
