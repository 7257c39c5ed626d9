"""Which rank a process is, and that all ranks read the same version."""

from __future__ import annotations

import json
import os
import pickle
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist

import shardio
from shardio.errors import ResumeError
from shardio.torch import FullShuffle, StreamingDataLoader, StreamingDataset
from tests.streaming.datasets import write
from tests.suites.errors import refused
from tests.torch.jobs import finish, start


@pytest.fixture
def environment(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def put(**names):
        for name, value in names.items():
            monkeypatch.setenv(name, value)

    return put


def test_given_before_environment_before_alone(environment):
    whole, third, fourth = (list(FullShuffle(12, rank=r, world_size=w)) for r, w in ((0, 1), (1, 3), (2, 4)))
    assert list(FullShuffle(12)) == whole
    environment(RANK="2", WORLD_SIZE="4")
    assert list(FullShuffle(12)) == fourth
    assert list(FullShuffle(12, rank=1, world_size=3)) == third


@pytest.mark.parametrize("names", [{"RANK": "1"}, {"WORLD_SIZE": "4"}, {"RANK": "x", "WORLD_SIZE": "2"}])
def test_half_an_environment_is_refused(environment, names):
    """Every process would take itself for rank 0 and read the same."""
    environment(**names)
    with refused(ValueError, "RANK", "WORLD_SIZE"):
        FullShuffle(10)


def test_both_or_neither():
    with refused(ValueError, "rank=", "world_size="):
        FullShuffle(10, rank=0)
    with refused(ValueError, "rank=", "world_size="):
        FullShuffle(10, world_size=2)


def test_several_ranks_without_a_channel_must_name_the_version(environment, tmp_path):
    """With several ranks and no channel `version=` is required."""
    url = write(tmp_path / "d", [40])
    environment(RANK="1", WORLD_SIZE="2")
    with refused(ValueError, "version=", "digest="):
        StreamingDataset(shardio.open(url), global_batch=4)
    digest = shardio.open(url).digest
    for pinned in (shardio.open(url, version=1), shardio.open(url, digest=digest)):
        assert StreamingDataset(pinned, global_batch=4).stream.rank == 1
    told = pickle.loads(pickle.dumps(shardio.open(url)))
    assert StreamingDataset(told, global_batch=4).stream.world_size == 2
    with refused(ValueError, "version=", "digest="):
        StreamingDataset(
            shardio.mix([(shardio.open(url, version=1), 1), (shardio.open(url), 1)]), global_batch=4
        )


def note(rank, folder, url, kinds):
    """Construct the dataset as the kind of this rank says, and write down what came of it."""
    kind = kinds[rank]
    ds = shardio.open(url, version={"old": 1, "pinned old": 1}.get(kind))
    if kind == "old":  # as if opened before the newest version was there
        ds.source.pinned = False
    if kind == "slice of old":
        ds = shardio.open(url, version=1)
        ds.source.pinned = False
        ds = ds[:30]
    if "join" in kind:
        right = shardio.open(url + "-right", version=1 if "old" in kind else None)
        right.source.pinned = False
        ds = shardio.join(ds, right, rename={"n": "m"})
    try:
        data = StreamingDataset(ds, global_batch=4)
        reader = data.stream.components[0].reader
        said: object = [data.stream.rank, data.stream.world_size, reader.version, len(reader)]
    except ValueError as error:
        said = str(error)
    (folder / f"said-{rank}").write_text(json.dumps(said), encoding="utf-8")


def said_by_all(url, folder, *kinds):
    folder.mkdir()
    codes = finish(start(len(kinds), folder, note, url, kinds))
    assert codes == [0] * len(kinds)
    return [json.loads((folder / f"said-{rank}").read_text(encoding="utf-8")) for rank in range(len(kinds))]


@pytest.mark.xdist_group("processes")
def test_rank_0_tells_the_others_which_version_counts(tmp_path):
    """Rank 0 resolves and tells the ranks; the digests are compared once."""
    url = str(write(tmp_path / "d", [40, 7]))
    ways = [(("new", "old"), 2), (("old", "new", "new"), 1), (("pinned old", "old"), 1)]
    for number, (kinds, version) in enumerate(ways):
        rows = {1: 40, 2: 47}[version]
        expected = [[rank, len(kinds), version, rows] for rank in range(len(kinds))]
        assert said_by_all(url, tmp_path / str(number), *kinds) == expected


@pytest.mark.xdist_group("processes")
def test_ranks_that_cannot_agree_are_all_told(tmp_path):
    """One rank that raised alone would leave the others waiting for it."""
    url = str(write(tmp_path / "d", [40, 7]))
    for number, kinds in enumerate([("new", "pinned old", "new"), ("new", "slice of old")]):
        said = said_by_all(url, tmp_path / str(number), *kinds)
        assert all("version 1" in text for text in said)
        assert all("rank 1: " in text for text in said[:1] + said[2:])


@pytest.mark.xdist_group("processes")
def test_joins_whose_sides_differ_are_told_in_all_ranks(tmp_path):
    """The ranks that have the version of rank 0 must not continue alone."""
    url = str(write(tmp_path / "d", [40]))
    write(url + "-right", [40])
    with shardio.DatasetWriter(url + "-right", mode="overwrite", schema={"n": "int64"}) as out:
        for n in range(40):
            out.write({"n": 900 + n})
    for number, kinds in enumerate([("join", "join with old", "join"), ("join with old", "join")]):
        said = said_by_all(url, tmp_path / str(number), *kinds)
        assert all("both sides of a join with the same version=" in text for text in said), said
        assert "rank 1: " in said[0]
    said = said_by_all(url, tmp_path / "agree", "join", "join")
    assert said == [[rank, 2, 1, 40] for rank in (0, 1)]


def note_alone(rank, folder, url, kinds):
    """As `note`, where all processes share the batches of data-parallel rank 0; one after another."""
    for turn, kind in enumerate(kinds):
        if turn == rank:
            ds = shardio.open(url, version=1 if "old" in kind else None)
            ds.source.pinned = "pinned" in kind
            data = StreamingDataset(ds, rank=0, world_size=1, global_batch=4, seed=0)
            said = [data.stream.components[0].reader.version, next(iter(data))["n"].tolist()]
            (folder / f"said-{rank}").write_text(json.dumps(said), encoding="utf-8")
        dist.barrier()


@pytest.mark.xdist_group("processes")
def test_ranks_that_share_a_batch_agree(tmp_path):
    """Tensor-parallel ranks have a data-parallel size of 1, and must read the same version nevertheless."""
    url = str(write(tmp_path / "d", [40, 7]))
    ways = {("new", "old"): 2, ("old", "new", "new"): 1, ("pinned old", "new"): 1}
    for number, (kinds, version) in enumerate(ways.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert finish(start(len(kinds), folder, note_alone, url, kinds)) == [0] * len(kinds)
        said = [json.loads((folder / f"said-{rank}").read_text("utf-8")) for rank in range(len(kinds))]
        assert [each[0] for each in said] == [version] * len(kinds)
        assert all(each[1] == said[0][1] for each in said)


def test_no_environment_is_left_behind():
    assert "WORLD_SIZE" not in os.environ


def mixed(rank, folder, url):
    ds = shardio.open(url, version=2 - rank)
    ds.source.pinned = False
    data = StreamingDataset(shardio.mix([(ds, 1), (ds, 3)]), global_batch=4)
    (folder / f"said-{rank}").write_text(
        str([m.reader.version for m in data.stream.components]), encoding="utf-8"
    )


@pytest.mark.xdist_group("processes")
def test_mixtures_agree_too(tmp_path):
    url = str(write(tmp_path / "d", [40, 7]))
    assert finish(start(2, tmp_path, mixed, url)) == [0, 0]
    assert [(tmp_path / f"said-{rank}").read_text(encoding="utf-8") for rank in (0, 1)] == ["[2, 2]"] * 2


def note_too_early(rank, folder, data, sampler):
    with pytest.raises(ValueError, match="ranks would read the same records"):
        next(iter(sampler))
    said = []
    for loader in (StreamingDataLoader(data), torch.utils.data.DataLoader(data, batch_size=None)):
        with pytest.raises(ValueError, match=f"as rank 0 of 1, before .* this is rank {rank} of 2"):
            next(iter(loader))
        said.append("refused")
    with pytest.raises(ValueError, match="ranks would read the same records"):
        StreamingDataLoader(data).dataset[0]
    made = StreamingDataset(data.stream._data, global_batch=4, seed=1)
    alone = StreamingDataset(data.stream._data, global_batch=4, seed=1, rank=0, world_size=1)
    said += [next(iter(each))["n"].tolist() for each in (made, alone)]
    (folder / f"said-{rank}").write_text(json.dumps(said), encoding="utf-8")


@pytest.mark.xdist_group("processes")
def test_a_dataset_made_before_its_rank_was_known_is_refused(environment, tmp_path):
    """Each rank would read everything, as where a loader is made before a trainer starts its processes."""
    data = StreamingDataset(shardio.open(write(tmp_path / "d", [40])), global_batch=4, seed=1)
    assert finish(start(2, tmp_path, note_too_early, data, FullShuffle(40))) == [0, 0]
    first, second = (json.loads((tmp_path / f"said-{rank}").read_text("utf-8")) for rank in (0, 1))
    assert first[2] + second[2] == first[3] == second[3]


def note_streams(rank, folder, url, cases):
    """One after another, so that a hang or a collective call too few would show in the next one."""
    said = []
    for options in (case[rank] for case in cases):
        given = {"global_batch": 8, "memory_bytes": 1 << 18, **options}
        ds = shardio.open(url, mmap=given.pop("mmap", None))
        try:
            said.append(StreamingDataset(ds, **given).stream.order.plans[0].to_dict())
        except ValueError as error:
            said.append(str(error))
    (folder / f"said-{rank}").write_text(json.dumps(said), encoding="utf-8")


# What rank 1 is given, and what all ranks are told.
DIFFERING = [
    ({"memory_bytes": 1 << 17}, "plans[0]."),
    ({"seed": 1}, "seed of rank 0 is 0, of rank 1 1"),
    ({"global_batch": 16}, "batches[0].global_batch of rank 0 is 8, of rank 1 16"),
    ({"rank": 1, "world_size": 4}, "world_size of rank 0 is 2, of rank 1 4"),
    ({"rank": 0, "world_size": 2}, "no process has rank=1 of world_size=2"),
    ({"plan": shardio.Plan(ranks=3)}, "multiple"),
]


@pytest.mark.xdist_group("processes")
def test_ranks_whose_streams_differ_are_all_refused(tmp_path):
    """Else records would be seen twice, and others by none; equal ones still continue afterwards."""
    url = str(tmp_path / "d")
    with shardio.DatasetWriter(url, schema={"x": "float32[64]"}, block_bytes=2000) as out:
        for n in range(1500):
            out.write({"x": [n] * 64})
    cases = [({}, options) for options, _ in DIFFERING] + [({}, {"mmap": True})]
    assert finish(start(2, tmp_path, note_streams, url, cases)) == [0, 0]
    first, second = (json.loads((tmp_path / f"said-{rank}").read_text("utf-8")) for rank in (0, 1))
    assert first[-1] == second[-1]
    for (_, words), one, other in zip(DIFFERING, first, second, strict=False):
        assert words in one
        assert words in other
    assert first[:-2] == second[:-2]
    assert first[-2].startswith("a rank cannot make its stream: rank 1: ")


def fail_once(value, *, marker):
    if int(value["n"]) == 50 and not marker.exists():
        marker.touch()
        raise OSError("the disk blinked")
    return value


def go_on_after_an_error(rank, folder, url, how):
    """Sum what all ranks have at each step; the rank whose transform fails tries its step again."""
    transform = partial(fail_once, marker=folder / "failed")
    data = StreamingDataset(shardio.open(url, features=["n"]), global_batch=8, seed=0, transform=transform)
    loader = StreamingDataLoader(data, **how)
    said, sums = [], []
    while loader.remaining:
        try:
            for batch in loader:
                total = batch["n"].sum()
                dist.all_reduce(total)
                sums.append(total.item())
        except (OSError, RuntimeError) as error:
            said.append(str(error))
            with pytest.raises(ResumeError, match=rf"rank {rank} of 2 ended .* step {len(sums)}") as refused:
                next(iter(loader))
            said.append(refused.value.advice)
            loader.load_state_dict(loader.state_dict())
    (folder / f"said-{rank}").write_text(json.dumps([said, sums]), "utf-8")


@pytest.mark.sampled(2)
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("how", [{"num_threads": 2}, {"num_workers": 2}], ids=["threads", "workers"])
def test_a_rank_that_lives_on_after_an_error(tmp_path, how):
    """It cannot begin another pass, beside which the others would run on; it can try its step again."""
    url = write(str(tmp_path / "d"), [120])
    assert finish(start(2, tmp_path, go_on_after_an_error, url, how)) == [0, 0]
    found = [json.loads((tmp_path / f"said-{rank}").read_text("utf-8")) for rank in (0, 1)]
    expected = [int(batch["n"].sum()) for batch in shardio.stream(shardio.open(url), global_batch=8, seed=0)]
    assert [sums for _, sums in found] == [expected] * 2
    (error, advice), nothing = sorted((said for said, _ in found), key=len, reverse=True)
    assert "the disk blinked" in error
    assert "load_state_dict(state_dict())" in advice
    assert nothing == []


def pack_too_short(rank, folder, url, how):
    packing = partial(shardio.pack_columns, length=16)
    data = StreamingDataset(shardio.open(url), global_batch=8, shuffle=False, batch_transform=packing)
    try:
        for _ in StreamingDataLoader(data, **how):
            dist.all_reduce(torch.ones(1))
    except Exception as error:
        said = [type(error).__name__, str(error), *getattr(error, "__notes__", [])]
        (folder / f"said-{rank}").write_text(json.dumps(said), "utf-8")
        raise


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("how", [{"num_threads": 2}, {"num_workers": 2}], ids=["threads", "workers"])
def test_a_document_longer_than_its_row_ends_the_job(tmp_path, how):
    """By name on the rank that has it, with its step; the other one does not wait forever."""
    url = str(tmp_path / "d")
    with shardio.DatasetWriter(url, schema={"tokens": "int32[?]"}) as out:
        for n in range(120):
            out.write({"tokens": np.arange(40 if n == 50 else 5)})
    codes = finish(start(2, tmp_path, pack_too_short, url, how))
    name, text, *notes = json.loads((tmp_path / "said-0").read_text("utf-8"))
    assert (codes[0], name) == (1, "SchemaError")
    assert "expected at most 16 tokens, found 40" in text
    assert notes == ["in the batch_transform of step 6 of epoch 0"]
    assert codes[1] != 0
