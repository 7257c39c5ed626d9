"""Iteration and streams obey `on_error` alike: the same records left out, the same count, the same list."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import fsspec
import pytest

import shardio
from shardio.errors import (
    FormatError,
    NotFoundError,
    ShardioError,
    StorageError,
    UnsupportedVersionError,
)
from shardio.reader import SuppressCorruption
from tests.streaming.datasets import edited, hurt, memory_url, path_of, root, write
from tests.suites.errors import refused

pytestmark = pytest.mark.filterwarnings("ignore:damaged records are skipped:UserWarning")
FILE = Path("shardio-quarantine.jsonl")


@pytest.fixture
def url(tmp_path, monkeypatch):
    """Where a dataset may be; its parent is the working directory, where the list of damage is written."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "d"


# Each makes a dataset with damage and returns how to open it and the positions of what is damaged.


def compressed_blocks(url):
    ds = shardio.open(write(url, [100, 60], compression="zstd"))
    return {}, hurt(ds, 33) | hurt(ds, 60) | hurt(ds, 159)


def mapped_blocks(url):
    ds = shardio.open(write(url, [100, 60]))
    return {}, hurt(ds, 0) | hurt(ds, 99) | hurt(ds, 100)


def remote_blocks(url):
    ds = shardio.open(write(url, [40] * 4))
    return {}, hurt(ds, 3) | hurt(ds, 70) | hurt(ds, 119)


def single_records(url):
    """Each record is a block of its own, so damage costs no other."""
    ds = shardio.open(write(url, [50, 40], block_bytes=16))
    return {}, hurt(ds, 7) | hurt(ds, 49)


def undecodable_payloads(url):
    def value(n):
        out = io.BytesIO()
        Image.new("L", (2, 2), n).save(out, "PNG")
        return {"n": n, "image": b"\x89PNG\r\n\x1a\n, no more" if n in (3, 4, 49) else out.getvalue()}

    from PIL import Image

    write(url, [30, 20], schema={"n": "int64", "image": "png"}, value=value)
    return {"decode": "image"}, {3, 4, 49}


def missing_shard(url):
    ds = shardio.open(write(url, [30, 20, 10]))
    path_of(ds, 30).unlink()
    return {}, set(range(30, 50))


def short_shard(url):
    ds = shardio.open(write(url, [30, 20]))
    os.truncate(path_of(ds, 0), 100)
    return {}, set(range(30))


def missing_remote_index(url):
    ds = shardio.open(write(url, [20] * 5))
    fs, path = fsspec.url_to_fs(ds.locate(60).url)
    fs.rm(path + ".shardidx")
    return {}, set(range(60, 80))


CASES = pytest.mark.parametrize(
    "make",
    [
        compressed_blocks,
        mapped_blocks,
        remote_blocks,
        single_records,
        undecodable_payloads,
        missing_shard,
        short_shard,
        missing_remote_index,
    ],
)


@pytest.fixture
def damaged(make, url):
    place = memory_url() if "remote" in make.__name__ else url
    options, bad = make(place)
    return lambda on_error: shardio.open(place, on_error=on_error, **options), bad


def numbers(values):
    return [int(value["n"]) for value in values]


def in_order(ds):
    return numbers(ds)


def by_the_batch(ds):
    return [int(n) for batch in ds.iter_batches(7) for n in batch["n"]]


def streamed(ds):
    stream = shardio.stream(ds, global_batch=7, shuffle=False, remainder="keep")
    return [int(n) for batch in stream for n in batch["n"]]


def listed():
    """Return the records of the list of damage, and what else is there, by shard and row."""
    entries = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    FILE.unlink()
    found = {}
    for entry in entries:
        if "start" in entry:
            assert entry["start"] < entry["stop"]
            assert entry["expected"] != entry["found"]
        for row in entry["rows"]:
            assert (entry["shard"], row) not in found, "written down twice"
            found[entry["shard"], row] = (
                entry["error"],
                re.sub(" at 0x[0-9a-f]+", "", entry["what"]),  # Pillow names an object by its address
                entry.get("url"),
            )
    return found


@CASES
def test_damage_is_left_out_counted_and_listed(damaged):
    """The list says what, where and why, each record once, the same whatever reads."""
    open_with, bad = damaged
    lists = []
    for on_error in ("skip", "quarantine"):
        for read in (in_order, by_the_batch, streamed):
            ds = open_with(on_error)
            assert read(ds) == [n for n in range(len(ds)) if n not in bad]
            assert ds.stats["records_skipped"] == len(bad)
            assert FILE.exists() == (on_error == "quarantine")
            lists += [listed()] if FILE.exists() else []
    assert lists[0] == lists[1] == lists[2]
    assert len(lists[0]) == len(bad)


