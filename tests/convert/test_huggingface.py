"""From `datasets` of Hugging Face and back: the real package, its features whole or an error."""

from __future__ import annotations

import datetime
import io
import sys
import types
import wave
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import shardio
from shardio.errors import CommitConflictError, FormatError, NotFoundError, SchemaError, UnsafeNameError
from tests.convert.conftest import picture
from tests.suites.errors import refused
from tests.suites.lazy import imported_when_used

datasets = imported_when_used("datasets")


def sound(seed: int) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(np.arange(seed, seed + 40, dtype="<i2").tobytes())
    return out.getvalue()


def stored(dataset: Any) -> list[Any]:
    """Return rows as they are stored: images and audio by their bytes."""
    return dataset.with_format("arrow")[:].to_pylist()


def everything(rows: int) -> Any:
    from datasets import Array2D, ClassLabel, Features, Image, Json, List, Sequence, Translation, Value

    file = {"bytes": Value("binary"), "path": Value("string")}
    features = {
        "id": Value("int64"),
        "label": ClassLabel(names=["wren", "robin"]),
        "image": Image(),
        "sound": file,
        "numbers": Sequence(Value("int32")),
        "old": Sequence({"word": Value("string"), "at": Value("int64")}),
        "spans": List({"word": Value("string"), "kind": ClassLabel(names=["noun", "verb"])}),
        "vector": List(Value("float32"), length=3),
        "matrix": Array2D((2, 3), "float32"),
        "time": Value("timestamp[us]"),
        "nested": {"small": Value("int8"), "more": {"text": Value("string")}},
        "pages": List(Image()),
        "labels": List(ClassLabel(names=["red", "green"])),
        "anything": Json(),
        "pair": Translation(["de", "en"]),
        "raw": Value("binary"),
        "ok": Value("bool"),
    }
    values = [
        {
            "id": n,
            "label": n % 2,
            "image": {"bytes": picture(n), "path": f"{n}.jpg" if n % 2 else None},
            "sound": {"bytes": sound(n), "path": None},
            "numbers": list(range(n)),
            "old": {"word": ["a"] * n, "at": list(range(n))},
            "spans": [{"word": "a", "kind": 1}] * n,
            "vector": [0.5, n, -1],
            "matrix": np.full((2, 3), n, np.float32).tolist(),
            "time": datetime.datetime(2026, 1, n + 1),  # noqa: DTZ001 - as datasets has it
            "nested": {"small": n, "more": {"text": "z"}},
            "pages": [{"bytes": picture(k, "PNG"), "path": None} for k in range(n)],
            "labels": [0, 1],
            "anything": {"a": [1, "x"]},
            "pair": {"de": "ja", "en": "yes"},
            "raw": bytes([0, n]),
            "ok": n == 1,
        }
        for n in range(rows)
    ]
    found = datasets.Dataset.from_list(values, features=Features(features))
    return found.cast_column("sound", datasets.Audio(sampling_rate=16_000))


@pytest.mark.parametrize("way", ["Dataset", "Parquet"])
def test_a_dataset_comes_back_as_it_was(tmp_path, way) -> None:
    """All features and values, those of datasets' own files too."""
    given = everything(4)
    source: Any = given
    if way == "Parquet":
        source = tmp_path / "train.parquet"
        # That to_parquet fails at in 5.2.0.
        given = given.remove_columns("pair")
        given.to_parquet(source)
    report = shardio.convert_dataset(source, tmp_path / "out")
    reader = shardio.open(tmp_path / "out")
    assert report.schema["image"].type == "image"
    assert report.schema["label"].classes == ("wren", "robin")
    assert report.schema["labels"].classes == ("red", "green")
    assert report.schema["matrix"].short == "float32[2,3]"
    assert reader[1]["image"] == picture(1)
    assert reader[1]["sound"] == sound(1)
    assert reader[1]["pages"] == [picture(0, "PNG")]
    back = reader.to_hf()
    assert back.features == given.features
    assert stored(back) == stored(given)
    assert str(back.split) == "train"
    some = reader[2:0:-1].to_hf(["label", "image", "image.path"])
    assert [row["label"] for row in stored(some)] == [0, 1]
    assert isinstance(some.features["image"], datasets.Image)
    # And the other way round: nothing of it is news to the dataset.
    shardio.convert_dataset(back, tmp_path / "out", mode="append")
    assert shardio.open(tmp_path / "out").read([5])[0]["sound"] == sound(1)


