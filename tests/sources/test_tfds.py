"""Folders of TensorFlow Datasets are adopted and converted in one step, with values as tfds reads them.

`tests/golden/tfds` was written by tfds, and so were its values (`tests/oracle/tfds_golden.py`).
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardio
import shardio_indexer
from shardio import codecs
from shardio.cli import main as program
from shardio.errors import FormatError, NotFoundError, SchemaError
from tests.convert.conftest import picture
from tests.indexer.shards import main, tfrecord
from tests.suites.errors import refused

GOLDEN = Path(__file__).parents[1] / "golden" / "tfds"
VERSION = GOLDEN / "birds" / "1.0.0"
VALUES = json.loads((GOLDEN / "values.json").read_text())
SPLITS = {"train": 5, "test": 2, "unsupervised": 2}
CLASSES = {"label": ("wren", "robin", "tit"), "labels": ("a", "b"), "objects/label": ("x", "y")}
# What tfds gives for an optional feature that is missing.
NOTHING = {"maybe": np.iinfo(np.int64).min, "maybe_text": b""}
NESTED = {"ragged", "ragged3", "ragged_texts/words"}


@pytest.fixture
def folder(tmp_path) -> Path:
    return Path(shutil.copytree(VERSION, tmp_path / "1.0.0"))


def value_of(plain: Any) -> Any:
    """Return what `tfds_golden.plain` wrote; lists are lists of str where they hold text."""
    if isinstance(plain, dict) and set(plain) == {"dtype", "shape", "data"}:
        return np.frombuffer(base64.b64decode(plain["data"]), plain["dtype"]).reshape(plain["shape"])
    if isinstance(plain, dict) and set(plain) == {"bytes"}:
        return base64.b64decode(plain["bytes"])
    if isinstance(plain, dict) and set(plain) == {"lists"}:
        return value_of(plain["lists"])
    return [value_of(item) for item in plain] if isinstance(plain, list) else plain


def flat(plain: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return values by their names joined, as records have them."""
    out: dict[str, Any] = {}
    for name, item in plain.items():
        nested = isinstance(item, dict) and not set(item) & {"dtype", "bytes", "lists"}
        out |= flat(item, f"{prefix}{name}/") if nested else {prefix + name: value_of(item)}
    return out


def as_bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [as_bytes(item) for item in value]
    return value.encode() if isinstance(value, str) else value


def same(name: str, found: Any, wanted: Any, *, types: bool) -> bool:
    if found is None:
        return bool(wanted == NOTHING[name])
    if isinstance(found, str | bytes | list) and name != "video":
        return bool(as_bytes(found) == wanted)
    found = np.stack(found) if isinstance(found, list) else np.asarray(found)
    return found.shape == wanted.shape and bool(
        np.array_equal(found, wanted)
        if types and found.dtype == wanted.dtype
        else not types and np.allclose(found.astype(np.float64), wanted.astype(np.float64), atol=1e-3)
    )


