"""The loader: threads first, processes where wanted; exact, ordered, counted by what was delivered."""

from __future__ import annotations

import contextlib
import inspect
import json
import pickle
import random
import threading
import warnings
from collections import Counter
from dataclasses import fields

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import ChainDataset, DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import shardio
from shardio.codecs import RaggedColumn
from shardio.errors import CorruptBlockError, FormatError, StorageError
from shardio.torch import MapDataset, StreamingDataLoader, StreamingDataset
from tests.streaming.datasets import RICH, flat, hurt, plan, rich_value, write
from tests.suites.errors import refused

pytestmark = [
    pytest.mark.filterwarnings("ignore:some chunks are fetched more than once:UserWarning"),
    pytest.mark.filterwarnings("ignore:the state that was loaded is of the end of epoch:UserWarning"),
    pytest.mark.filterwarnings("ignore:damaged records are skipped:UserWarning"),
]
# Threads of this process, none, and worker processes.
WAYS = pytest.mark.parametrize(
    "way", [{"num_threads": 2}, {"num_threads": 0}, {"num_workers": 1}, {"num_workers": 3}], ids=str
)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loader") / "d"
    return write(folder, [70, 5, 125], compression="zstd")


def dataset(url, **options):
    given = {"global_batch": 6, "plan": plan(ranks=2, workers=3), "remainder": "keep", "seed": 3}
    return StreamingDataset(shardio.open(url), **{**given, **options})


def lists(loader):
    return [batch["n"].tolist() for batch in loader]


@pytest.fixture(scope="module")
def expected(url):
    stream = dataset(url).stream
    return [[batch["n"].tolist() for batch in stream] for _ in range(3)]


@pytest.mark.sampled(4)
@WAYS
def test_epochs_in_a_row(url, expected, way):
    loader = StreamingDataLoader(dataset(url), **way)
    assert [lists(loader), lists(loader), lists(loader)] == expected
    assert sorted(flat(expected[0])) == list(range(200))


def test_workers_that_are_kept_serve_epoch_after_epoch(url, expected):
    loader = StreamingDataLoader(dataset(url), num_workers=2, persistent_workers=True)
    others = {child.pid for child in psutil.Process().children()}
    pids: list[set[int]] = []
    for epoch in range(3):
        got = []
        for batch in loader:
            if not got:
                pids.append({child.pid for child in psutil.Process().children()} - others)
            got.append(batch["n"].tolist())
        assert got == expected[epoch]
    assert pids[0] == pids[1] == pids[2]
    loader.set_epoch(1)
    assert lists(loader) == expected[1], "another epoch than the workers expect"
    loader.close()
    assert not pids[0] & {child.pid for child in psutil.Process().children()}
    loader.set_epoch(0)
    with loader:
        assert lists(loader) == expected[0], "a loader can be used after it was closed"


@pytest.mark.sampled(4)
@WAYS
def test_an_early_break_and_the_same_epoch_again(url, expected, way):
    loader = StreamingDataLoader(dataset(url), **way)
    for number, batch in enumerate(loader):
        assert batch["n"].tolist() == expected[0][number]
        if number == 4:
            break
    assert loader.state_dict()["step"] == 5
    assert lists(loader) == expected[0]


@pytest.mark.sampled(4)
@WAYS
def test_two_loaders_at_once(url, expected, way):
    one, two = (StreamingDataLoader(dataset(url), **way) for _ in range(2))
    two.set_epoch(1)
    pairs = list(zip(one, two, strict=True))
    assert [a["n"].tolist() for a, _ in pairs] == expected[0]
    assert [b["n"].tolist() for _, b in pairs] == expected[1]


@pytest.mark.sampled(10)
@WAYS
@pytest.mark.parametrize("steps", [0, 1, 7, 34])
def test_resume_counts_what_was_delivered_not_what_was_prefetched(url, expected, way, steps):
    loader = StreamingDataLoader(dataset(url), **way)
    assert len(loader) == 34
    it = iter(loader)
    head = [next(it)["n"].tolist() for _ in range(steps)]
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["step"] == steps
    it.close()
    for other in ({"num_threads": 3}, {"num_workers": 2}):
        resumed = StreamingDataLoader(dataset(url), **other)
        resumed.load_state_dict(state)
        assert len(resumed) == len(resumed.sampler) == 34
        assert resumed.remaining == 34 - steps
        assert head + lists(resumed) == expected[0]
        assert lists(resumed) == expected[1]