def test_splits_selections_and_workers(tmp_path) -> None:
    """Rows in the order that the caller sees, by split; the dataset travels to processes."""
    given = datasets.Dataset.from_dict({"n": list(range(100))})
    parts = datasets.DatasetDict({"train": given.shuffle(seed=1), "test": given.select([7, 3])})
    report = shardio.convert_dataset(parts, tmp_path / "out", workers=2)
    assert report.source == "datasets.DatasetDict"
    assert report.kind == "datasets"
    assert report.records == {"train": 100, "test": 2}
    for split in parts:
        found = [record["n"] for record in shardio.open(tmp_path / "out", split)]
        assert found == list(parts[split]["n"])


def test_what_datasets_does_not_say_has_a_type_of_its_own(tmp_path) -> None:
    schema = {
        "image": "jpeg",
        "label": shardio.Feature("uint8", classes=["a", "b"]),
        "half": "bfloat16[2]",
        "cube": "int16[?,2,2]",
        "deep": "int8[1,1,1,1,1,2]",
        "words": "text[?]",
        "note": shardio.Feature("json", optional=True),
    }
    record = {
        "image": picture(1), "label": "b", "half": [0.5, 2], "cube": np.ones((3, 2, 2), np.int16),
        "deep": np.ones((1, 1, 1, 1, 1, 2), np.int8), "words": ["x", "y"], "note": {"a": 1},
    }  # fmt: skip
    with shardio.DatasetWriter(tmp_path / "out", schema=schema) as out:
        out.write(record)
        out.write({**record, "note": None})
    found = shardio.open(tmp_path / "out", decode="image").to_hf()
    assert found[0]["image"].size == (9, 7)
    assert found.features["label"].names == ["a", "b"]
    assert found[0]["label"] == 1
    assert found[0]["half"] == [0.5, 2]
    assert np.shape(found.with_format("numpy")[0]["cube"]) == (3, 2, 2)
    assert np.shape(found[0]["deep"]) == (1, 1, 1, 1, 1, 2)
    assert found[0]["words"] == ["x", "y"]
    assert [row["note"] for row in found] == [{"a": 1}, None]
    with refused(ValueError, "'label'"):
        shardio.open(tmp_path / "out").to_hf(["lable"])


def test_files_that_are_named_are_read_or_missed(tmp_path, convert) -> None:
    """`datasets` keeps paths alone of local files; a copy of paths would be a dataset without images."""
    (tmp_path / "a.jpg").write_bytes(picture(1))
    named = datasets.Dataset.from_dict({"image": [str(tmp_path / "a.jpg")]}).cast_column(
        "image", datasets.Image()
    )
    assert convert(named)[0]["image"] == picture(1)
    assert convert(named)[0]["image.path"] == "a.jpg"
    # As the table alone is stored.
    import pyarrow.parquet as pq

    pq.write_table(
        named.with_format("arrow")[:].cast(named.features.arrow_schema), tmp_path / "paths.parquet"
    )
    convert.refused(tmp_path / "paths.parquet", SchemaError, "the path of a file and not its bytes")
    (tmp_path / "a.jpg").unlink()
    convert.refused(named, FormatError, "a.jpg")


def test_missing_labels_and_others(tmp_path, convert) -> None:
    features = datasets.Features(
        {"label": datasets.ClassLabel(names=["a", "b"]), "n": datasets.Value("int64")}
    )
    given = datasets.Dataset.from_dict({"label": [1, -1, None], "n": [None, 1, 2]}, features=features)
    values = convert(given)
    assert [int(value["label"]) for value in values] == [1, -1, -1]
    assert convert.report.schema["label"] == shardio.Feature("int64", classes=["a", "b"], default=-1)
    assert values[0]["n"] is None


def test_streams_are_refused_by_name(tmp_path, convert) -> None:
    # Making one imports torch, which takes longer than all other tests here.
    stream = object.__new__(datasets.IterableDataset)
    convert.refused(stream, TypeError, "IterableDataset.*is a stream.*hf://datasets/")
    convert.refused(datasets.Dataset.from_dict({"n": [1]}), ValueError, "leave kind= out", kind="jsonl")


