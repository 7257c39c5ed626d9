"""What streams read: of local shards the chunks alone, each record compared with its own checksum.

And what a plan says of it, counted.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import shardio
from shardio.errors import CorruptBlockError
from shardio.order import Plan
from shardio.reader._mapped import MappedRows
from shardio.reader._tuning import TUNING
from shardio.storage import _local as local, _memory
from shardio.streaming import _memory as window_memory, _rows, _stream
from shardio.streaming._memory import Memory
from shardio.streaming._pipeline import PipelineOptions
from shardio.streaming._tuning import TUNING as STREAM_TUNING
from tests.suites.descriptors import open_in

RECORD = 1000
ROWS = 6000
SHAPE = Plan(ranks=4, workers=1, chunk_rows=32, interleave=6, window=32)
linux = pytest.mark.skipif(sys.platform != "linux", reason="counts by /proc")


def value(n: int) -> bytes:
    return n.to_bytes(4, "little") + np.random.default_rng(n).bytes(RECORD - 4)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    for url in (folder / "d", f"memory://{folder.name}/d"):
        with shardio.DatasetWriter(url, shard_bytes=2 << 20) as out:
            for n in range(ROWS):
                out.write(value(n))
    return folder


@pytest.fixture
def url(written, tmp_path):
    """Return a copy that may be damaged."""
    for path in (written / "d").rglob("*"):
        to = tmp_path / "d" / path.relative_to(written / "d")
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            to.write_bytes(path.read_bytes())
    return tmp_path / "d"


def stream(url, **options):
    ds = shardio.open(url, **options)
    return ds, shardio.stream(ds, global_batch=16, plan=SHAPE, num_threads=0, remainder="keep")


def numbers(batches):
    return [int.from_bytes(record[:4], "little") for batch in batches for record in batch["payload"]]


def read() -> int:
    """Return the bytes that this process has asked the system for."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


@linux
@pytest.mark.parametrize("verify", [True, False])
def test_an_epoch_reads_each_chunk_once(written, verify):
    """Chunks of 32 KB end inside blocks of 64 KiB; what is read is at most 1.1 times the shards."""
    ds, batches = stream(written / "d", verify=verify)
    list(batches)  # maps, indexes, modules
    before = read()
    assert sorted(numbers(batches)) == list(range(ROWS))
    assert read() - before <= 1.1 * int(ds.source.table.stored_bytes.sum())


