"""docs/coming-from.md: MDS shards of MosaicML Streaming, its loader beside ours, resumed on other ranks."""

from __future__ import annotations

import collections
import json

import numpy as np
import pytest

import shardio
from shardio.torch import StreamingDataLoader, StreamingDataset
from tests.streaming.datasets import flat
from tests.suites.pages import code_of

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.slow,
    pytest.mark.usefixtures("operators"),
    pytest.mark.filterwarnings("ignore"),
]
SIZES = {"books": 140, "web": 60}
FIRST = {"books": 0, "web": 1000}


@pytest.fixture(scope="module")
def folder(operators, tmp_path_factory):
    from streaming import MDSWriter

    place = tmp_path_factory.mktemp("mds")
    columns = {"n": "int", "text": "str", "x": "ndarray:float32:4"}
    for name, size in SIZES.items():
        with MDSWriter(out=str(place / name / "train"), columns=columns, size_limit=2000) as out:
            for n in range(FIRST[name], FIRST[name] + size):
                out.write({"n": n, "text": f"text {n}", "x": np.full(4, n, np.float32)})
        report = shardio.adopt(place / name)
        assert report.records == size
        assert report.adopted > 1
    return place


def test_both_libraries_read_the_same_samples(folder) -> None:
    from streaming import StreamingDataset as Theirs
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    for name, size in SIZES.items():
        ours = shardio.open(folder / name, split="train")
        assert len(ours) == size
        theirs = Theirs(local=str(folder / name), split="train", batch_size=1)
        assert len(theirs) == size
        for n in range(size):
            assert ours[n]["n"] == theirs[n]["n"]
            assert ours[n]["text"] == theirs[n]["text"]
            assert np.array_equal(ours[n]["x"], theirs[n]["x"])


def test_a_mixture_in_proportion_resumes_on_other_ranks(folder) -> None:
    """Each record at most once, in the proportion of the page; stopped on two ranks, resumed on three."""
    replaced = {f"s3://bucket/{name}": str(folder / name) for name in SIZES} | {
        "batch_size=32": "batch_size=30"
    }
    names: dict = {}
    exec(code_of("coming-from.md", "MosaicML", **replaced), names)
    whole = [batch["n"].tolist() for batch in names["loader"]]
    counts = collections.Counter(flat(whole))
    assert max(counts.values()) == 1
    books = sum(n < 1000 for n in counts)
    assert books / len(counts) == pytest.approx(0.7, abs=0.01)
    mixture = shardio.mix([(names["books"], 0.7), (names["web"], 0.3)])

    def loader(rank: int, ranks: int) -> StreamingDataLoader:
        data = StreamingDataset(mixture, batch_size=30 // ranks, seed=0, rank=rank, world_size=ranks)
        return StreamingDataLoader(data)

    first = [loader(rank, 2) for rank in range(2)]
    iterators = [iter(each) for each in first]
    seen = [flat(next(iterator)["n"].tolist() for iterator in iterators) for _ in range(3)]
    states = {json.dumps(each.state_dict()) for each in first}
    assert len(states) == 1
    resumed = [loader(rank, 3) for rank in range(3)]
    for each in resumed:
        each.load_state_dict(json.loads(*states))
    rest = [flat(batch["n"].tolist() for batch in step) for step in zip(*resumed, strict=True)]
    assert seen + rest == whole