def test_names_of_splits_that_are_none(tmp_path, convert) -> None:
    """`load_dataset(..., split="train[:10%]")` names its split so; the advice works."""
    part = datasets.Dataset(
        datasets.Dataset.from_dict({"n": [1]}).data, split=datasets.NamedSplit("train[:9%]")
    )
    convert.refused(part, UnsafeNameError, r'train\[:9%\].*; split="train" is a name for all records')
    assert list(convert(part, split="train")) == [{"n": 1}]


def test_formats_that_are_ignored_are_noted(convert) -> None:
    """The table is converted, as `to_parquet` writes it: what a format makes or hides is not lost unsaid."""
    given = datasets.Dataset.from_dict({"n": [1], "m": [2]})
    ways = {
        "": given.with_format("numpy"),
        "the transform is not applied": given.with_transform(lambda batch: {"n": [7]}),
        "hides is written, too: m;": given.with_format("numpy", columns=["n"]),
    }
    for said, dataset in ways.items():
        assert list(convert(dataset)) == [{"n": 1, "m": 2}]
        found = [note for note in convert.report.notes if note.startswith("train: ")]
        assert len(found) == bool(said)
        assert said in "".join(found)


def test_a_dataset_without_rows_has_its_schema(tmp_path) -> None:
    features = datasets.Features({"label": datasets.ClassLabel(names=["a"]), "t": datasets.Value("string")})
    given = datasets.Dataset.from_dict({"label": [], "t": []}, features=features)
    assert shardio.convert_dataset(given, tmp_path / "out").records == {}
    found = shardio.open(tmp_path / "out", "all")
    assert found.schema["label"].classes == ("a",)
    assert found.to_hf().features == features


def test_structs_without_fields(tmp_path) -> None:
    """They hold whether there is one; nothing of them was written, and the way back failed."""
    import pyarrow as pa

    inner = pa.struct([("empty", pa.struct([])), ("k", pa.int64())])
    table = pa.table(
        {
            "n": [1, 2],
            "empty": pa.array([{}, None], pa.struct([])),
            "outer": pa.array([{"empty": {}, "k": 1}, {"empty": None, "k": 2}], inner),
        }
    )
    shardio.convert_dataset(datasets.Dataset(table), tmp_path / "out")
    found = shardio.open(tmp_path / "out")
    assert [record["empty"] for record in found] == [{}, None]
    assert [record["outer.empty"] for record in found] == [{}, None]
    assert found.to_hf().to_list() == table.to_pylist()


def test_times_in_seconds(tmp_path) -> None:
    """Parquet keeps them in milliseconds, beside the word of `datasets` that they are seconds."""
    from datasets import Features, List, Value

    zone = datetime.timezone(datetime.timedelta(hours=2))
    noon = datetime.datetime(2026, 7, 1, 12, tzinfo=zone)
    kind = Value("timestamp[s, tz=+02:00]")
    columns = {
        "one": (kind, [noon, None]),
        "some": (List(kind), [[noon], []]),
        "deep": ({"at": kind, "all": List({"at": kind})}, [{"at": noon, "all": [{"at": noon}]}] * 2),
        "time": (Value("time32[s]"), [datetime.time(1, 2, 3)] * 2),
    }
    features = Features({name: feature for name, (feature, _) in columns.items()})
    given = datasets.Dataset.from_dict({name: values for name, (_, values) in columns.items()}, features)
    given.to_parquet(tmp_path / "given.parquet")
    for number, source in enumerate((given, tmp_path / "given.parquet")):
        shardio.convert_dataset(source, tmp_path / f"out{number}")
        assert shardio.open(tmp_path / f"out{number}").to_hf()[:] == given[:]


def test_days_come_back_as_days(tmp_path) -> None:
    """Parquet keeps `date64` as days, beside the word of `datasets` that they are milliseconds."""
    days = [datetime.date(2026, 7, 1), datetime.date(1960, 2, 29)]
    features = datasets.Features({name: datasets.Value(name) for name in ("date32", "date64")})
    given = datasets.Dataset.from_dict({"date32": days, "date64": days}, features)
    given.to_parquet(tmp_path / "given.parquet")
    for number, source in enumerate((given, tmp_path / "given.parquet")):
        shardio.convert_dataset(source, tmp_path / f"out{number}")
        assert shardio.open(tmp_path / f"out{number}").to_hf()[:] == given[:]


