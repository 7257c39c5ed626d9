"""Readers as people type them: first records, batches, shuffled, mapped, and all splits by name."""

from __future__ import annotations

import base64
import inspect
import io
import pickle

import numpy as np
import pytest
from PIL import Image

import shardio
from shardio.display import html_of_values
from shardio.torch import MapDataset, StreamingDataLoader, StreamingDataset
from tests.suites.errors import refused

ROWS = 100


def value(n):
    return {"n": n, "word": f"word {n}", "parts": np.arange(n % 4)}


def write(url, splits):
    schema = {"n": "int64", "word": "text", "parts": "int64[?]"}
    with shardio.DatasetWriter(url, schema=schema, shard_bytes=500) as out:
        for split, numbers in splits.items():
            for n in numbers:
                out.write(value(n), split=split)
    return str(url)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    return write(tmp_path_factory.mktemp("views") / "ds", {"train": range(ROWS)})


@pytest.fixture
def ds(url):
    return shardio.open(url)


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    splits = {"test": range(70, 80), "a": range(5), "train": range(10, 70)}
    return write(tmp_path_factory.mktemp("views") / "several", splits)


def numbers(records):
    return [int(each["n"]) for each in records]


class TestFirstRecords:
    @pytest.mark.parametrize("n", [0, 1, 7, ROWS, ROWS + 5])
    def test_take_and_head_are_the_slice(self, ds, n):
        assert numbers(ds.take(n)) == numbers(ds.head(n)) == numbers(ds[:n]) == list(range(min(n, ROWS)))

    def test_head_alone_is_five(self, ds):
        assert numbers(ds.head()) == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("n", [-1, 1.5, "3", True, None])
    def test_what_is_no_number_of_records(self, ds, n):
        for first in (ds.take, ds.head):
            with refused((ValueError, TypeError), "n"):
                first(n)


class TestColumns:
    def test_names_and_features(self, ds):
        assert ds.column_names == ["n", "word", "parts"]
        assert {name: feature.short for name, feature in ds.features.items()} == {
            "n": "int64",
            "word": "text",
            "parts": "int64[?]",
        }
        assert ds.num_rows == len(ds) == ROWS

    def test_chosen_columns_are_all_that_is_there(self, ds):
        for chosen in (ds.select_columns("n"), ds.select_columns(["n"]), ds[5:9].select_columns(("n",))):
            assert chosen.column_names == ["n"]
            assert list(chosen.features) == ["n"]
            assert list(chosen[0]) == ["n"]
            assert list(next(iter(shardio.stream(chosen, global_batch=2)))) == ["n"]
            assert numbers(pickle.loads(pickle.dumps(chosen))) == numbers(chosen)
        assert ds.column_names == ["n", "word", "parts"]

    def test_chosen_columns_have_the_order_of_the_choice(self, ds):
        """In every way to read: a user who writes columns into a table counts on it."""
        chosen = ds.select_columns(["word", "n"])
        for reader in (chosen, chosen[3:9], chosen.shuffle(seed=1)):
            batches = [reader.batch(3), reader.iter_batches(2)]
            first = [next(iter(each)) for each in batches]
            for found in (reader.column_names, reader.features, reader[0], reader.read_batch([0, 1]), *first):
                assert list(found) == ["word", "n"]
        assert list(next(iter(shardio.stream(chosen, global_batch=2)))) == ["word", "n"]

    def test_unknown_columns_are_named(self, ds):
        with refused(ValueError, "'m'"):
            ds.select_columns(["n", "m"])

    def test_records_that_are_bytes(self, tmp_path):
        with shardio.DatasetWriter(tmp_path / "ds") as out:
            out.write(b"a")
        ds = shardio.open(tmp_path / "ds")
        assert (ds.features, ds.column_names, ds.head()) == ({}, ["payload"], [b"a"])
        with pytest.raises(ValueError, match="no feature"):
            ds.select_columns("payload")


class TestBatches:
    @pytest.mark.parametrize("drop_last", [False, True])
    @pytest.mark.parametrize("size", [1, 7, 50, ROWS, ROWS + 1])
    def test_they_are_the_records(self, ds, size, drop_last):
        batches = ds.batch(size, drop_last=drop_last)
        count = ROWS // size if drop_last else -(-ROWS // size)
        assert len(batches) == count
        assert [each["n"].tolist() for each in batches] == [batch["n"].tolist() for batch in batches[:]]
        found = [n for batch in batches for n in batch["n"].tolist()]
        assert found == list(range(min(ROWS, count * size)))

    def test_places(self, ds):
        batches = ds.batch(30)
        assert batches[-1]["n"].tolist() == list(range(90, 100))
        with pytest.raises(IndexError):
            batches[4]
        for size in (0, -1):
            with pytest.raises(ValueError, match="must be 1 or more"):
                ds.batch(size)


