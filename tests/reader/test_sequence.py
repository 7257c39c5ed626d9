"""A reader is a sequence: the same laws over every compression, place and cut."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import shardio
from shardio.errors import FormatError, NotFoundError
from tests.promises.places import GOLDEN, PLACES, SHARD_RECORDS, copied, fresh, payloads
from tests.suites.errors import refused

NAMES = ["none", "zstd", "gzip", "deleted", "adopted", "three", "empty"]
CASES = [(name, place) for name in NAMES for place in PLACES]
EVERY_CASE = pytest.mark.parametrize(("name", "place"), CASES)
EVERY_PLACE = pytest.mark.parametrize("place", PLACES)


@pytest.fixture(scope="module")
def urls(tmp_path_factory) -> dict[tuple[str, str], str]:
    return {case: copied(GOLDEN / case[0], case[1], tmp_path_factory.mktemp("golden")) for case in CASES}


def both(urls, name: str, place: str) -> tuple[shardio.DatasetReader, list[bytes]]:
    ds = shardio.open(urls[name, place], "all", decode=False)
    return ds, payloads(name, ds.version, "all")


@EVERY_CASE
def test_it_is_a_sequence(name, place, urls):
    ds, wanted = both(urls, name, place)
    assert isinstance(ds, Sequence)
    assert (len(ds), list(ds), list(ds)) == (len(wanted), wanted, wanted)
    assert list(reversed(ds)) == wanted[::-1]
    for record in wanted[:2]:
        assert record in ds
        assert (ds.index(record), ds.count(record)) == (wanted.index(record), wanted.count(record))
    for k in range(-len(wanted), len(wanted)):
        assert ds[k] == ds[np.int64(k)] == wanted[k]
    for k in (len(wanted), -len(wanted) - 1, 10**9, -(10**9)):
        with pytest.raises(IndexError, match=f"record {k} is out of range: there are {len(wanted)}"):
            ds[k]


BOUND = st.none() | st.integers(-100, 100)
STEP = st.none() | st.integers(-5, 5).filter(bool)


@pytest.mark.sampled(3)
@EVERY_CASE
@settings(max_examples=max(15, settings().max_examples // 10))
@given(slices=st.lists(st.builds(slice, BOUND, BOUND, STEP), min_size=1, max_size=3), data=st.data())
def test_slices_are_readers(name, place, urls, slices, data):
    ds, wanted = both(urls, name, place)
    for part in slices:
        ds, wanted = ds[part], wanted[part]
    assert type(ds) is shardio.DatasetReader
    assert len(ds) == len(wanted)
    assert list(ds) == wanted
    if wanted:
        places = data.draw(st.lists(st.integers(-len(wanted), len(wanted) - 1), max_size=8))
        assert ds.read(places) == [wanted[k] for k in places]
        assert ds.read_batch(places) == {"payload": [wanted[k] for k in places]}
        chosen = ds.select(places)
        assert list(chosen) == [wanted[k] for k in places]
        assert [chosen[k] for k in range(len(chosen))] == list(chosen)
        assert list(chosen[::-1]) == [wanted[k] for k in places][::-1]
        assert list(chosen[1:]) == [wanted[k] for k in places][1:]
        assert [ds[k] for k in places] == [wanted[k] for k in places]


@EVERY_CASE
def test_positions_may_be_anything_that_counts(name, place, urls):
    ds, wanted = both(urls, name, place)
    assert ds.read([]) == []
    assert ds.read_batch([]) == {"payload": []}
    if not wanted:
        return
    last = len(wanted) - 1
    for places in (
        [last, 0, 0, last],
        (0, last),
        range(0, len(wanted), 2),
        np.array([last, 0], np.uint8),
        np.array([-1, 0], np.int8),
        iter([0, 0]),
    ):
        kept = places if isinstance(places, np.ndarray) else list(places)
        assert ds.read(kept) == [wanted[int(k)] for k in kept]


def test_what_does_not_count(urls):
    ds, wanted = both(urls, "none", "local")
    senseless: list[Any] = [[0.5], ["1"], [[0, 1]], np.zeros((2, 2), int), [None], 3, b"\0", {0: 1}]
    for places in senseless:
        with refused(TypeError, "positions"):
            ds.read(places)
    # NumPy makes an integer of a bool beside one.
    for mixed in ([0, True], (np.True_, 0), iter([False, 0])):
        with pytest.raises(TypeError, match=r"positions\[[01]\] must be an integer, found (True|False)"):
            ds.select(mixed)
    with refused(TypeError, "ds.filter(mask)"):
        ds.select([True] * len(wanted))
    used = (k for k in range(2))
    assert len(ds.select(used)) == 2
    with pytest.raises(ValueError, match=r"the iterator is empty; .* pass a list instead"):
        ds.select(used)
    with refused(TypeError, "rows[0]"):
        ds.positions_of([ds.locate(0).shard] * 2, [True, 1])
    huge = np.array([2**64 - 1], np.uint64)
    for far in ([len(wanted)], [-len(wanted) - 1], huge):
        with pytest.raises(IndexError):
            ds.read(far)
    for item in ([0, 1], np.array([0]), "0", None, 1.0, True):
        with refused(TypeError, "ds.read_batch(positions)", "ds.select(positions)"):
            ds[item]


@EVERY_CASE
def test_locate_leads_to_the_bytes(name, place, urls):
    ds, wanted = both(urls, name, place)
    for k, record in enumerate(wanted):
        found = ds.locate(k)
        assert found == ds.locate(k - len(wanted))
        assert found.url.endswith(found.shard)
        assert found.stop - found.start >= len(record)
        if name == "none":
            data = Path(urls[name, "local"], found.shard).read_bytes()
            assert data[found.start + 12 : found.stop - 4] == record
    for k in (len(wanted), -len(wanted) - 1):
        with pytest.raises(IndexError):
            ds.locate(k)
    if name == "deleted":
        assert ds.locate(0).row > 0, "the first row is deleted"


@EVERY_CASE
def test_threads_share_a_reader(name, place, urls):
    ds, wanted = both(urls, name, place)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ds.__getitem__, range(len(wanted)))) == wanted
        for found in pool.map(lambda _: list(ds), range(8)):
            assert found == wanted


def read_in_child(pickled: bytes) -> list[bytes]:
    ds = pickle.loads(pickled)
    return [*ds, *ds.read(range(len(ds)))]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pickles_travel_to_workers(method, urls):
    """The other side reads the manifest again and compares its digest; no version is looked up."""
    ds, wanted = both(urls, "zstd", "local")
    ds[0]
    context = multiprocessing.get_context(method)
    with context.Pool(1) as pool:
        for part in (ds, ds[3:40:2], ds.select([5, 5, 1])):
            assert pool.apply(read_in_child, (pickle.dumps(part),)) == [*part, *part]
    assert wanted


def test_pickles_do_not_grow(tmp_path):
    sizes = []
    for count in (10, 3000):
        url = str(tmp_path / str(count))
        with shardio.DatasetWriter(url, block_bytes=100, shard_bytes=2000) as out:
            for k in range(count):
                out.write(b"%d" % k)
        ds = shardio.open(url)
        list(ds)
        sizes.append(len(pickle.dumps(ds)))
    assert sizes[1] - sizes[0] < 50
    assert sizes[1] < 1500


def test_a_pickle_of_a_dataset_that_was_replaced(tmp_path):
    url = str(tmp_path / "ds")
    with shardio.DatasetWriter(url) as out:
        out.write(b"old")
    pickled = pickle.dumps(shardio.open(url))
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write(b"new")
    assert list(pickle.loads(pickled)) == [b"old"], "the version stays"
    manifest = next(Path(url, "_shardio", "manifests").glob("*1.manifest"))
    other = copied(GOLDEN / "three", "local", tmp_path)
    manifest.unlink()
    manifest.write_bytes(next(Path(other, "_shardio", "manifests").iterdir()).read_bytes())
    with refused(FormatError, "digest"):
        pickle.loads(pickled)


def test_facts_of_a_dataset(urls):
    ds = shardio.open(urls["none", "local"], "train")
    assert ds.split == "train"
    assert dict(ds.splits) == {"test": 12, "train": 68}
    assert ds.schema is None
    assert ds.num_bytes == sum(
        path.stat().st_size for path in Path(urls["none", "local"], "data").glob("train-*.tfrecord")
    )
    assert set(ds.stats) >= {"blocks_opened", "bytes_read", "records_skipped"}
    assert "68 records (bytes)" in repr(ds)
    assert ds.metadata == {"made": "by hand", "seen": [1, 2], "more": True}


def test_splits_are_chosen(urls):
    url = urls["none", "local"]
    found = shardio.open(url)
    assert {name: list(reader) for name, reader in found.items()} == {
        name: list(shardio.open(url, name)) for name in ("train", "test")
    }
    with refused(ValueError, "'valid'", "'test'", "'train'"):
        shardio.open(url, "valid")
    assert [*shardio.open(url, "all")] == [*shardio.open(url, "test"), *shardio.open(url, "train")]
    assert len(shardio.open(urls["three", "local"])) == 3
    assert len(shardio.open(urls["empty", "local"])) == 0
    with pytest.raises(ValueError, match="it has none"):
        shardio.open(urls["empty", "local"], "train")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"decode": "images"}, "decode='images' must be"),
        ({"on_error": "ignore"}, "on_error='ignore' must be one of raise, skip, quarantine"),
        ({"features": ["a"], "decode": False}, "decode=False decodes nothing"),
        ({"features": ["a"]}, "features= needs a schema"),
    ],
)
def test_senseless_options(options, match, urls):
    with pytest.raises(ValueError, match=match):
        _ = shardio.open(urls["three", "local"], **options)[0]


@pytest.mark.parametrize("given", ["image", b"bytes", [b"image"], {"image": 1}, 3])
def test_features_are_a_list_of_names(given, urls):
    """One name alone would be taken for its letters."""
    with refused(TypeError, "features=") as caught:
        shardio.open(urls["three", "local"], features=given)
    assert given != "image" or str(caught.value).endswith("found a string: features=['image']")


@EVERY_PLACE
def test_verify_off_still_finds_what_does_not_decode(place, tmp_path):
    """`verify=False` trusts the stored bytes and nothing else."""
    url = copied(GOLDEN / "none", place, tmp_path)
    assert list(shardio.open(url, "all", verify=False)) == payloads("none", 2, "all")
    assert shardio.open(url, "train", verify=False)[3] == payloads("none", 2, "train")[3]


@EVERY_PLACE
@pytest.mark.parametrize("name", ["none", "zstd", "gzip"])
def test_single_shards_are_sequences(name, place, tmp_path):
    url = f"{copied(GOLDEN / 'shards', place, tmp_path)}/{name}.tfrecord"
    shard = shardio.open_shard(url)
    assert isinstance(shard, shardio.ShardReader)
    assert list(shard[5:9]) == SHARD_RECORDS[5:9]
    assert shard.read([3, 3]) == [SHARD_RECORDS[3]] * 2
    assert "30 records" in repr(shard)
    assert list(pickle.loads(pickle.dumps(shard))) == SHARD_RECORDS
    assert shard.locate(2).url == url


def test_a_shard_without_an_index(tmp_path):
    folder = Path(copied(GOLDEN / "shards", "local", tmp_path))
    for name in ("none", "zstd", "gzip"):
        (folder / f"{name}.tfrecord.shardidx").unlink()
        with pytest.warns(UserWarning, match="has no index: it can only be read in order"):
            shard = shardio.open_shard(folder / f"{name}.tfrecord")
        assert list(shard) == SHARD_RECORDS
        with pytest.raises(TypeError, match="has no index, so it has no length"):
            len(shard)
        with pytest.raises(TypeError, match="cannot be looked up by number"):
            shard[0]


def test_shards_that_are_not_there(tmp_path, monkeypatch):
    for path in (tmp_path / "no.tfrecord", tmp_path, tmp_path / "no" / "such.tfrecord"):
        with pytest.raises(NotFoundError):
            shardio.open_shard(path)
    monkeypatch.chdir(tmp_path)
    with shardio.ShardWriter("here.tfrecord") as out:
        out.write(b"wren")
    assert list(shardio.open_shard("here.tfrecord")) == [b"wren"]
    assert list(shardio.open_shard("./here.tfrecord")) == [b"wren"]


def test_reading_starts_no_thread_that_stays(urls):
    before = {*threading.enumerate()}  # others may end meanwhile
    ds, wanted = both(urls, "none", "local")
    iterator = iter(ds)
    assert next(iterator) == wanted[0]
    del iterator
    assert {*threading.enumerate()} <= before


def test_empty_datasets(tmp_path):
    url = fresh("local", tmp_path)
    with shardio.DatasetWriter(url):
        pass
    ds = shardio.open(url)
    assert (len(ds), list(ds), ds.read([]), list(ds[:]), ds.split, dict(ds.splits)) == (
        0,
        [],
        [],
        [],
        "all",
        {},
    )
    with pytest.raises(IndexError):
        ds[0]
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write(b"", "train")
    assert list(shardio.open(url)) == [b""]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "cache",
            "/tmp/cache",
            r"cache= takes shardio.CacheOptions\(dir=..., max_bytes=...\), found str",
        ),
        ("decode", b"image", r'decode= takes True, False or "image", found bytes'),
        ("decode", None, r'decode= takes True, False or "image", found NoneType'),
        ("digest", 3, "digest= takes text.*found 3"),
        ("limits", 3, "limits= takes shardio.Limits.*found int"),
        ("storage_options", "secret", "storage_options= takes a mapping, found str"),
        ("storage_options", [("a", 1)], "storage_options= takes a mapping, found list"),
    ],
)
def test_an_argument_of_another_type_is_named(urls, name, value, says) -> None:
    with pytest.raises(TypeError, match=says):
        shardio.open(urls["none", "local"], "all", **{name: value})