def test_of_an_epoch_that_ended_no_processes_are_started(url, expected, monkeypatch):
    loader = StreamingDataLoader(dataset(url))
    assert lists(loader) == expected[0]
    resumed = StreamingDataLoader(dataset(url), num_workers=2)
    resumed.load_state_dict(loader.state_dict())
    with monkeypatch.context() as patch:
        patch.setattr("shardio.torch._loader.DataLoader", None)
        with pytest.warns(UserWarning, match="of the end of epoch 0: this pass over it has no batches"):
            assert lists(resumed) == []
    assert lists(resumed) == expected[1]


@WAYS
def test_batches_are_tensors_over_numpy_memory(tmp_path, way):
    url = write(tmp_path / "rich", [30], schema=RICH, value=rich_value)
    ds = shardio.open(url)
    loader = StreamingDataLoader(StreamingDataset(ds, global_batch=6, positions=True), **way)
    for batch in loader:
        positions = batch["_position"]
        assert positions.dtype == torch.int64
        theirs = ds.read_batch(positions.numpy())
        assert batch["n"].dtype == torch.int64
        assert torch.equal(batch["box"], torch.from_numpy(theirs["box"]))
        assert batch["text"] == theirs["text"]
        assert batch["raw"] == theirs["raw"]
        for name in ("tokens", "grid"):
            assert isinstance(batch[name], RaggedColumn)
            assert isinstance(batch[name].values, torch.Tensor)
            for mine, its in zip(batch[name], theirs[name], strict=True):
                np.testing.assert_array_equal(np.asarray(mine), its)
        batch["n"] += 1  # a training loop may write into its batch


def odd(columns):
    n = columns["n"]
    return {
        "turned": n[::-1],
        "big": n.astype(">i4"),
        "frozen": np.broadcast_to(np.float32(1), (len(n), 2)),
        "pair": (n, [n, "x"]),
        "long": n.astype(np.longdouble),
        "scalar": np.float32(2),
        "nested": {"n": n},
    }


@WAYS
def test_whatever_a_transform_returns_arrives(url, way):
    batch = next(iter(StreamingDataLoader(dataset(url, batch_transform=odd), **way)))
    n = batch["nested"]["n"]
    assert torch.equal(batch["turned"], n.flip(0))
    assert torch.equal(batch["big"], n.to(torch.int32))
    assert batch["frozen"].tolist() == [[1.0, 1.0]] * 6
    assert torch.equal(batch["pair"][0], n)
    assert batch["pair"][1][1] == "x"
    assert isinstance(batch["long"], np.ndarray)
    assert float(batch["scalar"]) == 2.0


def test_pinned_memory_without_an_accelerator_is_a_warning(url, expected):
    if torch.accelerator.is_available():
        pytest.fail("these machines have no accelerator")
    with pytest.warns(UserWarning, match="no accelerator"):
        loader = StreamingDataLoader(dataset(url), pin_memory=True)
    assert lists(loader) == expected[0]


@pytest.mark.sampled(2)
@WAYS
def test_batches_arrive_on_a_device(url, expected, way):
    assert lists(StreamingDataLoader(dataset(url), device="cpu", **way)) == expected[0]
    batch = next(iter(StreamingDataLoader(dataset(url), device="meta", **way)))
    assert {column.device.type for column in batch.values() if isinstance(column, torch.Tensor)} == {"meta"}


class FakeAccelerator:
    """Streams and events that note in which order they are used, and from which thread."""

    def __init__(self, monkeypatch):
        self.log, self.lock = [], threading.Lock()
        monkeypatch.setattr(torch, "get_device_module", lambda device: self)
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: (self.note("pin"), tensor)[1])
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, on: self.note("used on", on))
        real = torch.Tensor.to

        def to(tensor, device, non_blocking=False):
            self.note("copy", str(device), non_blocking)
            return real(tensor, "meta")

        monkeypatch.setattr(torch.Tensor, "to", to)

    def note(self, *what):
        with self.lock:
            self.log.append((*what, threading.current_thread() is threading.main_thread()))

    def Stream(self, device):  # noqa: N802 - torch's name
        self.note("side stream", str(device))
        return self

    def record_event(self):
        self.note("event")
        return "event"

    @contextlib.contextmanager
    def stream(self, stream):
        assert stream is self
        yield

    def current_stream(self, device):
        raise NotImplementedError