class TestShuffle:
    def test_it_holds_each_record_once_in_an_order_of_the_seed(self, ds):
        one, two = numbers(ds.shuffle()), numbers(ds.shuffle(seed=1))
        assert one == numbers(ds.shuffle(0)) != two
        assert sorted(one) == sorted(two) == list(range(ROWS))
        assert numbers(ds[10:20].shuffle().take(3)) == numbers(ds[10:20].shuffle())[:3]

    def test_a_stream_says_that_it_shuffles_itself(self, ds):
        with refused(ValueError, "shuffle="):
            shardio.stream(ds.shuffle(), global_batch=2)


def double(record):
    return {"twice": record["n"] * 2, "word": record["word"].upper()}


def number(record):
    return record["twice"]


class TestMap:
    def test_every_way_to_read_delivers_what_the_function_returns(self, ds):
        mapped = ds.map(double)
        wanted = [double(value(n)) for n in range(ROWS)]
        assert mapped[3] == mapped[3:9][0] == mapped.head(4)[3] == mapped.read([3])[0] == wanted[3]
        assert list(mapped) == list(MapDataset(mapped)) == wanted
        columns = mapped.read_batch([1, 2])
        assert columns["twice"].tolist() == [2, 4]
        assert columns["word"] == ["WORD 1", "WORD 2"]
        assert [batch["twice"].tolist() for batch in mapped.batch(60)] == [
            [2 * n for n in range(60)],
            [2 * n for n in range(60, 100)],
        ]
        assert mapped.schema is None
        assert mapped.column_names == ["twice", "word"]
        assert "mapped" in repr(mapped)
        assert pickle.loads(pickle.dumps(mapped))[3] == wanted[3]

    def test_maps_follow_one_another(self, ds):
        assert ds.map(double).map(number)[7] == 14
        assert ds.map(double).map(number).read_batch([1])["value"].tolist() == [2]

    def test_it_is_lazy(self, ds):
        def fails(record):
            raise RuntimeError(str(record["n"]))

        mapped = ds.map(fails)
        assert len(mapped.take(3)) == 3
        with pytest.raises(RuntimeError, match="5"):
            mapped[5]

    @pytest.mark.parametrize("options", [{}, {"transform": number}, {"batch_transform": dict}])
    def test_a_stream_delivers_as_with_the_function_as_its_transform(self, ds, options):
        def both(record):
            changed = double(record)
            return options["transform"](changed) if "transform" in options else changed

        rest = {name: given for name, given in options.items() if name != "transform"}
        given = shardio.stream(ds, global_batch=8, seed=3, transform=both, **rest)
        mapped = shardio.stream(ds.map(double), global_batch=8, seed=3, **options)
        assert [repr(batch) for batch in mapped] == [repr(batch) for batch in given]

    def test_random_transforms_come_after(self, ds):
        stream = shardio.stream(
            ds.map(double),
            global_batch=4,
            shuffle=False,
            random_transform=lambda record, rng: {**record, "r": rng.random()},
        )
        assert set(next(iter(stream))) == {"twice", "word", "r"}

    def test_loaders_of_torch_and_their_states(self, ds):
        def batches(dataset, skip=0):
            loader = StreamingDataLoader(dataset, num_threads=1)
            iterator = iter(loader)
            for _ in range(skip):
                next(iterator)
            state = loader.state_dict()
            rest = [batch["twice"].tolist() for batch in iterator]
            return state, rest

        def dataset():
            return StreamingDataset(ds.map(double), global_batch=10, seed=5)

        state, rest = batches(dataset(), skip=4)
        resumed = StreamingDataLoader(dataset(), num_threads=1)
        resumed.load_state_dict(state)
        assert [batch["twice"].tolist() for batch in resumed] == rest
        assert len(rest) == 6

    def test_mixtures_are_mapped_alike(self, ds):
        mixed = shardio.mix([(ds.map(double), 0.5), (ds.map(double), 0.5)])
        assert set(next(iter(shardio.stream(mixed, global_batch=4)))) == {"twice", "word"}
        with pytest.raises(ValueError, match="same functions"):
            shardio.mix([(ds.map(double), 0.5), (ds.map(number), 0.5)])

    def test_functions_filter_what_was_mapped(self, ds):
        found = ds.map(double).filter(lambda columns: columns["twice"] > 150)
        assert [int(each["twice"]) for each in found] == list(range(152, 200, 2))

    def test_what_reads_stored_features_comes_before(self, ds):
        mapped = ds.map(double)
        for wrong in (
            lambda: mapped.filter("n = 3"),
            lambda: mapped.filter(lambda _: None, features=["n"]),
            lambda: mapped.split_by({"a": 0.5, "b": 0.5}, by="n"),
            mapped.to_arrow,
            mapped.to_pandas,
            mapped.to_hf,
            lambda: mapped.select_columns("n"),
        ):
            with refused(ValueError, "map()"):
                wrong()
        with pytest.raises(TypeError, match="map takes a function"):
            ds.map("n")

    def test_payloads_are_mapped_too(self, tmp_path):
        with shardio.DatasetWriter(tmp_path / "ds") as out:
            out.write_many([b"a", b"bc"])
        mapped = shardio.open(tmp_path / "ds").map(len)
        assert list(mapped) == [1, 2]
        assert mapped.read_batch([1, 0])["value"].tolist() == [2, 1]

    def test_joins_are_mapped_by_their_streams(self, ds):
        joined = shardio.join(ds.select_columns("n"), ds.select_columns(["n", "word"]), on="n")
        with pytest.raises(ValueError, match="map works on one dataset"):
            joined.map(double)