@pytest.mark.parametrize("paths", [("a.png", "b.png"), ("a.png", None), (None, None)], ids=str)
def test_paths_in_lists_of_files(tmp_path, paths) -> None:
    """Some files of a list may have a path and others none; Parquet of such lists was refused."""
    pages = [{"bytes": picture(n, "PNG"), "path": path} for n, path in enumerate(paths)]
    features = datasets.Features({"pages": datasets.List(datasets.Image(decode=False))})
    # The first batch of rows has no paths at all.
    given = datasets.Dataset.from_dict({"pages": [[]] * 1100 + [pages, pages[1:]]}, features=features)
    lost = datasets.Dataset.from_dict({"pages": [None, pages]}, features=features)
    for name, dataset in {"given": given, "lost": lost}.items():
        dataset.to_parquet(tmp_path / f"{name}.parquet")
        for number, source in enumerate((dataset, tmp_path / f"{name}.parquet")):
            shardio.convert_dataset(source, tmp_path / f"{name}{number}")
            found = shardio.open(tmp_path / f"{name}{number}")
            assert ("pages.path" in found.schema) == (paths != (None, None))
            assert stored(found.to_hf()) == stored(dataset)


def test_what_is_advised_for_a_list_that_lacks_a_file(convert) -> None:
    """No JSON holds the images of the other lists."""
    features = datasets.Features({"pages": datasets.List(datasets.Image(decode=False))})
    page = {"bytes": picture(1), "path": None}
    given = datasets.Dataset.from_dict({"n": [1, 2], "pages": [[page], [None]]}).cast_column(
        "pages", features["pages"]
    )
    convert.refused(given, SchemaError, r"'pages'.*row 1.*leave the feature out with schema=")
    assert convert(given, schema={"pages": None}) == [{"n": 1}, {"n": 2}]
    assert [value["n"] for value in convert(given, on_error="skip")] == [1]


def test_structs_that_are_null_are_noted(tmp_path, convert) -> None:
    """A feature for each field cannot say whether the struct was null, or all its fields were."""
    kind = {"a": datasets.Value("int64"), "b": {"c": datasets.Value("string")}}
    rows = [{"a": 1, "b": {"c": "x"}}, None, {"a": None, "b": None}]
    given = datasets.Dataset.from_dict({"x": rows}, features=datasets.Features({"x": kind}))
    given.to_parquet(tmp_path / "given.parquet")
    for source in (given, tmp_path / "given.parquet"):
        assert convert(source)[1] == {"x.a": None, "x.b.c": None}
        first, second, *_ = convert.report.notes
        assert "column 'x' has 1 structs that are null" in str(first)
        assert "column 'x.b' has 2 structs that are null" in str(second)


def test_missing_labels_of_lists_are_refused_by_name(convert) -> None:
    """A list of numbers has no place for none of them; what is advised keeps it."""
    features = datasets.Features({"labels": datasets.List(datasets.ClassLabel(names=["a", "b"]))})
    given = datasets.Dataset.from_dict({"labels": [[0, None], None]}, features=features)
    convert.refused(given, SchemaError, r"'labels'.*row 0.*schema=.*json")
    assert [value["labels"] for value in convert(given, schema={"labels": "json"})] == [[0, None], None]


@pytest.mark.parametrize("make", [pa.table, datasets.Dataset.from_dict])
def test_tables_tell_items_apart(make, tmp_path) -> None:
    for _ in range(2):
        shardio.convert_dataset(make({"x": [1.0, 2.0, None]}), tmp_path / "d", session="run", workers=1)
    with pytest.raises(CommitConflictError):
        shardio.convert_dataset(make({"x": [1.0, 2.5, None]}), tmp_path / "d", session="run", workers=1)