@pytest.mark.parametrize("way", [{"num_threads": 2}, {"num_threads": 0}, {"num_workers": 2}], ids=str)
def test_copies_to_an_accelerator_run_beside_it(url, monkeypatch, way):
    """Pinned, copied on a stream of their own; the stream that uses a batch waits, and its memory is kept."""
    fake = FakeAccelerator(monkeypatch)
    waits = []

    class Current:
        def wait_event(self, event):
            waits.append(event)
            fake.note("wait")

    monkeypatch.setattr(FakeAccelerator, "current_stream", lambda self, device: Current())
    batches = list(StreamingDataLoader(dataset(url), device="xpu:0", **way))
    columns = sum(isinstance(column, torch.Tensor) for batch in batches for column in batch.values())
    kinds = Counter(entry[0] for entry in fake.log)
    assert kinds["pin"] == kinds["copy"] == kinds["used on"] == columns
    assert len(waits) == kinds["event"] == len(batches)
    assert kinds["side stream"] == 1
    assert {entry[1:3] for entry in fake.log if entry[0] == "copy"} == {("xpu:0", True)}
    in_main = {entry[-1] for entry in fake.log if entry[0] == "copy"}
    # The first batch is built by the thread that asks for it.
    assert in_main == ({True, False} if way == {"num_threads": 2} else {True})
    assert all(entry[-1] for entry in fake.log if entry[0] in ("wait", "used on"))


def _legacy_state():
    return np.random.get_state()[1].tolist()  # noqa: NPY002 - this is the state that others use


@pytest.mark.parametrize("way", [{"num_threads": 2}, {"num_workers": 2}], ids=str)
def test_the_callers_randomness_is_left_alone(url, way):
    states = torch.get_rng_state(), random.getstate(), _legacy_state()
    lists(StreamingDataLoader(dataset(url), **way))
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert states[2] == _legacy_state()


# Damage in worker processes.


@WAYS
def test_an_error_keeps_its_address_on_the_way_from_a_worker(tmp_path, way):
    url = write(tmp_path / "d", [200])
    expected = lists(StreamingDataLoader(dataset(url)))
    ds = shardio.open(url)
    bad = hurt(ds, 91)
    got = []
    with pytest.raises(CorruptBlockError) as caught:
        for batch in StreamingDataLoader(dataset(url), **way):
            got.append(batch["n"].tolist())  # noqa: PERF401 - what came before the error counts
    assert got == expected[: len(got)]
    place = ds.locate(91)
    assert caught.value.url == place.url
    assert caught.value.shard == place.shard
    assert caught.value.row in bad
    assert caught.value.start is not None


@pytest.mark.sampled(4)
@WAYS
def test_skipped_records_are_counted_whoever_skips_them(tmp_path, way):
    url = write(tmp_path / "d", [200])
    bad = hurt(shardio.open(url), 91)
    ds = shardio.open(url, on_error="skip")
    loader = StreamingDataLoader(StreamingDataset(ds, global_batch=6, plan=plan(), remainder="keep"), **way)
    got = lists(loader)
    assert sorted(flat(got)) == sorted(set(range(200)) - bad)
    assert len(got) == 34
    assert loader.dataset.stream.skipped == len(bad)


def test_skipping_is_bounded_over_all_workers(tmp_path):
    url = write(tmp_path / "d", [3000], block_bytes=40_000)
    ds = shardio.open(url)
    assert sum(len(hurt(ds, position)) for position in (0, 1500)) > 1000
    skipping = shardio.open(url, on_error="skip")
    data = StreamingDataset(skipping, global_batch=100, plan=plan(chunk_rows=100))
    with pytest.raises(FormatError):
        lists(StreamingDataLoader(data, num_workers=3))


# torch's own loaders.

KEPT = {"num_workers": 2, "persistent_workers": True}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("loader_of", [DataLoader, StatefulDataLoader])
def test_in_torchs_own_loader_epoch_after_epoch(url, expected, loader_of, workers):
    data = dataset(url)
    loader = loader_of(data, batch_size=None, num_workers=workers)
    assert len(loader) == 34
    for epoch in range(3):
        data.set_epoch(epoch)
        assert lists(loader) == expected[epoch]