class TestParts:
    def test_train_and_test(self, ds):
        parts = ds.train_test_split(0.2, seed=4)
        assert isinstance(parts, shardio.DatasetDict)
        assert parts.num_rows == {"train": 80, "test": 20}
        assert sorted(numbers(parts["train"]) + numbers(parts["test"])) == list(range(ROWS))
        assert ds.train_test_split(20, seed=4).num_rows == parts.num_rows
        assert numbers(ds.train_test_split(20, seed=4)["test"]) == numbers(parts["test"])
        assert next(iter(shardio.stream(parts["test"], global_batch=20)))["n"].shape == (20,)

    @pytest.mark.parametrize("size", [0, 1.0, -0.1, ROWS, 2.5])
    def test_sizes_that_leave_a_part_empty(self, ds, size):
        with refused(ValueError, "test_size"):
            ds.train_test_split(size)


class TestSplits:
    def test_several_are_a_mapping(self, several):
        ds = shardio.open(several)
        assert list(ds) == ["train", "a", "test"]
        assert ds.num_rows == ds.splits == {"train": 60, "a": 5, "test": 10}
        assert numbers(ds["test"]) == list(range(70, 80))
        assert ds.column_names["a"] == ["n", "word", "parts"]
        assert (ds.version, ds.digest) == (1, ds["a"].digest)
        assert ds.schema == ds["a"].schema
        assert numbers(pickle.loads(pickle.dumps(ds))["a"]) == list(range(5))
        assert "train" in repr(ds)
        assert "60 records" in ds._repr_html_()

    def test_one_is_a_reader_as_is_one_that_was_named(self, several, url):
        assert isinstance(shardio.open(url), shardio.DatasetReader)
        assert shardio.open(several, "a").split == "a"
        assert len(shardio.open(several, "all")) == 75

    def test_what_is_done_to_all(self, several):
        ds = shardio.open(several)
        assert ds.filter(lambda columns: columns["n"] % 2 == 0).num_rows == {"train": 30, "a": 3, "test": 5}
        assert ds.map(double)["test"][0]["twice"] == 140
        assert ds.select_columns(["n"]).column_names["train"] == ["n"]
        assert sorted(numbers(ds.shuffle(seed=2)["a"])) == [0, 1, 2, 3, 4]

    def test_a_split_must_be_chosen(self, several):
        ds = shardio.open(several)
        with refused(TypeError, "'train'"):
            ds[0]
        with refused(KeyError, "'val'"):
            ds["val"]
        with refused(AttributeError, "'train'"):
            _ = ds.read_batch
        with refused(TypeError, "'train'"):
            shardio.stream(ds, global_batch=2)

    def test_urls_are_streamed_where_there_is_one_split(self, several, url):
        streams = [shardio.stream(given, global_batch=10, seed=2) for given in (url, shardio.open(url))]
        assert [batch["n"].tolist() for batch in streams[0]] == [batch["n"].tolist() for batch in streams[1]]
        assert len(list(StreamingDataset(url, global_batch=10))) == 10
        for streamed in (shardio.stream, StreamingDataset):
            assert len(streamed(several, split="test", global_batch=5)) == 2
            with pytest.raises(TypeError, match="split= is for a URL"):
                streamed(shardio.open(url), split="train", global_batch=10)
        with refused(ValueError, "split="):
            shardio.stream(several, global_batch=10)


