"""The block cache is only a cache: never wrong, bounded, and careful with what is not its own."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import pathlib
import pickle
import random
import resource
import signal
import stat
import struct
import subprocess
import sys

import pytest
from hypothesis import given, settings, strategies as st

from shardio.kernels import crc32c
from shardio.storage import BlockCache, CacheOptions
from tests.suites.errors import refused

MAGIC = b"SHRDBLK3"


def block(name: str, size: int = 3000) -> bytes:
    """What belongs to a name: made from it, so that a test can tell whether it is right."""
    seed = hashlib.sha256(name.encode()).digest()
    return (seed * (size // 32 + 1))[:size]


def files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def cache(tmp_path: pathlib.Path) -> BlockCache:
    return BlockCache(CacheOptions(tmp_path, max_bytes=1 << 20))


def test_what_was_stored_is_found(cache: BlockCache) -> None:
    assert cache.get("a/1") is None
    cache.put("a/1", b"bytes")
    cache.put("a/2", memoryview(b"xxbytes of twoxx")[2:-2])
    cache.put("empty", b"")
    assert cache.get("a/1") == b"bytes"
    assert cache.get("a/2") == b"bytes of two"
    assert cache.get("empty") == b""
    assert pickle.loads(pickle.dumps(cache)).get("a/1") == b"bytes"


def test_making_one_touches_nothing(tmp_path: pathlib.Path) -> None:
    cache = BlockCache(CacheOptions(tmp_path / "no" / "such", max_bytes=1))
    assert cache.get("a") is None
    assert cache.usage().entries == 0
    assert not (tmp_path / "no").exists()


def test_a_bound_of_nothing_is_the_callers_mistake() -> None:
    with refused(ValueError, "max_bytes"):
        CacheOptions("x", max_bytes=0)


def name_of(number: int) -> str:
    return f"shard-{number}"


RUNS = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 150)), min_size=1, max_size=6)


@settings(max_examples=max(30, settings().max_examples // 5))
@given(runs=RUNS, looked=st.tuples(st.integers(0, 300), st.integers(1, 200)))
def test_blocks_of_any_runs_are_found(runs, looked, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever runs were stored, any other run finds exactly their blocks."""
    cache = BlockCache(CacheOptions(tmp_path_factory.mktemp("cache"), max_bytes=1 << 30))
    stored: set[int] = set()
    for first, count in runs:
        numbers = range(first, first + count)
        cache.keep(name_of, first, [memoryview(block(name_of(n), n % 50)) for n in numbers])
        stored.update(numbers)
    first, stop = looked[0], looked[0] + looked[1]
    found: set[int] = set()
    before = first
    for piece in cache.find(name_of, first, stop):
        assert before <= piece.first < piece.stop <= stop
        before = piece.stop
        numbers = range(piece.first, piece.stop)
        assert piece.data == b"".join(block(name_of(n), n % 50) for n in numbers)
        found.update(numbers)
    assert found == stored & set(range(first, stop))


def test_it_stays_within_its_bound_and_keeps_what_is_used(tmp_path: pathlib.Path) -> None:
    cache = BlockCache(CacheOptions(tmp_path, max_bytes=100_000))
    cache.put("loved", block("loved"))
    for number in range(200):
        cache.put(f"n{number}", block(f"n{number}"))
        assert cache.get("loved") == block("loved")
        assert sum(path.stat().st_size for path in files(tmp_path)) <= 100_000
    assert cache.get("n199") == block("n199")
    assert cache.get("n0") is None
    assert cache.usage().num_bytes > 50_000


def test_what_is_too_large_is_not_stored(tmp_path: pathlib.Path) -> None:
    cache = BlockCache(CacheOptions(tmp_path, max_bytes=10_000))
    cache.put("large", bytes(5_000))
    assert files(tmp_path) == []