class Wrapped(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(self.data)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_in_torchs_own_loader_wrapped_and_by_any_start_method(url, expected, method):
    data = dataset(url)
    loader = DataLoader(
        ChainDataset([Wrapped(data)]), batch_size=None, num_workers=2, multiprocessing_context=method
    )
    for epoch in (0, 2):
        data.set_epoch(epoch)
        assert lists(loader) == expected[epoch]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("steps", [1, 5, 31, 33])
def test_workers_that_torch_keeps_agree_on_their_epoch(url, expected, steps):
    """Some may have come to the end of the epoch, others not: the next pass is the next epoch for all."""
    data = dataset(url)
    data.set_epoch(0)
    loader = DataLoader(data, batch_size=None, num_workers=3, persistent_workers=True, prefetch_factor=4)
    for number, batch in enumerate(loader):
        assert batch["n"].tolist() == expected[0][number]
        if number + 1 == steps:
            break
    assert [lists(loader), lists(loader)] == expected[1:]


def test_what_workers_of_torch_cannot_know_is_said(url, expected):
    """A warning is an error here, which comes back from the worker."""
    says = "call set_epoch before each pass.*StreamingDataLoader"
    data = dataset(url)
    fork = {"batch_size": None, "num_workers": 2, "multiprocessing_context": "fork"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "This DataLoader will create")
        with pytest.raises(UserWarning, match=says):
            lists(DataLoader(data, **fork))
        data.set_epoch(0)
        kept = DataLoader(data, persistent_workers=True, **fork)
        assert lists(kept) == expected[0]
        with pytest.raises(UserWarning, match=says):
            lists(kept)
        assert lists(DataLoader(data, **fork)) == expected[0]
        assert lists(DataLoader(dataset(url), batch_size=None)) == expected[0]


def test_torchs_own_loader_goes_on_from_a_state(url, expected):
    data = dataset(url)
    it = iter(data)
    head = [next(it)["n"].tolist() for _ in range(7)]
    other = dataset(url)
    other.load_state_dict(data.state_dict())
    loader = DataLoader(other, batch_size=None, num_workers=2)
    assert head + lists(loader) == expected[0]
    other.set_epoch(1)
    assert lists(loader) == expected[1]
    other.set_epoch(2)
    assert [batch["n"].tolist() for batch in other] == expected[2]  # and in this process


@pytest.mark.sampled(3)
@pytest.mark.parametrize("steps", [5, 33, 34])
@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2}, KEPT], ids=str)
def test_torchdatas_loader_goes_on_in_a_later_epoch(url, expected, options, steps):
    data = dataset(url)
    loader = StatefulDataLoader(data, batch_size=None, **options)
    data.set_epoch(0)
    lists(loader)
    data.set_epoch(1)  # which workers that are kept come to by themselves
    it = iter(loader)
    head = [next(it)["n"].tolist() for _ in range(steps)]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    data = dataset(url)
    other = StatefulDataLoader(data, batch_size=None, **options)
    other.load_state_dict(state)
    assert head + lists(other) == expected[1]
    data.set_epoch(2)
    assert lists(other) == expected[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_map_style_access_in_torchs_loader(url, workers):
    data = MapDataset(shardio.open(url), transform=double)
    assert len(data) == 200
    assert data[3] == 6
    assert data[-1] == 398
    with pytest.raises(IndexError):
        data[200]
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=workers)
    assert sorted(int(n) for batch in loader for n in batch) == [2 * n for n in range(200)]
    part = MapDataset(shardio.open(url).select([5, 5, 199]))
    assert [int(value["n"]) for value in DataLoader(part, batch_size=None)] == [5, 5, 199]


def double(value):
    return int(value["n"]) * 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_threads": -1}, "num_threads=-1"),
        ({"prefetch_factor": 0}, "prefetch_factor=0"),
        ({"persistent_workers": True}, "needs num_workers"),
    ],
)
def test_options_that_make_no_sense(url, options, says):
    with pytest.raises(ValueError, match=says):
        StreamingDataLoader(dataset(url), **options)
    for name in ("num_threads", "num_workers", "prefetch_factor"):
        with pytest.raises(TypeError, match=f"{name} must be an integer, found True"):
            StreamingDataLoader(dataset(url), **{name: True})


def test_threads_belong_to_the_loader(url):
    with refused(TypeError, "num_threads="):
        dataset(url, num_threads=2)


def test_every_option_is_in_the_signature_of_both():
    ours, theirs = inspect.signature(shardio.stream), inspect.signature(StreamingDataset)
    assert list(ours.parameters) == ["ds", *(field.name for field in fields(shardio.StreamOptions))]
    assert list(ours.parameters) == list(theirs.parameters)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [1, 4])  # 1 is torch's default
def test_a_loader_that_would_batch_the_batches_is_refused(url, workers, batch_size):
    loader = DataLoader(dataset(url), batch_size=batch_size, num_workers=workers)
    with pytest.raises(ValueError, match="would batch them again"):
        next(iter(loader))


def test_it_loads_streaming_datasets_only(url):
    with refused(TypeError, "MapDataset", "StreamingDataset"):
        StreamingDataLoader(MapDataset(shardio.open(url)))


def test_a_temporary_folder_too_long_for_sockets_is_refused(url, monkeypatch):
    """Workers could not hand over a single batch, and torch would wait for them forever."""
    monkeypatch.setattr("multiprocessing.util.get_temp_dir", lambda: "/tmp/" + "x" * 90)
    loader = StreamingDataLoader(
        StreamingDataset(shardio.open(url), global_batch=4), num_workers=1, multiprocessing_context="fork"
    )
    with pytest.raises(StorageError):
        next(iter(loader))
