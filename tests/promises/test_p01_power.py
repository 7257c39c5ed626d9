"""P1, P2: the power goes while a program writes: what was acknowledged is there, and nothing by half."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import shardio
from tests.promises.power import STRACE, Cut, Recording, Trace, cuts, recorded
from tests.promises.power_check import Judge

pytestmark = [
    pytest.mark.skipif(STRACE is None, reason="strace is missing, which sees what is written"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def versions(tmp_path_factory) -> Recording:
    folder = tmp_path_factory.mktemp("versions")
    (folder / "root").mkdir()
    return recorded(["-m", "tests.promises.power_program"], folder / "root", folder)


def test_a_number_that_is_free_before_its_close_ends_is_the_next_files():
    """Of two threads, one closes a file, and the other opens, fills and flushes one of the same number."""
    lines = [
        '1 openat(AT_FDCWD, "/r/a", O_RDWR|O_CREAT, 0600) = 7',
        "1 close(7 <unfinished ...>",
        '2 openat(AT_FDCWD, "/r/b", O_RDWR|O_CREAT, 0600) = 7',
        "1 <... close resumed>) = 0",
        '2 write(7, "x", 1) = 1',
        "2 fsync(7) = 0",
    ]
    trace = Trace(Path("/r"), Path("/marks"))
    for line in lines:
        trace.take(
            re.sub('"(.*?)"', lambda text: '"' + "".join(f"\\x{ord(c):02x}" for c in text[1]) + '"', line)
        )
    assert [event.verb for event in trace.recording.events] == ["file", "file", "write", "flush"]


def try_cuts(
    recording: Recording, judge: Callable[[Cut, Path], None], folder: Path, count: int, seed: int
) -> int:
    """Let the power go some times; return how many names and files were in doubt then."""
    doubts = 0
    for cut, disk in cuts(recording, count, seed):
        target = folder / "disk"
        disk.rebuild(target, cut.way, random.Random(cut.seed))
        judge(cut, target)
        doubts += disk.doubts()
        shutil.rmtree(target)
    return doubts


@pytest.mark.slow
def test_what_was_acknowledged_outlasts_a_power_cut(versions, tmp_path):
    """Neither flushes of files nor those of folders are there for nothing, and their lack is noticed."""
    assert try_cuts(versions, Judge(versions), tmp_path, 24, 1) > 24
    for flush in ("flush", "flush folder"):
        events = [each if each.verb != flush else each._replace(verb="nothing") for each in versions.events]
        deaf, folder = Recording(events, versions.marks), tmp_path / flush
        folder.mkdir()
        with pytest.raises((AssertionError, shardio.errors.ShardioError)):
            try_cuts(deaf, Judge(deaf), folder, 60, 1)


def test_more_cuts(versions, tmp_path, long, seeded):
    try_cuts(versions, Judge(versions), tmp_path, 1200 if long else 60, seeded.getrandbits(32))
