"""Programs that stream what may be sorted are told once, at their own line, what it costs."""

from __future__ import annotations

import linecache
import warnings

import pytest
from torch.utils.data import DataLoader

import shardio
from shardio.order import Plan
from shardio.torch import StreamingDataLoader, StreamingDataset

POOR = Plan(ranks=2, workers=1, chunk_rows=100, interleave=1, window=100)
SAYS = "this plan mixes them too little"


@pytest.fixture(autouse=True)
def _afresh(monkeypatch):
    """Little data is worth a warning."""
    monkeypatch.setattr("shardio.streaming._plans._LITTLE_BYTES", 0)


def number(n):
    return {"n": n}


def write(url, **options):
    with shardio.DatasetWriter(str(url), schema={"n": "int64"}, **options) as out:
        for n in range(1000):
            out.write({"n": n})
    return str(url)


def streamed(ds):
    return shardio.stream(ds, global_batch=10, plan=POOR)


def loaded(ds):
    return StreamingDataLoader(StreamingDataset(ds, global_batch=10, plan=POOR))


def loaded_by_processes(ds):
    return StreamingDataLoader(StreamingDataset(ds, global_batch=10, plan=POOR), num_workers=2)


def loaded_by_torch(ds):
    return DataLoader(StreamingDataset(ds, global_batch=10, plan=POOR), batch_size=None)


def told(caught):
    return [each for each in caught if SAYS in str(each.message)]


@pytest.mark.parametrize("batches_of", [streamed, loaded, loaded_by_processes, loaded_by_torch])
def test_it_is_said_once_at_the_line_that_asks_for_batches(tmp_path, batches_of, capfd):
    ds = shardio.open(write(tmp_path / "sorted"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batches in (batches_of(ds), batches_of(ds)):
            for _ in batches:  # here
                pass
    (one,) = told(caught)
    assert one.filename == __file__
    assert linecache.getline(__file__, one.lineno).endswith("# here\n")
    assert SAYS not in capfd.readouterr().err, "worker processes do not say it again"


def test_a_mixture_is_told_of_in_one_line(tmp_path):
    urls = [write(tmp_path / str(n), metadata={"shuffled": n == 3}) for n in range(4)]
    both = shardio.mix([(shardio.open(url), 1) for url in urls])
    with pytest.warns(UserWarning, match=SAYS) as caught:
        next(iter(streamed(both)))
    (one,) = told(caught)
    assert f"{urls[0]} and {urls[1]} and 1 more" in str(one.message)


def test_of_several_ranks_the_first_one_says_it(tmp_path):
    ds = shardio.open(write(tmp_path / "sorted"))
    next(iter(shardio.stream(ds, global_batch=10, plan=POOR, rank=1, world_size=2)))
    with pytest.warns(UserWarning, match=SAYS):
        next(iter(shardio.stream(ds, global_batch=10, plan=POOR, rank=0, world_size=2)))


def test_datasets_in_random_order_say_so_and_are_not_warned_of(tmp_path):
    """Writers that shuffle note it, others can be told; plans and streams then say nothing."""
    said, note = str(tmp_path / "said"), {"metadata": {"shuffled": True}}
    write(said, **note)
    shuffled, converted = str(tmp_path / "shuffled"), str(tmp_path / "converted")
    shardio.write_dataset(shuffled, range(1000), number, schema={"n": "int64"}, shuffle=True, workers=1)
    shardio.convert_dataset(shuffled, converted)
    for url in (said, shuffled, converted):
        ds = shardio.open(url)
        assert ds.metadata == {"shuffled": True}
        next(iter(streamed(ds)))
        assert shardio.plan_report(ds, global_batch=10, plan=POOR)[1] == []
    ds = shardio.open(write(tmp_path / "sorted"))
    assert "labels recur" in shardio.plan_report(ds, global_batch=10, plan=POOR)[1][0]


def test_what_is_added_is_not_in_random_order_with_what_was_there(tmp_path):
    """An append ends the note, also one that shuffles; an empty one, or one that says so, keeps it."""
    url = str(tmp_path / "birds")
    schema = {"n": "int64"}

    def shuffled(**options):
        shardio.write_dataset(url, range(100), number, schema=schema, workers=1, **options)
        return shardio.open(url).metadata

    assert shuffled(shuffle=True) == {"shuffled": True}
    with shardio.DatasetWriter(url, mode="append"):
        pass
    assert shardio.open(url).metadata == {"shuffled": True}
    assert shuffled(shuffle=True, mode="append") == {}
    assert shuffled(mode="append", metadata={"shuffled": True}) == {"shuffled": True}
    shardio.convert_dataset(url, str(tmp_path / "other"))
    shardio.convert_dataset(url, str(tmp_path / "other"), mode="append")
    assert shardio.open(str(tmp_path / "other")).metadata == {}
    assert shuffled(shuffle=True, mode="overwrite", metadata={"shuffled": False}) == {"shuffled": False}
