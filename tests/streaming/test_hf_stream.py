"""A stream as an IterableDataset of Hugging Face: its order, and exact resume on any number of processes."""

from __future__ import annotations

import copy
import itertools
import json

import datasets
import numpy as np
import pytest
from datasets.distributed import split_dataset_by_node

import shardio
from tests.suites.errors import refused

RECORDS = 600


@pytest.fixture(scope="module")
def ds(tmp_path_factory) -> shardio.DatasetReader:
    url = tmp_path_factory.mktemp("hub") / "ds"
    schema = {
        "n": "int64",
        "text": "text",
        "vector": "float32[3]",
        "tokens": "int32[?]",
        "odd": shardio.Feature("int64", optional=True),
    }
    with shardio.DatasetWriter(url, schema, shard_bytes=8_000) as out:
        for n in range(RECORDS):
            value = {"n": n, "text": f"t{n}", "vector": np.full(3, n), "tokens": [n] * (n % 3)}
            out.write(value | ({"odd": n} if n % 2 else {}))
    return shardio.open(url)


def _numbers(examples) -> list[int]:
    return [example["n"] for example in examples]


def test_examples_are_the_values_in_the_order_of_the_stream(ds) -> None:
    hub = ds.to_hf(streaming=True, seed=5)
    batches = shardio.stream(ds.select_columns(["n"]), global_batch=1, seed=5, scratch=False)
    assert _numbers(hub) == [int(batch["n"][0]) for batch in batches]
    assert sorted(_numbers(hub)) == list(range(RECORDS))
    example = next(iter(ds.to_hf(streaming=True, shuffle=False).skip(7)))
    assert example == {
        "n": 7, "text": "t7", "vector": [7.0] * 3, "tokens": [7], "odd": 7,
    }  # fmt: skip
    assert list(hub.features) == ["n", "text", "vector", "tokens", "odd"]
    in_memory = list(ds.to_hf())
    assert list(ds.to_hf(streaming=True, shuffle=False)) == in_memory


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (3, 2), (2, 64)])
def test_it_resumes_exactly_on_another_number_of_processes(ds, before, after) -> None:
    hub = ds.to_hf(streaming=True, seed=1)
    whole = _numbers(hub)
    steps = 11  # of one example on each process
    seen, states = [], []
    for rank in range(before):
        part = split_dataset_by_node(hub, rank, before)
        seen.append(_numbers(itertools.islice(part, steps)))
        states.append(json.loads(json.dumps(part.state_dict())))
    assert [n for step in zip(*seen, strict=True) for n in step] == whole[: steps * before]
    assert all(state == states[0] for state in states)
    rest = []
    for rank in range(after):
        part = split_dataset_by_node(ds.to_hf(streaming=True, seed=1), rank, after)
        part.load_state_dict(states[0])
        rest.append(_numbers(part))
    steps_left = (RECORDS - steps * before) // after
    assert {len(part) for part in rest} == {steps_left}
    left = [n for step in zip(*rest, strict=True) for n in step]
    assert left == whole[steps * before :][: steps_left * after]


def test_other_numbers_of_processes_share_the_examples(ds) -> None:
    parts = [
        _numbers(split_dataset_by_node(ds.to_hf(streaming=True, seed=1), rank, 11)) for rank in range(11)
    ]
    assert sorted(itertools.chain(*parts)) == list(range(RECORDS))


def test_epochs_have_orders_of_their_own(ds) -> None:
    hub = ds.to_hf(streaming=True, seed=1)
    first = _numbers(hub)
    hub.set_epoch(1)
    second = _numbers(hub)
    assert first != second
    assert sorted(second) == sorted(first)
    batches = shardio.stream(ds.select_columns(["n"]), global_batch=1, seed=1, epoch=1, scratch=False)
    assert second == [int(batch["n"][0]) for batch in batches]
    part = iter(hub)
    list(itertools.islice(part, 100))
    state = hub.state_dict()
    again = ds.to_hf(streaming=True, seed=1)
    again.set_epoch(1)
    again.load_state_dict(state)
    assert _numbers(again) == second[100:]


def test_columns_and_mixtures_and_functions_work_as_on_any_dataset(ds) -> None:
    chosen = ds.to_hf(["n"], streaming=True, seed=2)
    assert list(next(iter(chosen))) == ["n"]
    hub = ds.to_hf(streaming=True, seed=2).remove_columns(["text"])
    mapped = hub.map(lambda example: {"m": example["n"] * 2})
    assert all(example["m"] == 2 * example["n"] for example in mapped.take(20))
    halves = shardio.mix([(ds[:300], 0.5), (ds[300:], 0.5)], stop="all")
    mixture = shardio.stream(halves, global_batch=1, seed=0, scratch=False).to_hf()
    assert sorted(set(_numbers(mixture))) == list(range(RECORDS))
    squares = ds.to_hf(streaming=True, seed=2, transform=lambda value: {"square": int(value["n"]) ** 2})
    assert [example["square"] for example in squares.take(9)] == [n * n for n in _numbers(chosen.take(9))]