def test_only_its_own_files_are_removed(cache: BlockCache, tmp_path: pathlib.Path) -> None:
    """P10: the cache deletes only what it made, even from its own folder."""
    cache.put("a", b"1")
    (entry,) = files(tmp_path)
    foreign = [
        tmp_path / "thesis.tex",
        entry.with_name("notes.txt"),
        entry.parent.parent / "notes.txt",
        entry.with_name("0" * 64 + ".block"),  # a name like an entry's, but not its content
        entry.with_name("1" * 64 + ".block.bak"),
    ]
    for path in foreign:
        path.write_bytes(b"precious and mine")
    target = tmp_path / "target"
    target.write_bytes(b"SHRDBLK3 precious")
    entry.with_name("2" * 64 + ".block").symlink_to(target)
    small = BlockCache(CacheOptions(tmp_path, max_bytes=1_000))
    for number in range(50):
        small.put(f"n{number}", b"x" * 50)
    held = cache.usage().entries
    # What only looks like an entry is counted, and never removed.
    assert cache.clear().entries == held - 1 > 0
    assert all(path.read_bytes() == b"precious and mine" for path in foreign)
    assert target.exists()
    assert cache.get("a") is None
    assert cache.usage().entries == 1  # the one that only looks like an entry


def test_a_foreign_file_in_an_entrys_place_stays(cache: BlockCache, tmp_path: pathlib.Path) -> None:
    cache.put("a", b"1")
    (entry,) = files(tmp_path)
    entry.write_bytes(b"precious and mine")
    cache.put("a", b"1")
    assert entry.read_bytes() == b"precious and mine"
    assert cache.get("a") is None
    assert files(tmp_path) == [entry]


def test_clear_removes_its_folder(cache: BlockCache, tmp_path: pathlib.Path) -> None:
    cache.put("a", b"1")
    usage = cache.usage()
    assert (usage.entries, usage.num_bytes) == (1, files(tmp_path)[0].stat().st_size)
    assert cache.clear() == usage
    assert list(tmp_path.iterdir()) == []
    cache.put("a", b"1")
    assert cache.get("a") == b"1"


