"""P1, P2: the power goes while a program writes: what was acknowledged is there, and nothing by half."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shardio
from tests.promises.power import STRACE, Cut, Recording, cuts, recorded
from tests.promises.power_check import Judge, check_cache
from tests.servers.web import folder_server

pytestmark = [
    pytest.mark.skipif(STRACE is None, reason="strace is missing, which sees what is written"),
    pytest.mark.timeout(600),
]


def record(history: str, folder: Path) -> Recording:
    (folder / "root").mkdir()
    return recorded(["-m", "tests.promises.power_program", history], folder / "root", folder)


@pytest.fixture(scope="module")
def versions(tmp_path_factory) -> Recording:
    return record("versions", tmp_path_factory.mktemp("versions"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Iterator[tuple[Recording, str]]:
    folder = tmp_path_factory.mktemp("cache")
    recording = record("cache", folder)
    with folder_server(folder / "served") as server:
        yield recording, server


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


def test_what_was_acknowledged_outlasts_a_power_cut(versions, tmp_path):
    assert try_cuts(versions, Judge(versions, "versions"), tmp_path, 40, 1) > 40


def test_a_cache_outlasts_a_power_cut(cache, tmp_path):
    recording, server = cache
    try_cuts(recording, lambda cut, disk: check_cache(server, cut, disk), tmp_path, 20, 1)


@pytest.mark.parametrize("flush", ["flush", "flush folder"])
def test_without_flushes_it_does_not(versions, tmp_path, flush):
    """Neither those of files nor those of folders are there for nothing, and their lack is noticed."""
    events = [each if each.verb != flush else each._replace(verb="nothing") for each in versions.events]
    deaf = Recording(events, versions.marks)
    with pytest.raises((AssertionError, shardio.errors.ShardioError)):
        try_cuts(deaf, Judge(deaf, "versions"), tmp_path, 60, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_more_cuts(versions, cache, tmp_path, seed):
    try_cuts(versions, Judge(versions, "versions"), tmp_path, 100, seed)
    recording, server = cache
    try_cuts(recording, lambda cut, disk: check_cache(server, cut, disk), tmp_path, 25, seed)