@pytest.fixture(name="loaded")
def loaded_fixture(tmp_path, monkeypatch) -> Any:
    """Convert what the loaders of `datasets` read, with a cache of its own."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def loaded(source: Any, kind: str | None = "datasets") -> list[Any]:
        options = {"cache_dir": str(tmp_path / "cache")}
        report = shardio.convert_dataset(source, tmp_path / "out", kind=kind, source_options=options)
        assert report.kind == "datasets"
        return list(shardio.open(tmp_path / "out", "all"))

    return loaded


def test_hdf5_is_read_by_their_loader(loaded, tmp_path) -> None:
    import h5py

    with h5py.File(tmp_path / "birds.h5", "w") as file:
        file["x"] = np.arange(12, dtype="f4").reshape(4, 3)
        file["label"] = np.arange(4)
    values = loaded(tmp_path / "birds.h5", kind=None)
    assert [(value["label"], value["x"].tolist()) for value in values] == [
        (n, [3.0 * n, 3.0 * n + 1, 3.0 * n + 2]) for n in range(4)
    ]


def test_folders_of_audio_are_read_by_their_loader(loaded, tmp_path, monkeypatch) -> None:
    # The loader asks for the package, and uses it only for arrays.
    codec = types.ModuleType("torchcodec.encoders")
    monkeypatch.setattr(codec, "AudioEncoder", None, raising=False)
    monkeypatch.setitem(sys.modules, "torchcodec", types.ModuleType("torchcodec"))
    monkeypatch.setitem(sys.modules, "torchcodec.encoders", codec)
    for split, name, seed in (("train", "wren", 1), ("train", "robin", 2), ("test", "wren", 3)):
        path = tmp_path / "songs" / split / name / f"{seed}.wav"
        path.parent.mkdir(parents=True)
        path.write_bytes(sound(seed))
    values = loaded(str(tmp_path / "songs"))
    assert sorted((value["audio"], value["label"]) for value in values) == sorted(
        [(sound(1), 1), (sound(2), 0), (sound(3), 1)]
    )
    assert shardio.open(tmp_path / "out", "train").schema["label"].classes == ("robin", "wren")


def test_xml_is_read_by_their_loader(loaded, tmp_path) -> None:
    paths = [tmp_path / f"{n}.xml" for n in range(3)]
    for n, path in enumerate(paths):
        path.write_text(f"<bird>{n}</bird>")
    assert [value["xml"] for value in loaded(paths)] == [f"<bird>{n}</bird>" for n in range(3)]


def test_addresses_of_the_hub(monkeypatch, tmp_path) -> None:
    asked: list[dict[str, Any]] = []

    def load(**arguments: Any) -> Any:
        asked.append(arguments)
        return datasets.Dataset.from_dict({"n": [1]})

    monkeypatch.setattr("datasets.load_dataset", load)
    for number, (url, options) in enumerate(
        {
            "hf://datasets/o/n": {"path": "o/n"},
            "hf://datasets/o/n@v2/data": {"path": "o/n", "revision": "v2", "data_dir": "data"},
            "hf://datasets/o/n/a/*.xml": {"path": "o/n", "data_files": "a/*.xml"},
            "o/n": {"path": "o/n"},
        }.items()
    ):
        source = {"token": "x"}
        shardio.convert_dataset(url, tmp_path / f"{number}", kind="datasets", source_options=source)
        assert asked.pop() == {**options, **source}


def test_what_their_loaders_do_not_read(loaded, tmp_path) -> None:
    with pytest.raises((NotFoundError, FormatError)):
        loaded(str(tmp_path / "nothing-here"))
    with refused(ValueError, "s3://"):
        loaded("s3://bucket/songs")
    (tmp_path / "bad.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(90))
    with pytest.raises(FormatError) as caught:
        loaded(tmp_path / "bad.h5", kind=None)
    assert caught.value.url == str(tmp_path / "bad.h5")


def test_a_stream_has_the_features_and_values_of_the_dataset_in_memory(tmp_path) -> None:
    """Streams gave a column for each part of a struct, and whole numbers for times."""
    given = everything(4).remove_columns("sound")  # which needs torchcodec in any IterableDataset
    shardio.convert_dataset(given, tmp_path / "out")
    reader = shardio.open(tmp_path / "out")
    streamed = reader.to_hf(streaming=True, shuffle=False)
    assert streamed.features == given.features
    rows = datasets.Dataset.from_list(list(streamed.decode(False)), features=given.features)
    assert stored(rows) == stored(given)
