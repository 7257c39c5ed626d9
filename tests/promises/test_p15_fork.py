"""P15: safe after fork, or a clear error, never a hang."""

from __future__ import annotations

import os
import signal
import sys
import threading

import numpy as np
import pytest
from fsspec.asyn import get_loop
from torch.utils.data import DataLoader

import shardio
from shardio.torch import MapDataset, StreamingDataLoader, StreamingDataset
from tests.servers.web import folder_server
from tests.streaming.datasets import flat, write
from tests.suites.processes import answer_of_child

ROWS = 300
pytestmark = pytest.mark.filterwarnings("ignore:some chunks are fetched more than once:UserWarning")


def in_child(work):
    """Return what `work` returns in a forked child, as text."""
    return answer_of_child(lambda: repr(work())).decode()


@pytest.fixture(params=["mapped", "compressed", "http"])
def ds(request, tmp_path):
    url = write(tmp_path / "d", [ROWS], compression=None if request.param == "mapped" else "zstd")
    if request.param != "http":
        yield shardio.open(url)
        return
    with folder_server(tmp_path) as address:
        yield shardio.open(f"{address}/d")


def everything(ds):
    return sorted(int(value["n"]) for value in ds) == list(range(ROWS))


def streamed(ds, **options):
    stream = shardio.stream(ds, global_batch=10, remainder="keep", **options)
    return sorted(flat(batch["n"].tolist() for batch in stream)) == list(range(ROWS))


def test_a_reader_that_was_used_reads_on_in_the_child_and_in_the_parent(ds):
    assert ds[7]["n"] == 7
    assert in_child(lambda: (int(ds[8]["n"]), everything(ds), streamed(ds))) == "(8, True, True)"
    assert everything(ds)
    assert streamed(ds)


@pytest.mark.sampled(2)
def test_a_fork_while_threads_read(ds):
    """With requests in flight the child reads by itself."""
    stream = shardio.stream(ds, global_batch=10, num_threads=4)
    it = iter(stream)
    next(it)
    for _ in range(5):
        assert in_child(lambda: (int(ds[9]["n"]), streamed(ds))) == "(9, True)"
        next(it)
    assert len(list(it)) == ROWS // 10 - 6


def test_a_pass_of_the_parent_is_refused_in_the_child(ds):
    stream = shardio.stream(ds, global_batch=10, num_threads=2)
    it = iter(stream)
    next(it)
    assert "begun before the process forked" in in_child(lambda: list(it))
    assert len(list(it)) == ROWS // 10 - 1


def test_a_pass_without_threads_goes_on_in_both(ds):
    """Windows are in maps of memory, which a fork shares unless it is asked to copy them."""
    plan = shardio.Plan(ranks=2, workers=1, chunk_rows=16, interleave=2, window=16)
    options = {"global_batch": 10, "remainder": "keep", "num_threads": 0, "plan": plan}
    wanted = [batch["n"].tolist() for batch in shardio.stream(ds, **options)]
    it = iter(shardio.stream(ds, **options))
    next(it)
    assert in_child(lambda: [batch["n"].tolist() for batch in it]) == repr(wanted[1:])
    assert [batch["n"].tolist() for batch in it] == wanted[1:]


@pytest.mark.parametrize("checksummed", [True, False])
def test_what_was_asked_for_before_a_fork_comes_in_both(tmp_path, checksummed):
    """The thread that an answer comes from stays with the parent."""
    (tmp_path / "object").write_bytes(b"wren robin")
    released = threading.Event()
    with folder_server(tmp_path) as address:
        file = shardio.storage.connect(address).open("object")
        file.read(0, 1)
        get_loop().call_soon_threadsafe(released.wait)
        try:
            wait = file.begin_read([0, 5], [4, 10], checksummed=checksummed, gap=0)
            assert in_child(lambda: [bytes(part) for part in wait()]) == "[b'wren', b'robin']"
        finally:
            released.set()
        assert [bytes(part) for part in wait()] == [b"wren", b"robin"]


def test_loader_workers_of_readers_that_are_in_use(ds):
    ds[3]
    other = iter(shardio.stream(ds, global_batch=10, num_threads=2))
    next(other)
    loader = StreamingDataLoader(StreamingDataset(ds, global_batch=10, remainder="keep"), num_workers=2)
    assert sorted(flat(batch["n"].tolist() for batch in loader)) == list(range(ROWS))
    mapped = DataLoader(MapDataset(ds, transform=int_of), batch_size=50, num_workers=2)
    assert sorted(flat(batch.tolist() for batch in mapped)) == list(range(ROWS))
    other.close()


def int_of(value):
    return int(value["n"])


@pytest.mark.sampled(2)
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("how", ["threads", "collate_fn", "workers"])
@pytest.mark.parametrize(("ending", "code"), [("exits", 3), ("raises", 1), ("returns", 1), ("ends", 0)])
def test_a_child_that_a_transform_forks_ends(tmp_path, how, ending, code):
    """However it leaves: as a copy of a thread it would wait for the others, and its parent for it."""

    def fork(value):
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(300)  # one that hangs is told by its code
            if ending == "exits":
                sys.exit(3)
            if ending == "raises":
                raise ValueError("in the child")
            if ending == "ends":
                os._exit(0)
            return value
        return {"n": value["n"], "code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}

    def collate(values):
        made = [fork(value) for value in values]
        return {name: np.array([value[name] for value in made]) for name in made[0]}

    transform, collate_fn = (None, collate) if how == "collate_fn" else (fork, None)
    options = {"num_workers": 1} if how == "workers" else {"num_threads": 2}
    ds = shardio.open(write(tmp_path / "d", [4]))
    loader = StreamingDataLoader(
        StreamingDataset(ds, batch_size=2, transform=transform), collate_fn=collate_fn, **options
    )
    seen = [(batch["n"].tolist(), batch["code"].tolist()) for batch in loader]
    assert sorted(flat(n for n, _ in seen)) == list(range(4))
    assert flat(codes for _, codes in seen) == [code] * 4