def records(url: Path, split: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each record as it is read, and as tfds reads it."""
    ds = shardio.open(url, split, decode="image")
    return [(found, flat(wanted)) for found, wanted in zip(ds, VALUES[split], strict=True)]


def test_a_conversion_has_the_values_and_types_of_tfds(folder, tmp_path) -> None:
    report = shardio.convert_dataset(folder, tmp_path / "out", workers=1)
    assert (report.kind, report.records, list(report.ignored)) == ("tfds", SPLITS, ["LICENSE"])
    for split in SPLITS:
        for found, wanted in records(tmp_path / "out", split):
            assert found.keys() == wanted.keys()
            wrong = [name for name, value in wanted.items() if name not in ("tensors", *NESTED)
                     and not same(name, found[name], value, types=True)]  # fmt: skip
            assert wrong == []
            for name in NESTED:
                assert as_bytes(found[name]) == wanted[name]
    schema = shardio.open(tmp_path / "out", "train").schema
    assert {name: each.classes for name, each in schema.items() if each.classes} == CLASSES
    assert schema["as_zlib"].short == "float32[?,?]"
    # Each is named that is not what tfds gives.
    assert sorted(note.partition(":")[0] for note in report.notes) == sorted(["tensors", *NESTED])
    about = shardio.open(tmp_path / "out", "train").metadata["tfds"]
    assert (about["name"], about["version"], about["license"]) == ("birds", "1.0.0", "CC0")


def test_an_adoption_has_the_values_as_records_hold_them_and_names_the_others(folder) -> None:
    report = shardio_indexer.adopt(folder, workers=1)
    assert (report.ok, report.splits, report.ignored) == (True, SPLITS, (str(folder / "LICENSE"),))
    named = {name for note in report.notes for name in note.partition(":")[0].split(", ")}
    packed = {"as_zlib", "as_int64_bytes", "tensors", *NESTED}
    for split in SPLITS:
        for found, wanted in records(folder, split):
            for name in wanted.keys() - packed - {"u64"}:
                assert same(name, found[name], wanted[name], types=False), name
                if not same(name, found[name], wanted[name], types=True):
                    assert name in named
            assert found["u64"].view(np.uint64) == wanted["u64"]
            assert found["ragged/ragged_row_lengths_0"].tolist() == list(map(len, wanted["ragged"]))
    assert packed | {"u64"} <= named
    schema = shardio.open(folder, "train").schema
    assert {name: each.classes for name, each in schema.items() if each.classes} == CLASSES
    assert shardio.open(folder, "train").metadata["tfds"]["name"] == "birds"
    assert shardio.verify(folder).ok
    assert shardio_indexer.adopt(folder, workers=1).version == 1
    # The usual ways to say otherwise are there.
    assert main([str(folder), "--type", "maybe_text=text", "--type", "mask=-"]) == 0
    changed = shardio.open(folder, "train").schema
    assert changed["maybe_text"].type == "text"
    assert changed.keys() == schema.keys() - {"mask"}


def test_descriptions_of_older_versions_say_the_same(folder, tmp_path) -> None:
    """Before 4.5 `features.json` was another tree; tfds reads both alike."""
    wanted = shardio.convert_dataset(folder, tmp_path / "today", workers=1).schema
    shutil.copy(GOLDEN / "features-before-4.5.json", folder / "features.json")
    assert shardio.convert_dataset(folder, tmp_path / "before", workers=1).schema == wanted


def test_the_folder_of_the_dataset_is_that_of_its_one_version(folder, tmp_path) -> None:
    data = tmp_path / "data" / "birds"
    shutil.move(folder, data / "1.0.0")
    assert shardio_indexer.adopt(data, into=tmp_path / "adopted", workers=1).splits == SPLITS
    assert shardio.convert_dataset(data, tmp_path / "out", workers=1).records == SPLITS
    shutil.copytree(data / "1.0.0", data / "2.0.0")
    for made in (lambda: shardio_indexer.adopt(data), lambda: shardio.convert_dataset(data, tmp_path / "x")):
        with pytest.raises(ValueError, match=r"several .*1\.0\.0.*2\.0\.0"):
            made()


def test_files_of_a_split_that_are_not_there_are_named(folder, tmp_path) -> None:
    gone = folder / "birds-train.tfrecord-00001-of-00002"
    gone.unlink()
    (folder / "birds-more.tfrecord-00000-of-00001").write_bytes(b"")
    with refused(NotFoundError, "'train'"):
        shardio.convert_dataset(folder, tmp_path / "out", workers=1)
    report = shardio_indexer.adopt(folder, workers=1)
    assert not report.ok
    assert [refusal.url for refusal in report.refused] == [str(gone)]
    assert str(folder / "birds-more.tfrecord-00000-of-00001") in report.ignored
    assert any("in no split of dataset_info.json" in note for note in report.notes)
    # As it advises: fetched, and run again; or converted as TFRecord files, of which nothing is known.
    shutil.copy(VERSION / gone.name, gone)
    assert shardio_indexer.adopt(folder, workers=1).splits == SPLITS
    gone.unlink()
    files = str(folder / "birds-train*")
    assert shardio.convert_dataset(files, tmp_path / "some", kind="tfrecord", workers=1).schema is not None


def test_splits_may_be_said_otherwise(folder, tmp_path) -> None:
    report = shardio.convert_dataset(folder, tmp_path / "some", split={"one": "*test*"}, workers=1)
    assert report.records == {"one": SPLITS["test"]}
    assert "birds-train.tfrecord-00000-of-00002" in report.ignored
    assert shardio.convert_dataset(folder, tmp_path / "all", split="one", workers=1).records == {"one": 9}
    assert shardio_indexer.adopt(folder, split={"one": "*test*"}, workers=1).splits == {"one": SPLITS["test"]}


def test_other_numbers_of_records_than_the_folder_says_are_noted(folder, tmp_path) -> None:
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"][1]["shardLengths"] = ["1", "9"]
    (folder / "dataset_info.json").write_text(json.dumps(info))
    wanted = "dataset_info.json says 9 records, found 1"
    assert any(wanted in note for note in shardio.convert_dataset(folder, tmp_path / "out", workers=1).notes)
    assert any(wanted in note for note in shardio_indexer.adopt(folder, workers=1).notes)


def test_an_adopted_folder_is_a_dataset_to_conversion(folder, tmp_path) -> None:
    """Its records are copied, without those that were deleted; `kind="tfds"` converts the folder's files."""
    shardio_indexer.adopt(folder, workers=1)
    shardio.delete(folder, [0], split="train")
    report = shardio.convert_dataset(folder, tmp_path / "out", workers=1)
    assert report.kind == "shardio"
    adopted, copied = shardio.open(folder, "train"), shardio.open(tmp_path / "out", "train")
    assert copied.schema == adopted.schema
    assert str(list(copied)) == str(list(adopted))
    report = shardio.convert_dataset(folder, tmp_path / "files", kind="tfds", workers=1)
    assert report.records == SPLITS


def test_without_features_json_records_show_the_features_and_files_the_classes(folder, tmp_path) -> None:
    (folder / "features.json").unlink()
    shardio.convert_dataset(folder, tmp_path / "out", workers=1)
    shardio_indexer.adopt(folder, workers=1)
    for url in (folder, tmp_path / "out"):
        train = shardio.open(url, "train")
        assert set(train.schema) >= {"image", "label", "objects/bbox", "ragged/ragged_flat_values"}
        assert train.schema["label"].classes == CLASSES["label"]
        assert [int(value["label"]) for value in train] == [
            int(value_of(value["label"])) for value in VALUES["train"]
        ]


def test_what_tfds_alone_knows_is_named(folder, tmp_path) -> None:
    features = json.loads((folder / "features.json").read_text())
    features["featuresDict"]["features"]["text"] = {"pythonClassName": "my.own.Feature", "jsonFeature": {}}
    (folder / "features.json").write_text(json.dumps(features))
    with refused(SchemaError, "'text'"):
        shardio.convert_dataset(folder, tmp_path / "out", workers=1)
    report = shardio.convert_dataset(folder, tmp_path / "out", schema={"text": None}, workers=1)
    assert "text" not in report.schema
    report = shardio_indexer.adopt(folder, workers=1)
    assert any(note.startswith("text: Feature") for note in report.notes)
    assert report.schema["text"].type == "bytes"


@pytest.mark.parametrize("change", [{"fileFormat": "array_record"}, None])
def test_other_folders_are_refused_by_name(folder, tmp_path, change) -> None:
    info = folder / "dataset_info.json"
    if change is None:
        (folder / "features.json").write_text('{"text": {}}')
    else:
        info.write_text(json.dumps(json.loads(info.read_text()) | change))
    with pytest.raises(FormatError):
        shardio.convert_dataset(folder, tmp_path / "out", workers=1)
    with pytest.raises(FormatError):
        shardio_indexer.adopt(folder)
    if change is None:
        # As it advises.
        (folder / "features.json").unlink()
        assert shardio_indexer.adopt(folder, workers=1).splits == SPLITS


def test_a_description_that_is_cut_is_left_out_by_a_pattern(folder) -> None:
    info = folder / "dataset_info.json"
    info.write_bytes(info.read_bytes()[:100])
    with pytest.raises(FormatError):
        shardio_indexer.adopt(folder)
    assert shardio_indexer.adopt(folder / "*.tfrecord-*", workers=1).records == sum(SPLITS.values())


def test_a_description_of_hugging_face_is_not_one_of_tfds(tmp_path) -> None:
    (tmp_path / "dataset_info.json").write_text('{"splits": {"train": {}}, "features": {}}')
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    assert shardio.convert_dataset(tmp_path, tmp_path / "out", workers=1).kind == "jsonl"
    assert shardio_indexer.adopt(tmp_path / "*.jsonl", into=tmp_path / "adopted").ok


def mnist(home: Path) -> None:
    """Write a folder as TFDS writes MNIST: as many records, all of one image."""
    folder = home / "tensorflow_datasets" / "mnist" / "3.0.1"
    folder.mkdir(parents=True)
    kinds = "tensorflow_datasets.core.features"
    image = {"dtype": "uint8", "encodingFormat": "png", "shape": {"dimensions": ["28", "28", "1"]}}
    features = {
        "image": {"pythonClassName": f"{kinds}.image_feature.Image", "image": image},
        "label": {
            "pythonClassName": f"{kinds}.class_label_feature.ClassLabel", "classLabel": {"numClasses": "10"},
        },
    }  # fmt: skip
    described = {
        "pythonClassName": f"{kinds}.features_dict.FeaturesDict",
        "featuresDict": {"features": features},
    }
    (folder / "features.json").write_text(json.dumps(described))
    (folder / "label.labels.txt").write_text("".join(f"{number}\n" for number in range(10)))
    png = picture(0, "PNG", (28, 28))
    records = [codecs.encode_example({"image": png, "label": label}) for label in range(10)]
    splits = []
    for split, count in (("train", 60_000), ("test", 10_000)):
        data = tfrecord(records) * (count // 10)
        (folder / f"mnist-{split}.tfrecord-00000-of-00001").write_bytes(data)
        name = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        splits.append(
            {
                "name": split,
                "filepathTemplate": name,
                "shardLengths": [str(count)],
                "numBytes": str(len(data)),
            }
        )
    info = {"name": "mnist", "version": "3.0.1", "fileFormat": "tfrecord", "splits": splits}
    (folder / "dataset_info.json").write_text(json.dumps(info))


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "convert-values.md",
        pytest.param("coming-from.md", marks=pytest.mark.slow),
    ],
)
def test_what_the_pages_show_of_mnist(tmp_path, monkeypatch, capsys, page):
    """The command runs as it is printed, and prints what is printed below it."""
    mnist(tmp_path)
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    (console,) = (
        block for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL) if "mnist/3.0.1" in block
    )
    command, *wanted = console.replace("/home/me", str(tmp_path)).splitlines()
    arguments = [each.replace("~", str(tmp_path)) for each in shlex.split(command, comments=True)[2:]]
    assert program(arguments) == 0
    told = capsys.readouterr()
    printed = (told.err + told.out).splitlines()
    assert [line for line in wanted if line not in printed] == []
    made = tmp_path / "mnist" if arguments[0] == "convert" else arguments[1]
    assert len(shardio.open(made, "train")) == 60_000