@pytest.mark.sampled(4)
@CASES
def test_by_default_the_first_damage_is_raised_in_its_turn(make, damaged):
    open_with, bad = damaged
    seen = []
    with pytest.raises((FormatError, NotFoundError, ShardioError)) as caught:
        for value in open_with("raise"):
            seen.append(int(value["n"]))  # noqa: PERF401 - what came before the error
    assert caught.value.shard is not None
    assert seen == list(range(len(seen)))
    assert len(seen) <= min(bad)
    if "missing" in make.__name__:
        assert len(seen) == min(bad), "the shards before it are whole"


@CASES
def test_lookups_always_raise(damaged):
    open_with, bad = damaged
    ds, wrong = open_with("skip"), min(bad)
    whole = min(set(range(len(ds))) - bad)
    assert numbers([ds[whole], *ds.read([whole])]) == [whole, whole]
    for look in (lambda: ds[wrong], lambda: ds.read([whole, wrong]), lambda: ds.read_batch([wrong, whole])):
        with pytest.raises(ShardioError) as caught:
            look()
        assert caught.value.shard is not None
    assert ds.stats["records_skipped"] == 0


@CASES
def test_lookups_return_errors_in_place_of_damaged_records(damaged):
    open_with, bad = damaged
    ds = open_with("raise")
    asked = [*range(len(ds)), *sorted(bad)[:3], 1, 1]
    found = ds.read(asked, on_error="return")
    assert [isinstance(value, ShardioError) for value in found] == [position in bad for position in asked]
    for position, value in zip(asked, found, strict=True):
        if position in bad:
            assert value.shard is not None
        else:
            assert value["n"] == position
    with refused(ValueError, "'skip'", "on_error="):
        ds.read([0], on_error="skip")


@pytest.mark.sampled(4)
@CASES
def test_parts_of_a_reader_obey_too(damaged):
    open_with, bad = damaged
    ds = open_with("skip")
    for cut in (slice(2, None), slice(None, None, 3), slice(None, None, -1), slice(5, -4)):
        assert numbers(ds[cut]) == [n for n in range(len(ds))[cut] if n not in bad]
    places = [*range(len(ds)), min(bad), 1, 0, min(bad)][::-1]
    assert numbers(ds.select(places)) == [n for n in places if n not in bad]


def test_rows_that_were_deleted_are_not_missed(url):
    ds = shardio.open(write(url, [60, 30], compression="zstd"), on_error="skip")
    bad = hurt(ds, 20) | hurt(ds, 75)
    gone = [0, *range(19, 21), 58, 59]
    some = edited(ds, deleted={0: gone, 1: [15]})
    left = [n for n in range(90) if n not in {*gone, 75}]
    assert numbers(some) == [n for n in left if n not in bad]
    assert some.stats["records_skipped"] == len(bad - {*gone, 75})


def test_it_is_said_once_in_a_pass(url):
    ds = shardio.open(write(url, [100, 60]), on_error="skip")
    hurt(ds, 33), hurt(ds, 120)
    for read in (in_order, in_order, streamed):
        with pytest.warns(UserWarning, match="damaged records are skipped: ") as caught:
            read(ds)
        assert len(caught) == 1


def test_skipping_is_bounded(url):
    """Past one record in a hundred, and a thousand of them, the data is not worth training on."""
    ds = shardio.open(write(url, [3000], block_bytes=40_000), on_error="skip")
    assert sum(len(hurt(ds, position)) for position in (0, 1500, 2999)) > 1000
    for read in (in_order, streamed):
        with pytest.raises(FormatError) as caught:
            read(shardio.open(url, on_error="skip"))
        assert caught.value.expected == "at most 1000 records skipped"


def test_an_environment_that_fails_is_not_damage(url, monkeypatch):
    ds = shardio.open(write(memory_url(), [40, 40]), on_error="skip")

    def fail(*_args, **_options):
        raise StorageError("the network is down", url=ds.source.url)

    monkeypatch.setattr(type(root(ds)), "open", fail)
    with pytest.raises(StorageError, match="the network is down"):
        list(ds)
    assert ds.stats["records_skipped"] == 0


def test_what_a_newer_shardio_wrote_is_not_damage():
    """It is whole: it must not be left out, but read by that one."""
    with pytest.raises(UnsupportedVersionError), SuppressCorruption() as skipped:
        raise UnsupportedVersionError("an index was written by a newer shardio")
    assert skipped.error is None


def test_damage_costs_one_run_more(url, tuning):
    """The run that failed is taken block by block, once; the rest is read in large runs as ever."""
    tuning(run_bytes=1 << 11, mapped_run_bytes=1 << 11)
    ds = shardio.open(write(url, [4000], compression="zstd"), on_error="skip")
    bad = hurt(ds, 2000) | hurt(ds, 2500) | hurt(ds, 3000)
    blocks = ds.source.pool.get(0).head.blocks
    ds = shardio.open(url, on_error="skip")
    assert numbers(ds) == [n for n in range(4000) if n not in bad]
    assert ds.stats["blocks_opened"] < blocks + 100
