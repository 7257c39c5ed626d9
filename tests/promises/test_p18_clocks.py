"""P18: nothing depends on the local clock or on a lock."""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

import shardio
from shardio.metadata import naming
from shardio.storage import BlockCache, CacheOptions, connect
from tests.promises.deeds import BASE, DEEDS, prepared, seen, with_columns
from tests.promises.places import PLACES, fresh

EVERY_PLACE = pytest.mark.parametrize("place", PLACES)


@pytest.fixture
def jumping_clock(monkeypatch) -> None:
    """Clocks that jump over centuries, backwards and forwards, at every look."""
    dice = random.Random(1)

    def jump(*_: object) -> float:
        return dice.uniform(0, 4e9)

    for name in ("time", "monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, jump)
    now = SimpleNamespace(now=lambda _zone: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=jump()))
    monkeypatch.setattr("shardio.catalog._commit.datetime", now)


@pytest.fixture
def idle_locks(monkeypatch) -> None:
    """Locks of files that do nothing, as on some network mounts."""
    for name in ("flock", "lockf"):
        monkeypatch.setattr(fcntl, name, lambda *_: None)


@pytest.mark.sampled(3)
@EVERY_PLACE
@pytest.mark.parametrize("deed", [name for name, deed in DEEDS.items() if deed.begins == "ds"])
def test_clocks_that_jump_and_locks_that_do_nothing(deed, place, tmp_path, jumping_clock, idle_locks):
    """P18: clock jumps, locks that do nothing: the same happens."""
    url = fresh(place, tmp_path)
    if DEEDS[deed].columns:
        with_columns(url)
    elif not DEEDS[deed].empty:
        prepared(url)
        connect(url).overwrite(naming.HINT_KEY, b"1")
        assert seen(url) == BASE
    DEEDS[deed].do(url)
    # From the first version upward, past versions of any date.
    connect(url).overwrite(naming.HINT_KEY, b"1")
    assert seen(url) == DEEDS[deed].after


def test_times_of_files_mean_nothing(tmp_path):
    """Copied, restored and touched datasets have any times; the numbers in the names count."""
    url = str(tmp_path / "ds")
    prepared(url)
    paths = [path for path in Path(url).rglob("*") if path.is_file()]
    times = itertools.cycle([0, 4_000_000_000, 1_000_000_000])
    for path in random.Random(2).sample(paths, len(paths)):
        stamp = next(times)
        os.utime(path, (stamp, stamp))
    assert seen(url) == BASE
    assert shardio.gc(url).unclaimed.keys() == {"left-alone"}, "nothing is abandoned because it is old"
    DEEDS["gc"].do(url)
    assert seen(url) == BASE


def test_a_cache_of_any_age_is_right_and_within_its_bound(tmp_path, idle_locks):
    """P10, P18: the times of entries only choose which goes first; they may be in any century."""
    cache = BlockCache(CacheOptions(tmp_path, max_bytes=100_000))
    dice = random.Random(3)
    for number in range(150):
        cache.put(f"n{number}", b"%d " % number * 500)
        assert cache.get(f"n{number}") == b"%d " % number * 500
        for path in tmp_path.rglob("*.block"):
            if dice.random() < 0.1:
                os.utime(path, (dice.uniform(0, 8e9), dice.uniform(0, 8e9)))
    found = [cache.get(f"n{number}") for number in range(150)]
    assert all(data in {None, b"%d " % number * 500} for number, data in enumerate(found))
    assert 20_000 < cache.usage().num_bytes <= 100_000