@linux
def test_a_resume_reads_what_is_left(written):
    ds, batches = stream(written / "d")
    list(batches)
    batches.set_epoch(0)
    batches.go_to(len(batches) // 2)
    before = read()
    assert len(numbers(batches)) == ROWS - len(batches) // 2 * 16
    # Rows of one window that are a few records apart are read with what is between them.
    assert read() - before <= 0.62 * int(ds.source.table.stored_bytes.sum())


SELECTIONS = {
    "all": lambda n: True,
    "some": lambda n: n * 2654435769 % 2**32 < 2**32 // 3,
    "few": lambda n: n % 10 == 7,
}


class Reads:
    """Counts the bytes asked of shards: of local ones what the system, of others what the store was asked.

    Where rows are looked at in a map, no system call says so: that is blocks that are compared, as a whole,
    and of others the rows.
    """

    def __init__(self, monkeypatch, *, local):
        self._local, self._bytes, self.requests, inside = local, 0, 0, []
        one, many = _memory._MemoryFile.read, _memory._MemoryFile.read_many

        def read_one(file, start, stop):
            if not inside and file.url.endswith(".tfrecord"):
                self._bytes += stop - start
                self.requests += 1
            return one(file, start, stop)

        def read_many(file, starts, stops):
            if file.url.endswith(".tfrecord"):
                self._bytes += int(np.sum(stops) - np.sum(starts))
                self.requests += len(starts)
            inside.append(True)
            try:
                return many(file, starts, stops)
            finally:
                inside.pop()

        looked = MappedRows.places

        def places(shard, rows):
            head, blocks = shard._head, shard._head.blocks_of(rows)
            known = np.frombuffer(shard._seen, np.uint8)[blocks] == 1
            self._bytes += sum(b - a for a, b in map(head.block_bounds, np.unique(blocks[~known]).tolist()))
            self._bytes += int(known.sum()) * (RECORD + 16)
            return looked(shard, rows)

        monkeypatch.setattr(MappedRows, "places", places)
        monkeypatch.setattr(_memory._MemoryFile, "read", read_one)
        monkeypatch.setattr(_memory._MemoryFile, "read_many", read_many)

    def __call__(self):
        return self._bytes + read() if self._local else self._bytes


def fresh(url, verify, which):
    """Return a stream whose shards are open and of which no block was compared, and its figures."""
    # Chunks that end inside blocks, which have 64 of these records.
    batch = 16 if which == "few" else 64
    rows = 5 if which == "few" else 23
    plan = replace(SHAPE, chunk_rows=rows, window=rows)
    options = {"global_batch": batch, "plan": plan, "remainder": "keep"}
    ds = shardio.open(url, verify=verify)
    for number in range(len(ds.source.table.key)):
        ds.source.pool.get(number)
    if which != "all":
        ds = ds.select([n for n in range(ROWS) if SELECTIONS[which](n)])
    batches = shardio.stream(ds, num_threads=0, ahead_bytes=1, **options)
    return batches, shardio.plan_report(ds, **options)[0]


# Each two of these come together.
READ = [
    (True, True, "all"),
    (True, False, "some"),
    (False, True, "few"),
    (False, False, "few"),
    (False, False, "all"),
]


@linux
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("local", "verify", "which"), READ)
def test_a_plan_says_what_is_read(written, monkeypatch, local, verify, which):
    """Steps exactly, requests and bytes of an epoch within a fifth."""
    url = written / "d" if local else f"memory://{written.name}/d"
    counted = Reads(monkeypatch, local=local)
    list(fresh(url, verify, which)[0])  # modules
    batches, figures = fresh(url, verify, which)
    begin, asked = counted(), counted.requests
    assert len(list(batches)) == figures.steps
    if not local:
        assert counted.requests - asked == pytest.approx(figures.requests, rel=0.2)
        assert counted() - begin == pytest.approx(figures.fetched_bytes, rel=0.2)


@pytest.mark.parametrize("which", list(SELECTIONS))
@pytest.mark.parametrize("local", [True, False])
def test_a_plan_says_what_is_held(written, monkeypatch, local, which):
    """Of a selection its records alone, whatever the blocks are in which they lie."""
    batches, figures = fresh(written / "d" if local else f"memory://{written.name}/d", True, which)
    alive, most = [], []

    def tracked(load):
        def loaded(*args, **options):
            data = load(*args, **options)
            for each in data if isinstance(data, list) else [data]:
                alive.append(size := sum(map(len, each.buffers)))
                weakref.finalize(each, alive.remove, size)
            most.append(sum(alive))
            return data

        return loaded

    for name in ("load_window", "load_parts"):
        monkeypatch.setattr(_stream, name, tracked(getattr(_stream, name)))
    list(batches)
    assert 0.2 * figures.memory_bytes < max(most) < figures.memory_bytes, (max(most), figures)
    monkeypatch.undo()


@pytest.mark.parametrize("place", [0, 9, 13, RECORD + 14])
def test_a_damaged_record_is_an_error_with_its_address(url, place):
    """A bit of the length, its checksum, the payload, or the payload's checksum."""
    ds = shardio.open(url)
    where = ds.locate(777)
    path = Path(where.url.removeprefix("file://"))
    data = bytearray(path.read_bytes())
    data[where.start + place] ^= 1
    path.write_bytes(data)
    for verify in (True, False):
        _, batches = stream(url, verify=verify)
        if verify:
            with pytest.raises(CorruptBlockError) as caught:
                numbers(batches)
            assert caught.value.start <= where.start < caught.value.stop
        else:
            assert len(numbers(batches)) == ROWS


# Records from 4 KiB on stay in their files until they are delivered.

MANY = 900
_TAKE = Memory.take


def large(n: int) -> bytes:
    return n.to_bytes(4, "little") + np.random.default_rng(n).bytes(4900 + n % 300)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    with shardio.DatasetWriter(folder / "d", shard_bytes=400_000) as out:
        for n in range(MANY):
            out.write(large(n))
    return folder / "d"


@pytest.fixture
def unread(pristine, tmp_path, monkeypatch):
    """Return a copy that may be damaged, whose windows are not to be read."""

    def refuse(*_: object) -> None:
        raise AssertionError("a window was read")

    monkeypatch.setattr(Memory, "take", refuse)
    shutil.copytree(pristine, tmp_path / "d")
    return tmp_path / "d"