OPERATIONS = {
    "map": lambda hub: hub.map(lambda example: {"m": example["n"] * 2}),
    "batched map": lambda hub: hub.map(lambda batch: {"m": batch["n"]}, batched=True, batch_size=7),
    "filter": lambda hub: hub.filter(lambda example: example["n"] % 3),
    "select_columns": lambda hub: hub.select_columns(["n"]),
    "rename and remove": lambda hub: hub.rename_column("text", "caption").remove_columns(["vector"]),
    "cast": lambda hub: hub.cast_column("n", datasets.Value("int32")),
    "format": lambda hub: hub.with_format("numpy"),
    "skip and take": lambda hub: hub.skip(5).take(50),
    "batch": lambda hub: hub.batch(7),
    "repeat": lambda hub: hub.repeat(2),
    "concatenate": lambda hub: datasets.concatenate_datasets([hub, hub]),
    "interleave": lambda hub: datasets.interleave_datasets(
        [hub, hub.filter(lambda example: example["n"] < 100)]
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_state_is_exact_through_other_operations(ds, name) -> None:
    change = OPERATIONS[name]

    def numbers(hub) -> list[str]:
        return [str(example["n"]) for example in hub]

    whole = numbers(change(ds.to_hf(streaming=True, seed=1)))
    for count in (1, 8, 19):
        hub = change(ds.to_hf(streaming=True, seed=1))
        seen = numbers(itertools.islice(iter(hub), min(count, len(whole))))
        resumed = change(ds.to_hf(streaming=True, seed=1))
        resumed.load_state_dict(json.loads(json.dumps(hub.state_dict())))
        assert seen + numbers(resumed) == whole


def test_axolotl_calls(ds) -> None:
    """As axolotl 0.19 does: its trainer asks for columns, removes some and lets accelerate divide it."""
    from torch.utils.data import DataLoader, IterableDataset

    hub = ds.to_hf(["n", "odd"], streaming=True, seed=1)
    assert isinstance(hub, IterableDataset)
    assert hub.column_names == ["n", "odd"]
    assert hub.n_shards >= 64
    parts = [hub.remove_columns(["odd"]).shard(num_shards=4, index=index) for index in range(4)]
    seen = [[batch["n"].tolist() for batch in DataLoader(part, batch_size=5)] for part in parts]
    assert sorted(itertools.chain(*itertools.chain(*seen))) == list(range(RECORDS))
    encoded = hub.skip(3).map(
        lambda batch: {"length": [n % 7 for n in batch["n"]]}, batched=True, batch_size=10,
        remove_columns=list(hub.features),
    ).with_format("torch")  # fmt: skip
    lengths = [int(example["length"]) for example in encoded]
    assert lengths == [n % 7 for n in _numbers(hub)[3:]]


@pytest.mark.filterwarnings("ignore:'set_vital'")
@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_of_torch_give_each_example_once_and_resume(ds, workers) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader():
        hub = ds.to_hf(["n"], streaming=True, seed=3).with_format("torch")
        return StatefulDataLoader(hub, batch_size=10, num_workers=workers)

    whole = [batch["n"].tolist() for batch in loader()]
    assert sorted(itertools.chain(*whole)) == list(range(RECORDS))
    first = loader()
    batches = iter(first)
    seen = [next(batches)["n"].tolist() for _ in range(13)]
    state = copy.deepcopy(first.state_dict())
    del batches
    resumed = loader()
    resumed.load_state_dict(state)
    assert seen + [batch["n"].tolist() for batch in resumed] == whole


def test_what_makes_no_sense_is_refused(ds) -> None:
    with refused(TypeError, "streaming="):
        ds.to_hf(seed=1)
    with refused(ValueError, "batch_transform="):
        ds.to_hf(streaming=True, batch_transform=dict)
    with refused(ValueError, '"pad"'):
        ds.to_hf(streaming=True, remainder="pad")
    with pytest.raises(ValueError, match=r"shuffle\(\)"):
        ds.to_hf(streaming=True).shuffle(seed=42)


def test_the_first_epoch_begins_where_the_stream_is(ds) -> None:
    def stream():
        return shardio.stream(ds.select_columns(["n"]), global_batch=32, seed=4, epoch=3, scratch=False)

    batches = [batch["n"].tolist() for batch in stream()]
    started = stream()
    started.go_to(5)
    hub = started.to_hf()
    assert _numbers(hub)[: 32 * 4] == list(itertools.chain(*batches[5:9]))
    hub.set_epoch(1)
    following = shardio.stream(ds.select_columns(["n"]), global_batch=32, seed=4, epoch=4, scratch=False)
    assert _numbers(hub)[:32] == next(iter(following))["n"].tolist()
    part = split_dataset_by_node(started.to_hf(), 1, 2)
    seen = _numbers(itertools.islice(part, 16))
    assert seen == batches[5][1::2]
    again = split_dataset_by_node(stream().to_hf(), 0, 4)
    again.load_state_dict(part.state_dict())
    assert _numbers(itertools.islice(again, 8)) == batches[6][::4]
