"""What transforms return, as torch programs make it; loaders that get it wrong; transforms that draw."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

import shardio
from shardio.codecs import encode_example, encode_tensors
from shardio.errors import SchemaError
from shardio.torch import StreamingDataLoader, StreamingDataset, seeded
from tests.streaming.datasets import plan, write
from tests.suites.errors import refused

WAYS = pytest.mark.parametrize("way", [{"num_threads": 2}, {"num_threads": 0}, {"num_workers": 2}], ids=str)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    return write(tmp_path_factory.mktemp("values") / "d", [70, 30])


def dataset(url, **options):
    given = {"global_batch": 6, "plan": plan(workers=2), "remainder": "keep", "seed": 3}
    return StreamingDataset(shardio.open(url), **{**given, **options})


class Pair(NamedTuple):
    x: torch.Tensor
    y: int


def as_tensors(value):
    n = int(value["n"])
    return {"t": torch.full((2,), n), "n": n, "f": n / 2, "deep": {"a": np.full(3, n), "s": str(n)}}


def as_tuple(value):
    return torch.full((2,), int(value["n"])), int(value["n"])


def as_named(value):
    return Pair(torch.full((2,), int(value["n"])), int(value["n"]))


def as_number(value):
    return float(value["n"])


def same(ours, theirs):
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            same(ours[name], theirs[name])
    elif isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    else:
        assert len(ours) == len(theirs)
        for mine, its in zip(ours, theirs, strict=True):
            same(mine, its) if not isinstance(its, str) else same_text(mine, its)


def same_text(mine, its):
    assert mine == its


@pytest.mark.sampled(3)
@WAYS
@pytest.mark.parametrize("function", [as_tensors, as_tuple, as_named, as_number])
def test_batches_are_those_of_default_collate(url, way, function):
    numbers = [batch["n"].tolist() for batch in StreamingDataLoader(dataset(url))]
    batches = list(StreamingDataLoader(dataset(url, transform=function), **way))
    assert len(batches) == len(numbers)
    for batch, own in zip(batches, numbers, strict=True):
        same(batch, default_collate([function({"n": n}) for n in own]))
        if function is as_named:
            assert type(batch) is Pair


def odd_shapes(value):
    return {"x": torch.zeros(int(value["n"]) % 3)}


def test_tensors_of_differing_shapes_are_a_list(url):
    batch = next(iter(StreamingDataLoader(dataset(url, transform=odd_shapes))))
    assert isinstance(batch["x"], list)
    assert all(isinstance(x, torch.Tensor) for x in batch["x"])


def joined(values):
    return sum(int(value["n"]) for value in values), len(values)


@WAYS
def test_collate_fn_gets_the_values_of_a_step(url, way):
    numbers = [batch["n"].tolist() for batch in StreamingDataLoader(dataset(url))]
    loader = StreamingDataLoader(dataset(url), collate_fn=joined, **way)
    assert list(loader) == [(sum(own), len(own)) for own in numbers]


def nothing(value):
    return None if value["n"] == 50 else value


@WAYS
def test_a_transform_that_returns_none_is_an_error_that_says_so(url, way):
    with pytest.raises(TypeError, match="returned None"):
        list(StreamingDataLoader(dataset(url, transform=nothing), **way))


@WAYS
def test_a_transform_may_drop_records_where_that_was_asked_for(url, way):
    """Counted over threads and worker processes alike; `collate_fn` gets those that are left."""
    whole = [batch["n"].tolist() for batch in StreamingDataLoader(dataset(url))]
    loader = StreamingDataLoader(dataset(url, transform=nothing, drop_none=True), **way)
    assert [batch["n"].tolist() for batch in loader] == [[n for n in own if n != 50] for own in whole]
    assert loader.stats.epoch.records_dropped == 1
    assert loader.stats.epoch.records == 99
    data = dataset(url, transform=nothing, drop_none=True)
    counts = list(StreamingDataLoader(data, collate_fn=joined, **way))
    assert counts == [(sum(own) - 50 * (50 in own), len(own) - (50 in own)) for own in whole]


def test_positions_need_names(url):
    with pytest.raises(TypeError, match="let it return dicts"):
        list(StreamingDataLoader(dataset(url, transform=as_tuple, positions=True)))


def test_the_map_style_view_begins_anywhere(url):
    loader = StreamingDataLoader(dataset(url))
    whole = [batch["n"].tolist() for batch in loader]
    loader.set_epoch(0)
    for workers in (0, 2):
        sampler = list(loader.batch_sampler)[5:]
        other = DataLoader(
            loader.dataset, batch_sampler=sampler, collate_fn=loader.collate_fn, num_workers=workers
        )
        assert [batch["n"].tolist() for batch in other] == whole[5:]
    assert loader.dataset[3]["n"].tolist() == whole[3]
    assert loader.state_dict()["step"] == 4
    assert loader.remaining == len(whole) - 4
    with pytest.raises(ValueError, match="batch them again"):
        next(iter(DataLoader(loader.dataset, batch_size=2)))


# Transforms that draw from global generators.


def draws(value):
    return {
        "n": value["n"],
        "t": torch.rand(3),
        "u": torch.empty(2).uniform_(-1, 1),
        "i": torch.randint(0, 1000, (2,)),
        "p": torch.randperm(4),
        "l": torch.rand_like(torch.zeros(2, dtype=torch.float64)),
        "np": np.random.rand(),  # noqa: NPY002
        "py": random.random(),
    }


def drawn(loader):
    found = {}
    for batch in loader:
        for k, n in enumerate(batch["n"].tolist()):
            found[n] = [batch[name][k].tolist() for name in ("t", "u", "i", "p", "l", "np", "py")]
    return found


def test_seeded_transforms_are_the_same_everywhere(url):
    make = lambda **options: dataset(url, random_transform=seeded(draws), **options)  # noqa: E731
    expected = drawn(StreamingDataLoader(make(), num_threads=0))
    assert len({str(value) for value in expected.values()}) == 100
    for way in ({"num_threads": 3}, {"num_workers": 2}):
        assert drawn(StreamingDataLoader(make(), **way)) == expected
    shares = [drawn(StreamingDataLoader(make(rank=rank, world_size=2))) for rank in range(2)]
    assert shares[0] | shares[1] == expected


def test_seeded_leaves_the_global_generators_alone(url):
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    drawn(StreamingDataLoader(dataset(url, random_transform=seeded(draws)), num_threads=2))
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert states[2] == np.random.get_state()[1].tolist()  # noqa: NPY002


def test_seeded_names_its_libraries():
    with refused(ValueError, "'torch'", "'numpy'", "'random'"):
        seeded(draws, generators=("jax",))


def noisy(value):
    return {"n": value["n"], "t": torch.rand(1)}


def test_a_transform_that_draws_from_torchs_global_generator_in_threads_is_told_once(url):
    with pytest.warns(UserWarning, match="shardio.torch.seeded") as caught:
        list(StreamingDataLoader(dataset(url, transform=noisy), num_threads=2))
    assert len(caught) == 1


@pytest.mark.parametrize("options", [{"num_threads": 0}, {"num_threads": 2}])
def test_other_transforms_are_not(url, recwarn, options):
    function = seeded(noisy)
    transform = {"random_transform": function} if options["num_threads"] else {"transform": noisy}
    list(StreamingDataLoader(dataset(url, **transform), **options))
    assert not [warning for warning in recwarn.list if "seeded" in str(warning.message)]


# Leaving: what is under way is not waited for.


def test_leaving_a_loop_ends_transforms_at_the_next_record(url, monkeypatch):
    """Counted, not timed: after `break` each thread finishes the record it is at, and begins no other."""
    calls = []
    gate, held = threading.Event(), threading.Event()

    def slow(value):
        calls.append(int(value["n"]))
        if len(calls) > 6:  # beyond the first step
            held.set()
            gate.wait(600)
        return value

    loader = StreamingDataLoader(dataset(url, transform=slow), num_threads=2)
    it = iter(loader)
    next(it)
    assert held.wait(600)
    join = threading.Thread.join

    def opening(thread, timeout=None):
        gate.set()  # they have been told to end, and are waited for
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", opening)
    it.close()
    assert len(calls) <= 6 + 2


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("threads", [0, 2])
def test_a_transform_that_hangs_is_interrupted_by_the_first_ctrl_c(url, threads):
    code = f"""
        import threading, time, signal
        signal.signal(signal.SIGINT, signal.default_int_handler)
        import shardio
        from shardio.torch import StreamingDataLoader, StreamingDataset
        def hang(value):
            print("hangs", flush=True)
            while True:
                time.sleep(0.05)
        data = StreamingDataset(shardio.open({str(url)!r}), global_batch=4, transform=hang)
        next(iter(StreamingDataLoader(data, num_threads={threads})))
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "hangs\n"
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode in (1, 130, -signal.SIGINT)


def test_tensors_of_bfloat16_are_refused_with_advice_that_works():
    """NumPy has no dtype for them, and said so in its own words alone."""
    tensor = torch.tensor([1.0, 2.5, -3.0], dtype=torch.bfloat16)
    feature = shardio.Feature("bfloat16[3]")
    for store in (
        lambda value: feature.fit(value, "x"),
        lambda value: encode_example({"x": value}),
        lambda value: encode_tensors({"x": value}),
    ):
        with refused(SchemaError, "'x'"):
            store(tensor)
        store(tensor.float())
    bits = torch.from_numpy(feature.fit(tensor.float(), "x"))
    assert torch.equal(bits.view(torch.bfloat16), tensor)