def shards(url):
    return sorted((url / "data").glob("*.tfrecord"))


def records(batches):
    return [record for batch in batches for record in batch["payload"]]


def large_stream(ds, **options):
    return shardio.stream(ds, **{"global_batch": 16, "plan": SHAPE, "remainder": "keep", **options})


def all_of(ds):
    return ds


def select_some(ds):
    return ds.select([n for n in range(MANY) if n % 7 < 3])


def slice_some(ds):
    return ds[100:500]


@linux
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    "part", [lambda ds: ds, select_some, lambda ds: ds[100:500]], ids=["all", "some", "slice"]
)
def test_records_that_stay_in_their_files_are_delivered_as_any_others(
    unread, monkeypatch, threads, verify, part
):
    def made(**options):
        ds = part(shardio.open(unread, verify=verify, **options))
        return large_stream(ds, num_threads=threads)

    with monkeypatch.context() as whole:
        whole.setattr(Memory, "take", _TAKE)
        wanted = records(made(mmap=False))
    before, found = read(), records(made())
    assert found == wanted
    assert read() - before < 1.1 * sum(map(len, found)) + 200_000  # indexes, and frames' heads and ends
    later = made()
    later.go_to(len(later) // 2)
    assert records(later) == wanted[16 * (len(later) // 2) :]


@pytest.mark.parametrize("options", [{}, {"on_error": "skip"}, {"mmap": False}], ids=str)
def test_a_plan_says_what_is_held_of_records_that_stay_in_their_files(pristine, monkeypatch, options):
    """What says where they are; the records themselves where windows are read when they begin."""
    ds = shardio.open(pristine, **options)
    alive, most = [], [0]

    def tracked(load):
        def loaded(*args, **given):
            data = load(*args, **given)
            for each in data if isinstance(data, list) else [data]:
                read = 0 if each.unread else sum(map(len, each.buffers))
                alive.append(size := each.table.nbytes + read)
                weakref.finalize(each, alive.remove, size)
            most.append(max(most[-1], sum(alive)))
            return data

        return loaded

    for name in ("load_window", "load_parts"):
        monkeypatch.setattr(_stream, name, tracked(getattr(_stream, name)))
    figures = shardio.plan_report(ds, global_batch=16, plan=SHAPE, remainder="keep")[0]
    assert len(records(large_stream(ds, num_threads=0, ahead_bytes=1))) == MANY
    assert 0 < most[-1] < figures.memory_bytes


@linux
def test_a_plan_says_what_the_system_is_asked_for(unread, monkeypatch):
    """Windows are asked for ahead, records are read when they are delivered."""
    ds = shardio.open(unread)
    asked, real = [], local.OpenFiles.advise

    def advise(files, which, starts, stops):
        asked.append(int((stops - starts).sum()))
        real(files, which, starts, stops)

    monkeypatch.setattr(local.OpenFiles, "advise", advise)
    stream = large_stream(ds, num_threads=0, ahead_bytes=1)
    figures = shardio.plan_report(ds, global_batch=16, plan=SHAPE, remainder="keep")[0]
    batches = iter(stream)
    next(batches)
    assert 0 < sum(asked) < 0.5 * figures.epoch_bytes
    list(batches)
    assert sum(asked) == pytest.approx(figures.fetched_bytes, rel=0.1)


@linux
@pytest.mark.parametrize("threads", [0, 2])
def test_memory_of_batches_is_used_again_but_not_below_a_view(tmp_path, monkeypatch, threads):
    """What the system clears is dear; a batch that is held, or a row of it, stays what it is."""
    made, mapped = [], window_memory._mapped

    def counting(size):
        made.append(size)
        return mapped(size)

    monkeypatch.setattr(window_memory, "_mapped", counting)
    for module in (window_memory, _rows):
        monkeypatch.setattr(module, "TUNING", replace(STREAM_TUNING, huge_page=1 << 15))
    values = np.random.default_rng(0).integers(0, 1 << 30, (MANY, 1100), dtype=np.int32)
    with shardio.DatasetWriter(tmp_path / "d", schema={"x": "int32[1100]"}, encoding="array") as out:
        for row in values:
            out.write(row)
    ds = shardio.open(tmp_path / "d")

    def batches():
        return large_stream(ds, num_threads=threads, positions=True, ahead_bytes=1)

    for batch in batches():
        assert (batch["x"] == values[batch["_position"]]).all()
        del batch
    steps = -(-MANY // 16)
    assert 0 < len(made) < steps / 4
    made.clear()
    held = [(batch["x"], batch["_position"]) for batch in batches()]
    assert len(made) >= steps - 1  # each step is a group here, and the last one small
    rows = [(x[3:5], positions[3:5]) for x, positions in held]
    for x, positions in held:
        assert (x == values[positions]).all()
    del held, x, positions
    for batch in batches():
        assert (batch["x"] == values[batch["_position"]]).all()
    for x, positions in rows:
        assert (x == values[positions]).all()


@linux
def test_what_is_kept_of_the_memory_of_batches_is_bounded():
    memory = Memory(mapped=True, most=1 << 20)
    leased = [np.asarray(memory.take(300_000))[:100] for _ in range(8)]
    places = {each.__array_interface__["data"][0] for each in leased}
    assert len(places) == 8
    del leased
    kept = [memory.take(300_000) for _ in range(8)]
    assert len(places & {each.bytes.__array_interface__["data"][0] for each in kept}) >= 3
    assert len(memory._free) == 0
    del kept
    assert sum(len(each) for those in memory._free.values() for each in those) <= 1 << 20


@linux
def test_deleted_records_are_left_out(unread):
    shardio.delete(unread, range(50, 400))
    found = records(large_stream(shardio.open(unread)))
    assert sorted(found) == sorted(large(n) for n in range(MANY) if not 50 <= n < 400)


@linux
@pytest.mark.parametrize("verify", [True, False])
def test_a_mixture_has_records_of_both_kinds(pristine, written, verify):
    def made(**options):
        parts = [
            (shardio.open(pristine, **options), 1),
            (shardio.open(written / "d", verify=verify, **options), 2),
        ]
        return shardio.stream(shardio.mix(parts), global_batch=16, plan=SHAPE, num_threads=2, positions=True)

    for found, wanted in zip(made(), made(mmap=False), strict=True):
        assert found["payload"] == wanted["payload"]
        assert {len(record) > RECORD for record in found["payload"]} == {True, False}
        assert (found["_position"] == wanted["_position"]).all()


@linux
def test_a_mixture_may_compare_some_of_what_stays_in_files(pristine):
    def made(**options):
        parts = [(shardio.open(pristine, verify=verify, **options), 1) for verify in (True, False)]
        return shardio.stream(shardio.mix(parts), global_batch=16, plan=SHAPE, num_threads=2)

    wanted = records(made(mmap=False))
    assert records(made()) == wanted


@linux
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("place", [3, 9, 100, -2], ids=["length", "length's checksum", "payload", "checksum"])
def test_damage_is_found_when_its_record_is_delivered(unread, monkeypatch, threads, place):
    monkeypatch.undo()  # a block is compared, so a window is read
    ds = shardio.open(unread)
    stream = shardio.stream(
        ds, global_batch=16, plan=SHAPE, num_threads=threads, positions=True, remainder="keep"
    )
    steps = [batch["_position"].tolist() for batch in stream]
    number, row = ds.source.shard_of(500)
    frame = ds.source.pool.get(number).in_place.find_frames(np.array([row]))
    start, size = int(frame.starts[0]), int(frame.lengths[0]) + 16
    path = unread / ds.source.table.key[number]
    data = bytearray(path.read_bytes())
    data[start + place % size] ^= 1
    path.write_bytes(data)
    found = []
    with pytest.raises(CorruptBlockError) as caught:
        found.extend(large_stream(shardio.open(unread), num_threads=threads, positions=True))
    assert [batch["_position"].tolist() for batch in found] == steps[: len(found)]
    assert 500 in steps[len(found)]
    assert caught.value.shard == ds.source.table.key[number]
    block = ds.source.pool.get(number)
    first, last = block.head.block_bounds(int(block.head.blocks_of(np.array([row]))[0]))
    assert first <= caught.value.start < caught.value.stop <= last


@linux
@pytest.mark.parametrize("size", [RECORD, 5000])
@pytest.mark.parametrize("threads", [0, 2])
def test_damage_that_came_after_a_block_was_compared_is_not_delivered(tmp_path, threads, size):
    """A frame that is wrong is known to be: that its block was right once does not count any more."""
    with shardio.DatasetWriter(tmp_path / "d", shard_bytes=400_000) as out:
        for n in range(MANY):
            out.write(np.random.default_rng(n).bytes(size))
    ds = shardio.open(tmp_path / "d")
    assert len(list(ds)) == MANY  # every block is compared, by its map
    number, row = ds.source.shard_of(500)
    start = int(ds.source.pool.get(number).in_place.find_frames(np.array([row])).starts[0])
    with (tmp_path / "d" / ds.source.table.key[number]).open("r+b") as file:
        file.seek(start + 100)
        byte = file.read(1)[0]
        file.seek(start + 100)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(CorruptBlockError):
        records(large_stream(ds, num_threads=threads))


@linux
def test_what_is_ahead_is_bounded_where_windows_are_held(pristine, unread, monkeypatch):
    """Streams that skip damage hold their windows."""
    monkeypatch.undo()
    seen, real = [], PipelineOptions.from_stream

    def of(*args, **options):
        seen.append((all(each.unread for each in options["read"]), real(*args, **options)))
        return seen[-1][1]

    monkeypatch.setattr(PipelineOptions, "from_stream", of)
    for options in ({}, {"on_error": "skip"}):
        list(large_stream(shardio.open(pristine, **options)))
    assert [(stay, found.ahead_bytes >> 20) for stay, found in seen] == [(True, 64), (False, 16)]


def count_open_files(monkeypatch):
    """Note how many files each reading of rows finds open."""
    found, real = [], local.OpenFiles.__enter__

    def enter(files):
        found.append(len(files._files))
        return real(files)

    monkeypatch.setattr(local.OpenFiles, "__enter__", enter)
    return found


@linux
def test_descriptors_are_left_to_others(unread, monkeypatch):
    """A process that may have few has few more open while rows are read."""
    counts = count_open_files(monkeypatch)
    monkeypatch.setattr("shardio.reader._mapped.descriptor_limit", lambda: 32)
    assert len(records(large_stream(shardio.open(unread)))) == MANY
    assert max(counts) == 4


def cut(path):
    os.truncate(path, 100)


def replace_by_another(path):
    path.with_suffix(".new").write_bytes(b"?" * path.stat().st_size)
    path.with_suffix(".new").replace(path)


@linux
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("change", [Path.unlink, replace_by_another])
def test_files_that_lose_their_names_are_read_to_the_end(unread, monkeypatch, threads, change):
    """They are mapped as they were: what was there is delivered."""
    monkeypatch.undo()
    stream = large_stream(shardio.open(unread), num_threads=threads, ahead_bytes=1)
    wanted, found = records(stream), []
    stream.set_epoch(0)
    for step, batch in enumerate(stream):
        found += batch["payload"]
        if step == 10:
            for path in shards(unread):
                change(path)
    assert found == wanted


@linux
@pytest.mark.parametrize("threads", [0, 2])
def test_a_file_that_is_cut_is_an_error_and_no_signal(unread, threads):
    stream = large_stream(shardio.open(unread), num_threads=threads, ahead_bytes=1)

    def go():
        for step, _ in enumerate(stream):
            if step == 10:
                for path in shards(unread):
                    cut(path)

    with pytest.raises(CorruptBlockError, match=r"cut or changed|ends before"):
        go()


@linux
@pytest.mark.parametrize("threads", [0, 2])
def test_without_descriptors_the_maps_are_read(unread, monkeypatch, threads):
    monkeypatch.undo()
    wanted = records(large_stream(shardio.open(unread)))
    ds = shardio.open(unread)
    for number in range(len(ds.source.table.key)):
        ds.source.pool.get(number)
    real = local.open_file

    def refuse(path, flags):
        if path.endswith(".tfrecord"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, flags)

    monkeypatch.setattr(local, "open_file", refuse)
    stream = large_stream(ds, num_threads=threads)
    assert records(stream) == wanted


@linux
def test_few_files_are_open_at_once(unread, monkeypatch):
    wanted = records(large_stream(shardio.open(unread)))
    counts = count_open_files(monkeypatch)
    monkeypatch.setattr("shardio.reader._mapped.TUNING", replace(TUNING, files=3))
    assert records(large_stream(shardio.open(unread))) == wanted
    assert max(counts) == 3
    assert not open_in(unread)
