"""Damage under each policy: raise, skip and count, quarantine; the order and the number of steps stay."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import warnings
from pathlib import Path

import numpy as np
import pytest

import shardio
from shardio.errors import (
    CorruptBlockError,
    FormatError,
    StorageError,
)
from shardio.order import Plan
from shardio.reader import Damage
from shardio.storage import LocalStore
from shardio_indexer import adopt
from tests.streaming.datasets import flat, flip, hurt, path_of, plan, write
from tests.suites.processes import run_together

pytestmark = [
    pytest.mark.filterwarnings("ignore:damaged records are skipped:UserWarning"),
    pytest.mark.filterwarnings("ignore:some chunks are fetched more than once:UserWarning"),
]
COMPRESSIONS = pytest.mark.parametrize("compression", [None, "zstd"])
THREADS = pytest.mark.parametrize("threads", [0, 2])


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "d"


def make(url, on_error="skip", **options):
    ds = shardio.open(url, on_error=on_error)
    return shardio.stream(ds, **{"global_batch": 6, "plan": plan(), "remainder": "keep", **options})


@COMPRESSIONS
@THREADS
def test_skipped_records_are_missing_and_nothing_else_changes(url, compression, threads):
    """Ranks keep the same number of steps: the plan counts skipped records as consumed."""
    ds = shardio.open(write(url, [70, 30], compression=compression))
    whole = [[batch["n"].tolist() for batch in make(url, rank=r, world_size=3)] for r in range(3)]
    bad = hurt(ds, 33) | hurt(ds, 80)
    for rank in range(3):
        stream = make(url, rank=rank, world_size=3, num_threads=threads)
        got = [batch["n"].tolist() for batch in stream]
        assert len(got) == len(whole[rank]) == len(stream)
        assert got == [[n for n in batch if n not in bad] for batch in whole[rank]]
        missed = sum(n in bad for n in flat(whole[rank]))
        assert stream.components[0].reader.stats["records_skipped"] == missed


@pytest.mark.parametrize(
    "options", [{}, {"transform": lambda v: {"n": v["n"], "x": np.zeros(2, np.float32)}}]
)
def test_a_batch_of_which_all_is_damaged_is_empty_and_like_the_others(url, options):
    ds = shardio.open(write(url, [100]))
    bad = hurt(ds, 0) | hurt(ds, 50)
    batches = list(make(url, shuffle=False, plan=plan(1, 1), global_batch=2, num_threads=0, **options))
    assert len(batches) == 50
    assert sum(not len(batch["n"]) for batch in batches) >= 4
    assert not len(batches[0]["n"])
    assert {tuple(batch) for batch in batches} == {tuple(batches[-1])}
    assert {batch["n"].dtype for batch in batches} == {np.dtype(np.int64)}
    if options:
        assert {batch["x"].shape[1:] for batch in batches} == {(2,)}
    assert sorted(flat(batch["n"].tolist() for batch in batches)) == sorted(set(range(100)) - bad)


def quarantined(folder):
    """Return what is listed in a folder: dataset, shard and row of each record, in the order of the lines."""
    lines = (folder / "shardio-quarantine.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    return [(entry["dataset"], entry["shard"], row) for entry in entries for row in entry["rows"]]


def test_rows_are_listed_once_however_often_a_process_meets_them(url, tmp_path):
    """Epochs and streams meet the same damage; a line that another program has cut is ended first."""
    ds = shardio.open(write(url, [100, 60], compression="zstd"), on_error="quarantine")
    bad = {(ds.source.url, *ds.locate(position)[1:3]) for position in hurt(ds, 33) | hurt(ds, 120)}
    file = tmp_path / "shardio-quarantine.jsonl"
    file.write_text('{"dataset": "a", "sha', encoding="utf-8")
    for seed in range(2):
        stream = shardio.stream(ds, global_batch=6, seed=seed, remainder="keep")
        for _ in range(2):
            list(stream)
    cut, *lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    assert cut == '{"dataset": "a", "sha\n'
    file.write_text("".join(lines), encoding="utf-8")
    assert sorted(quarantined(tmp_path)) == sorted(bad)


LINES = [(100_000 * k + np.arange((k * 7919) % 15_000 + 1)).tolist() for k in range(40)]  # up to 100 KB


def note_rows(rank, url, all_are_open):
    """List rows that no other process lists."""
    source = shardio.open(url, on_error="quarantine").source
    damage = Damage(source, 1)
    warnings.simplefilter("ignore")
    all_are_open.wait()
    for rows in LINES:
        damage.note(FormatError("a block is damaged"), source, f"shard {rank}", rows)


@pytest.mark.slow
def test_processes_that_list_at_once_write_whole_lines(url, tmp_path):
    write(url, [1])
    spawn = multiprocessing.get_context("spawn")
    every = spawn.Barrier(3)
    run_together(spawn, note_rows, [(rank, url, every) for rank in range(3)])
    lines = (tmp_path / "shardio-quarantine.jsonl").read_text(encoding="utf-8").split("\n")
    entries = [json.loads(line) for line in lines if line]
    for rank in range(3):
        rows = flat(entry["rows"] for entry in entries if entry["shard"] == f"shard {rank}")
        assert rows == flat(LINES)


def test_a_line_that_a_full_disk_cut_is_written_again(url, tmp_path):
    source = shardio.open(write(url, [1]), on_error="quarantine").source
    damage = Damage(source, 1)
    error = FormatError("a block is damaged")
    damage.note(error, source, "shard", range(10))
    room = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, room[1]))
    try:
        with pytest.raises(StorageError, match="damage cannot be written down"):
            damage.note(error, source, "shard", range(10, 1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, room)
    damage.note(error, source, "shard", range(10, 1000))
    lines = (tmp_path / "shardio-quarantine.jsonl").read_bytes().splitlines()
    assert len(lines) == 3
    assert len(lines[0]) < 1000 < len(lines[2])
    assert [json.loads(line)["rows"] for line in lines[::2]] == [[*range(10)], [*range(10, 1000)]]


def test_shards_of_one_name_in_a_mixture_are_told_apart(tmp_path, monkeypatch):
    """Adopted shards are called by what their writers called them."""
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        write(tmp_path / "first" / name, [40])
        (tmp_path / name).mkdir()
        written = shardio.open(tmp_path / "first" / name)
        (tmp_path / name / "part-0.tfrecord").write_bytes(path_of(written, 0).read_bytes())
        adopt(tmp_path / name, schema={"n": "int64"})
    readers = [shardio.open(tmp_path / name, on_error="quarantine") for name in "ab"]
    assert readers[0].locate(0).shard == readers[1].locate(0).shard
    for each in readers:
        os.truncate(path_of(each, 0), 100)
    list(shardio.stream(shardio.mix([(each, 1) for each in readers]), global_batch=5, remainder="keep"))
    assert len(set(quarantined(tmp_path))) == 80


@pytest.fixture
def fetched(monkeypatch, tuning):
    """Return what lets files be read as objects of a bucket are, some chunks by each call."""

    def change():
        monkeypatch.setattr(LocalStore, "is_local", False)
        tuning("streaming", group_bytes=3 * 64 * 8)

    return change


@pytest.mark.sampled(2)
@THREADS
@pytest.mark.parametrize(
    ("compression", "where"),
    [
        (None, "fetched"),
        (None, "no frames"),
        (None, "mapped"),
        (None, "read"),
        ("zstd", "fetched"),
        ("zstd", "no frames"),
        ("zstd", "mapped"),
        ("zstd", "read"),
        ("gzip", "mapped"),
    ],
)
def test_damage_under_an_interleaved_plan(fetched, tuning, url, threads, compression, where):
    """Frames are taken from their blocks, and yet nothing is delivered of a block that was not compared."""
    if where in ("fetched", "no frames"):
        fetched()
    if where == "no frames":  # as those of many rows, which do not come with the head of an index
        tuning(frames_bytes=0)
    write(url, [300, 100], compression=compression)
    shape = Plan(ranks=2, workers=1, chunk_rows=64, interleave=2, window=64)
    given = {"plan": shape, "global_batch": 10, "remainder": "keep", "num_threads": threads}

    def opened(**options):
        return shardio.open(url, mmap=where == "mapped", **options)

    chosen = opened().select(np.delete(np.arange(400), np.arange(150, 170)))
    for each in (opened(), chosen):
        wanted = list(map(int, each.selection)) if each is chosen else list(range(400))
        assert sorted(flat(batch["n"].tolist() for batch in shardio.stream(each, **given))) == wanted
    ds = opened()
    bad = hurt(ds, 33) | hurt(ds, 350)
    with pytest.raises(CorruptBlockError) as caught:
        list(shardio.stream(opened(), **given))
    places = {(ds.locate(position).shard, ds.locate(position).row) for position in bad}
    assert (caught.value.shard, caught.value.row) in places
    skipping = opened(on_error="quarantine")
    stream = shardio.stream(skipping, **given)
    assert sorted(flat(batch["n"].tolist() for batch in stream)) == sorted(set(range(400)) - bad)
    entries = [json.loads(line) for line in Path("shardio-quarantine.jsonl").read_text().splitlines()]
    written = {(entry["shard"], row) for entry in entries for row in entry["rows"]}
    assert written == places
    assert skipping.stats["records_skipped"] == len(bad)


@THREADS
@pytest.mark.parametrize("row", [0, 70, 299])
def test_a_damaged_end_of_a_frame_is_told(fetched, url, threads, row):
    """P5: where the index came whole with its head, too, and its frames are dealt without looking again."""
    fetched()
    write(url, [300])
    ds = shardio.open(url, mmap=False)
    (index,) = Path(url).rglob("*.shardidx")
    flip(index, ds.source.pool.get(0).head.frame_stop_offset + 4 * row)
    shape = Plan(ranks=1, workers=1, chunk_rows=64, interleave=2, window=64)
    with pytest.raises(FormatError):
        list(shardio.stream(shardio.open(url, mmap=False), plan=shape, global_batch=10, num_threads=threads))


@THREADS
def test_a_filter_leaves_out_what_is_damaged(url, threads):
    """Under "skip": damaged records are in no part, they are counted, and what is left streams exactly."""
    ds = shardio.open(write(url, [70, 30], compression="zstd"))
    bad = hurt(ds, 33) | hurt(ds, 80)
    with pytest.raises(CorruptBlockError):
        ds.filter(lambda columns: columns["n"] % 2 == 0, features=["n"])
    ds = shardio.open(url, on_error="skip")
    even = ds.filter(lambda columns: columns["n"] % 2 == 0, features=["n"], batch_size=16)
    assert ds.stats["records_skipped"] == len(bad)
    wanted = [n for n in range(0, 100, 2) if n not in bad]
    assert [int(even[k]["n"]) for k in range(len(even))] == wanted
    before = ds.stats["records_skipped"]
    stream = shardio.stream(
        even, global_batch=4, plan=plan(), remainder="keep", rank=0, world_size=2, num_threads=threads
    )
    other = shardio.stream(even, global_batch=4, plan=plan(), remainder="keep", rank=1, world_size=2)
    assert sorted(flat(batch["n"].tolist() for rank in (stream, other) for batch in rank)) == wanted
    assert ds.stats["records_skipped"] == before, "no step of it is shorter"
    # A mask says which records it wants, damaged ones too: those are skipped when they are read.
    masked = ds.filter(np.arange(100) % 2 == 0)
    assert len(masked) == 50
    stream = shardio.stream(masked, global_batch=4, plan=plan(), remainder="keep", num_threads=threads)
    assert len(list(stream)) == len(stream) == 13