def test_entries_are_for_their_owner_alone(cache: BlockCache, tmp_path: pathlib.Path) -> None:
    cache.put("a", b"1")
    (entry,) = files(tmp_path)
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    assert stat.S_IMODE(entry.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_disk_out_of_order_never_fails_a_read(
    cache: BlockCache,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    tmp_path: pathlib.Path,
) -> None:
    """P11: a full disk never fails a read, and is told once."""
    cache.put("before", b"1")

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr("shardio.storage._cache.os.writev", refuse)
        for k in range(300):
            cache.put(f"n{k}", b"x")
            assert cache.get(f"n{k}") is None
        assert cache.get("before") == b"1"
    assert len(caplog.records) == 1
    assert os.strerror(number) in caplog.text
    assert len(files(tmp_path)) == 1
    for k in range(300):
        cache.put(f"n{k}", b"x")
    assert cache.get("n299") == b"x"


@pytest.mark.slow
def test_a_write_that_fails_half_way_leaves_nothing(tmp_path: pathlib.Path) -> None:
    """P11: a limit of the system that stops a real write in its middle."""
    script = f"""
import resource, signal
from shardio.kernels import crc32c
from shardio.storage import BlockCache, CacheOptions
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
cache = BlockCache(CacheOptions({str(tmp_path)!r}, max_bytes=1 << 20))
cache.put("large", bytes(20_000))
assert cache.get("large") is None
cache.put("small", bytes(5_000))
assert cache.get("small") == bytes(5_000)
"""
    assert resource.RLIMIT_FSIZE
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.count("out of order") == 1
    assert len(files(tmp_path)) == 1


def test_a_folder_that_is_a_file_is_a_disk_out_of_order(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "x").write_bytes(b"")
    cache = BlockCache(CacheOptions(tmp_path / "x", max_bytes=1000))
    cache.put("a", b"1")
    assert cache.get("a") is None
    assert len(caplog.records) == 1


def storm(options: CacheOptions, seed: int, rounds: int) -> None:
    """Look up and store blocks; exit with 3 if a lookup was ever wrong."""
    chance = random.Random(seed)
    cache = BlockCache(options)
    hits = 0
    for _ in range(rounds):
        first = chance.randrange(60)
        stop = min(60, first + chance.choice((1, 1, 4, 16)))
        missing = set(range(first, stop))
        for piece in cache.find(name_of, first, stop):
            numbers = range(piece.first, piece.stop)
            if piece.data != b"".join(block(name_of(n)) for n in numbers):
                os._exit(3)
            missing.difference_update(numbers)
            hits += 1
        if missing:
            numbers = range(min(missing), max(missing) + 1)
            cache.keep(name_of, numbers[0], [memoryview(block(name_of(n))) for n in numbers])
    os._exit(0 if hits else 4)


def sabotage(folder: pathlib.Path, seed: int, rounds: int) -> None:
    """Cut, flip, zero, swap, remove entries of the cache at random."""
    chance = random.Random(seed)
    for _ in range(rounds):
        entries = files(folder / "shardio-blocks-3")
        if not entries:
            continue
        path = chance.choice(entries)
        try:
            content = bytearray(path.read_bytes())
            match chance.randrange(5):
                case 0:
                    os.truncate(path, chance.randrange(len(content) + 1))
                case 1 if len(content) > 8:
                    # Behind the magic: without it the file is not the cache's to remove.
                    content[chance.randrange(8, len(content))] ^= 1 << chance.randrange(8)
                    path.write_bytes(content)
                case 2:
                    path.write_bytes(bytes(len(content)))
                case 3:
                    path.write_bytes(chance.choice(entries).read_bytes())
                case _:
                    path.unlink()
        except FileNotFoundError:
            continue
    os._exit(0)


@pytest.mark.slow
def test_a_storm_of_processes_kills_and_sabotage(tmp_path: pathlib.Path) -> None:
    """P10: 8 processes, evictions, kills and a saboteur: never a wrong byte, nothing foreign removed."""
    (tmp_path / "precious").write_bytes(b"mine")
    # Half of the blocks fit, so evictions never stop.
    options = CacheOptions(tmp_path, max_bytes=90_000)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=storm, args=(options, seed, 150)) for seed in range(8)]
    saboteur = context.Process(target=sabotage, args=(tmp_path, 99, 150))
    doomed = [context.Process(target=storm, args=(options, seed, 10**9)) for seed in range(100, 103)]
    for process in (*workers, saboteur, *doomed):
        process.start()
    chance = random.Random(1)
    for process in doomed:
        process.join(chance.uniform(0.1, 0.5))
        os.kill(process.pid, signal.SIGKILL)
    for process in (*workers, saboteur):
        process.join()
    assert [process.exitcode for process in (*workers, saboteur)] == [0] * 9
    for process in doomed:
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / "precious").read_bytes() == b"mine"
    # The next write, alone, brings it back into its bound.
    cache = BlockCache(options)
    cache.put("last", b"1")
    assert cache.get("last") == b"1"
    assert cache.usage().num_bytes <= 90_000
    cache.clear()
    assert [path.name for path in files(tmp_path)] == ["precious"]


def test_what_its_user_finds_wrong_makes_room(cache: BlockCache) -> None:
    cache.put("a", b"wrong")
    cache.discard("a")
    assert cache.get("a") is None
    cache.discard("a")
    cache.put("a", b"right")
    assert cache.get("a") == b"right"


def damage(content: bytearray, how: str, at: int, bit: int) -> None:
    match how:
        case "flip":
            content[at] ^= 1 << bit
        case "cut":
            del content[at:]
        case "add":
            content += b"\0" * (at + 1)
        case "zeros":
            content[at:] = bytes(len(content) - at)
        case "swap":
            content[-40:], content[-80:-40] = content[-80:-40], content[-40:]