class TestNames:
    def test_a_mistyped_option_of_open(self, url):
        with refused(TypeError, "spilt=", "split="):
            shardio.open(url, spilt="train")

    def test_an_option_of_a_dataset_given_to_its_loader(self, ds):
        with refused(TypeError, "shuffle="):
            StreamingDataLoader(StreamingDataset(ds, global_batch=10), shuffle=True)

    def test_a_mistyped_option_that_goes_on_to_another_function(self, tmp_path):
        (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
        with refused(TypeError, "modee=", "mode="):
            shardio.convert_dataset(tmp_path / "a.jsonl", tmp_path / "ds", modee="append")

    def test_a_mistyped_attribute(self, ds):
        for owner, mistyped, meant in ((ds, "shuffel", "shuffle"), (shardio, "DataWriter", "DatasetWriter")):
            with pytest.raises(AttributeError, match=f"'{mistyped}'; did you mean '{meant}'"):
                getattr(owner, mistyped)
        with pytest.raises(AttributeError, match=r"shardio\.open\(url\) opens a dataset"):
            shardio.load_dataset  # noqa: B018
        assert not hasattr(ds, "__array__")

    def test_a_missing_key_is_a_key_error(self, tmp_path):
        with shardio.DatasetWriter(tmp_path / "ds", schema={"id": "text"}) as out:
            out.write({"id": "a"})
        shardio.build_keys(tmp_path / "ds", feature="id", workers=1)
        with refused(KeyError, "'b'"):
            shardio.open(tmp_path / "ds").find("b")

    def test_every_public_function_names_the_option_that_is_meant(self):
        asked = 0
        for name in shardio.__all__:
            function = getattr(shardio, name)
            if not inspect.isfunction(function) and name not in ("DatasetWriter", "Feature", "ShardWriter"):
                continue
            options = inspect.signature(function).parameters
            if name == "stream" or any(option.kind is option.VAR_KEYWORD for option in options.values()):
                continue
            for option in options.values():
                if option.kind is not option.KEYWORD_ONLY or len(option.name) < 5:
                    continue
                mistyped = option.name[:-2] + option.name[-1] + option.name[-2]
                if mistyped in options or mistyped == option.name:
                    continue
                with pytest.raises(TypeError, match=f"has no option {mistyped}=; did you mean "):
                    function(**{mistyped: None})
                asked += 1
        assert asked > 100


class TestShown:
    def test_loaders_say_what_they_are(self, ds):
        dataset = StreamingDataset(ds, global_batch=10)
        for shown in (dataset, StreamingDataLoader(dataset), MapDataset(ds), ds.batch(3)):
            assert ds.source.url in repr(shown)
            assert type(shown).__name__ in repr(shown)

    def test_notebooks_show_first_records_and_pictures(self, ds, tmp_path):
        assert "word 2" in ds._repr_html_()
        picture = io.BytesIO()
        Image.new("RGB", (4, 3), "red").save(picture, "PNG")
        schema = {"image": "png", "caption": "text"}
        with shardio.DatasetWriter(tmp_path / "ds", schema=schema) as out:
            out.write({"image": picture.getvalue(), "caption": "<script>"})
        shown = shardio.open(tmp_path / "ds")._repr_html_()
        data = base64.b64encode(picture.getvalue()).decode()
        assert f'<img src="data:image/png;base64,{data}"' in shown
        assert "<script>" not in shown
        assert data in html_of_values(shardio.open(tmp_path / "ds")[0])
        assert "mapped" in ds.map(double)._repr_html_()

    def test_what_cannot_be_read_is_said_in_its_place(self, tmp_path):
        url = write(tmp_path / "ds", {"train": range(3)})
        for shard in tmp_path.rglob("*.tfrecord"):
            shard.write_bytes(b"x" * shard.stat().st_size)
        assert "cannot be read" in shardio.open(url)._repr_html_()


@pytest.mark.filterwarnings("ignore:.*no shard has a table")
def test_a_split_whose_records_were_deleted_has_the_same_columns(tmp_path) -> None:
    schema = {"z": "int64", "a": "text", "m": "float32[2]", "b": "int32[?]", "t": "tensor"}
    with shardio.DatasetWriter(tmp_path / "ds", schema=schema) as out:
        for split in ("train", "val"):
            out.write({"z": 1, "a": "x", "m": [1, 2], "b": [1], "t": np.ones(2)}, split=split)
    shardio.delete(tmp_path / "ds", [0], split="val")
    for split in ("train", "val"):
        found = shardio.open(tmp_path / "ds", split)
        assert len(found) == (split == "train")
        orders = [
            found.column_names,
            found.read_batch([]),
            found.to_arrow().column_names,
            found.to_pandas().columns,
        ]
        assert [list(order) for order in orders] == [list(schema)] * 4