@settings(max_examples=max(50, settings().max_examples // 3), deadline=None)
@given(data=st.data())
def test_a_damaged_file_gives_the_truth_or_nothing(data, tmp_path_factory: pytest.TempPathFactory) -> None:
    """P10: a file of several runs, hurt anywhere, gives no wrong block, and takes blocks again."""
    folder = tmp_path_factory.mktemp("cache")
    cache = BlockCache(CacheOptions(folder, max_bytes=1 << 20))
    blocks = [block(name_of(n), 40) for n in range(8)]
    cache.keep(name_of, 0, [memoryview(each) for each in blocks[:5]])
    cache.keep(name_of, 5, [memoryview(each) for each in blocks[5:]])
    (path,) = files(folder)
    content = bytearray(path.read_bytes())
    how = data.draw(st.sampled_from(["flip", "cut", "add", "zeros", "swap"]))
    damage(content, how, data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7)))
    path.write_bytes(content)
    first = data.draw(st.integers(0, 7))
    for piece in cache.find(name_of, first, 8):
        assert piece.data == b"".join(blocks[piece.first : piece.stop])
    cache.keep(name_of, 0, [memoryview(each) for each in blocks])
    if content.startswith(MAGIC) or not content[:8].strip(b"\0"):
        assert [piece[:2] for piece in cache.find(name_of, first, 8)][-1][1] == 8


def test_every_flipped_bit_of_a_head_is_found(cache: BlockCache, tmp_path: pathlib.Path) -> None:
    """P10: also those of lengths and names of blocks that are not asked for."""
    cache.keep(name_of, 0, [memoryview(block(name_of(n), 9)) for n in range(4)])
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    for bit in range(8 * (len(whole) - 4 * 9)):
        path.write_bytes(whole[: bit // 8] + bytes([whole[bit // 8] ^ 1 << bit % 8]) + whole[bit // 8 + 1 :])
        assert cache.find(name_of, 0, 1) == [], bit


def test_a_run_is_one_file_of_each_group(cache: BlockCache, tmp_path: pathlib.Path) -> None:
    cache.keep(name_of, 40, [memoryview(block(name_of(n))) for n in range(40, 70)])
    assert len(files(tmp_path)) == 2
    assert [piece[:2] for piece in cache.find(name_of, 33, 90)] == [(40, 64), (64, 70)]
    cache.put(name_of(32), block(name_of(32)))
    assert len(files(tmp_path)) == 2
    small = BlockCache(CacheOptions(tmp_path / "small", max_bytes=100_000))
    small.keep(name_of, 0, [memoryview(block(name_of(n))) for n in range(16)])
    assert [piece[:2] for piece in small.find(name_of, 0, 16)] == [(0, 4)], "at most an eighth of the bound"


def test_an_entry_under_another_name_is_no_entry(cache: BlockCache, tmp_path: pathlib.Path) -> None:
    cache.put("one", b"1")
    (one,) = files(tmp_path)
    cache.put("two", b"2")
    (two,) = set(files(tmp_path)) - {one}
    two.write_bytes(one.read_bytes())
    assert cache.get("two") is None
    cache.put("two", b"2")
    assert cache.get("two") == b"2"


def test_a_run_that_a_writer_has_not_finished_is_not_there_and_the_next_writer_removes_it(
    cache: BlockCache, tmp_path: pathlib.Path
) -> None:
    cache.put(name_of(0), b"before")
    (path,) = files(tmp_path)
    with path.open("ab") as writer:
        writer.write(MAGIC)
    assert cache.get(name_of(0)) == b"before"
    assert path.read_bytes().endswith(MAGIC), "it may be at work"
    cache.keep(name_of, 1, [memoryview(b"after")])
    assert [bytes(piece.data) for piece in cache.find(name_of, 0, 2)] == [b"before", b"after"]


@pytest.mark.parametrize("forgery", ["a block of 4 GB", "billions of blocks"])
def test_what_a_forged_entry_claims_allocates_nothing(cache: BlockCache, forgery: str) -> None:
    """Its checksums are right; it is as absent as a damaged one, and its place is free for a good one."""
    cache.put("a", b"bytes")
    (path,) = files(pathlib.Path(cache.usage().folder))
    table = bytearray(path.read_bytes()[12:-5])
    if forgery == "a block of 4 GB":
        table[-4:] = struct.pack("<I", 2**32 - 1)
    else:
        table[:4] = struct.pack("<I", 2**32 - 1)
    path.write_bytes(MAGIC + struct.pack("<I", crc32c(table)) + table)
    os.truncate(path, 2**32 + 100)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert cache.get("a") is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
    cache.put("a", b"bytes")
    assert cache.get("a") == b"bytes"
