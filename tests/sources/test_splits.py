"""The one rule of splits: what names of files and folders tell, for adoption, conversion and the way back."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from PIL import Image

import shardio
import shardio_indexer
from shardio.cli import main
from shardio.errors import UnsafeNameError
from shardio.sources import SplitRules, check_sets

# Names, and the split of each.
LAYOUTS: dict[str, dict[str, str]] = {
    "shards": {
        "train-00000-of-00002.jsonl": "train",
        "train-00001-of-00002.jsonl": "train",
        "validation-00000-of-00001.jsonl": "validation",
    },
    "val": {"val-00000-of-00001.jsonl": "val", "train-00000-of-00001.jsonl": "train"},
    "folders": {"train/part-0.jsonl": "train", "test/part-0.jsonl": "test", "dev/part-0.jsonl": "dev"},
    "deep folders": {"en/train/0.jsonl": "train", "fr/train/0.jsonl": "train", "fr/test/0.jsonl": "test"},
    "LibriSpeech": {
        "train-clean-100/0.jsonl": "train",
        "train-other-500/0.jsonl": "train",
        "dev-clean/0.jsonl": "dev",
        "test-other/0.jsonl": "test",
    },
    "COCO": {"train2017/0.jsonl": "train", "val2017/0.jsonl": "val"},
    "both agree": {"train/train-00000.jsonl": "train", "val/val-00000.jsonl": "val"},
    "WebDataset": {"imagenet-train-000000.jsonl": "train", "imagenet-val-000000.jsonl": "val"},
    "before the number": {"flowers_train_0.jsonl": "train", "flowers_test_0.jsonl": "test"},
    "beginnings": {"train_images.jsonl": "train", "Test2017.jsonl": "test", "VALID.jsonl": "valid"},
    "dots": {"wiki.train.jsonl": "train", "wiki.valid.jsonl": "valid", "wiki.test.jsonl": "test"},
    "GLUE": {
        "train-00000-of-00001.jsonl": "train",
        "validation_matched-00000-of-00001.jsonl": "validation_matched",
        "validation_mismatched-00000-of-00001.jsonl": "validation_mismatched",
        "extra-00000-of-00001.jsonl": "extra",
    },
    "evaluation sets": {
        "train_a.jsonl": "train",
        "train_b.jsonl": "train",
        "validation_matched.jsonl": "validation_matched",
        "validation_mismatched.jsonl": "validation_mismatched",
        "test.jsonl": "test",
        "test_unseen.jsonl": "test_unseen",
    },
    "parts of one": {
        "test_part1.jsonl": "test",
        "test_part2.jsonl": "test",
        "val/val_a.jsonl": "val",
        "val/val_b.jsonl": "val",
    },
    "hashes behind": {
        "data/train-00000-of-00002-ab12.jsonl": "train",
        "data/test-00000-of-00001-cd34.jsonl": "test",
    },
    "two words for one thing": {
        "a/val/0.jsonl": "validation",
        "b/validation/0.jsonl": "validation",
        "a/train/0.jsonl": "train",
    },
    "nothing": {
        "part-00000-of-00002.jsonl": "train",
        "testimonials-0.jsonl": "train",
        "developer/0.jsonl": "train",
        "trainer.jsonl": "train",
        "latest/0.jsonl": "train",
    },
    "humps": {"birdsTrain.jsonl": "train", "testData-0.jsonl": "test"},
    "one of two": {"train_val/train-0.jsonl": "train", "train_val/val-0.jsonl": "val"},
}
TORN = [["train_val_0.jsonl"], ["test/dev/0.jsonl"], ["train/val-0.jsonl", "test/val-1.jsonl"]]
MIXED = [
    ["test.jsonl", "birds.jsonl"],
    ["train/0.jsonl", "1.jsonl"],
    ["train-00000-of-00001.jsonl", "test-00000-of-00001.jsonl", "notes.jsonl"],
]


def write(folder: Path, names: list[str] | dict[str, str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps({"at": name}) + "\n")


def splits_of(url: Path) -> dict[str, str]:
    """Return the split of each record, by the name of its file."""
    found = {}
    for split in shardio.open(url, split="all").splits:
        found.update({value["at"]: split for value in shardio.open(url, split=split)})
    return found


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_adoption_and_conversion_find_the_same_splits(tmp_path, layout) -> None:
    write(tmp_path / "files", layout)
    converted = shardio.convert_dataset(tmp_path / "files", tmp_path / "converted")
    adopted = shardio_indexer.adopt(tmp_path / "files", into=tmp_path / "adopted")
    assert adopted.ok
    options = {"allow_roots": {str(tmp_path / "files"): {}}}
    assert splits_of(tmp_path / "converted") == layout
    for split, rows in shardio.open(tmp_path / "adopted", split="all", **options).splits.items():
        values = shardio.open(tmp_path / "adopted", split=split, **options)
        assert len(values) == rows
        assert {layout[value["at"]] for value in values} == {split}
    for report in (converted, adopted):
        assert any("split" in note for note in report.notes), "what was decided is said"
        assert report.to_dict()["notes"]


@pytest.mark.parametrize("names", MIXED, ids=str)
def test_names_of_which_some_tell_nothing_are_refused_and_the_advice_works(tmp_path, capsys, names) -> None:
    write(tmp_path / "files", names)
    with pytest.raises(ValueError, match=r"tells? no split \(.*name one split for all files, or a pattern"):
        shardio.convert_dataset(tmp_path / "files", tmp_path / "converted")
    with pytest.raises(ValueError, match=r"tells? no split"):
        shardio_indexer.adopt(tmp_path / "files", into=tmp_path / "adopted")
    assert not (tmp_path / "converted").exists()
    assert not (tmp_path / "adopted").exists()
    assert main(["convert", str(tmp_path / "files"), str(tmp_path / "one"), "--split", "birds"]) == 0
    assert shardio.open(tmp_path / "one").splits == {"birds": len(names)}
    patterns = ["--split", "test=*test*", "--split", "train=*"]
    assert main(["convert", str(tmp_path / "files"), str(tmp_path / "several"), *patterns]) == 0
    assert main(["index", str(tmp_path / "files"), *patterns]) == 0
    capsys.readouterr()
    wanted = {name: "test" if "test" in name else "train" for name in names}
    assert splits_of(tmp_path / "several") == splits_of(tmp_path / "files") == wanted


@pytest.mark.parametrize("names", TORN, ids=str)
def test_names_that_tell_several_splits_are_refused(tmp_path, names) -> None:
    """They would be trained on, though they may be for evaluation."""
    write(tmp_path / "files", names)
    for call in (shardio.convert_dataset, lambda source, into: shardio_indexer.adopt(source, into=into)):
        with pytest.raises(ValueError, match=r"tells? several splits \(.*name one split for all files, or a"):
            call(tmp_path / "files", tmp_path / "made")
        assert not (tmp_path / "made").exists()


def test_tfrecords_of_tensorflow_datasets(tmp_path) -> None:
    """Numbered behind the ending; a name beside others that tell a split is one, too."""
    names = [f"imdb_reviews-{split}.tfrecord-00000-of-00001" for split in ("train", "test", "unsupervised")]
    assert SplitRules().divide(names).splits == ["train", "test", "unsupervised"]
    assert SplitRules().divide(["my-data.tfrecord-00000-of-00001"]).splits == ["train"]


def test_a_folder_that_is_named_itself(tmp_path) -> None:
    write(tmp_path / "test", ["0.jsonl", "1.jsonl"])
    assert shardio.convert_dataset(tmp_path / "test", tmp_path / "a").records == {"test": 2}
    assert shardio_indexer.adopt(tmp_path / "test").splits == {"test": 2}
    # Its name says nothing of one file in it, and nothing of a project in a folder called dev.
    assert shardio.convert_dataset(tmp_path / "test" / "0.jsonl", tmp_path / "b").records == {"train": 1}
    write(tmp_path / "dev", ["0.jsonl"])
    assert shardio.convert_dataset(tmp_path / "dev", tmp_path / "c").records == {"train": 1}


def test_what_is_adopted_already_stays_in_its_split(tmp_path) -> None:
    write(tmp_path, ["a.jsonl", "b.jsonl"])
    assert shardio_indexer.adopt(tmp_path, split="birds").splits == {"birds": 2}
    write(tmp_path, ["test-0.jsonl"])
    assert shardio_indexer.adopt(tmp_path).splits == {"birds": 2, "test": 1}
    write(tmp_path, ["val/0.jsonl"])
    assert shardio_indexer.adopt(tmp_path).splits == {"birds": 2, "test": 1, "val": 1}
    write(tmp_path, ["validation/1.jsonl"])
    assert shardio_indexer.adopt(tmp_path).splits == {"birds": 2, "test": 1, "val": 2}


def test_a_list_of_files_is_of_the_split_that_its_name_tells(tmp_path) -> None:
    photo(tmp_path / "1.png")
    (tmp_path / "test.csv").write_text("path,label\n1.png,3\n")
    report = shardio.convert_dataset(tmp_path / "test.csv", tmp_path / "a", kind="list")
    assert report.records == {"test": 1}


def photo(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = io.BytesIO()
    Image.new("RGB", (4, 3), (len(str(path)) % 256, 90, 200)).save(data, "PNG")
    path.write_bytes(data.getvalue())


def test_folders_of_images_named_like_splits(tmp_path) -> None:
    """Without classes in them they are splits of images without labels; beside another folder, classes."""
    for name in ("train/1.png", "train/2.png", "test/1.png"):
        photo(tmp_path / "plain" / name)
    report = shardio.convert_dataset(tmp_path / "plain", tmp_path / "a")
    assert report.records == {"train": 2, "test": 1}
    assert "label" not in report.schema
    photo(tmp_path / "plain" / "bus" / "1.png")
    report = shardio.convert_dataset(tmp_path / "plain", tmp_path / "b")
    assert any("folders named like splits (test, train) are classes" in note for note in report.notes)
    assert (report.records, report.schema["label"].classes) == ({"train": 4}, ("bus", "test", "train"))
    for name in ("train/bus/1.png", "train/train/1.png", "val/bus/1.png"):
        photo(tmp_path / "classes" / name)
    report = shardio.convert_dataset(tmp_path / "classes", tmp_path / "c")
    assert report.records == {"train": 2, "val": 1}
    assert report.schema["label"].classes == ("bus", "train")


def test_patterns() -> None:
    rules = SplitRules({"train": "*train*", "val": "val/*"})
    assert rules.divide(["a/train-0", "val/x", "test/x"]).splits == ["train", "val", None]
    assert SplitRules("test").divide(["train-0", "x"]).splits == ["test", "test"]
    for bad in ("all", {"a/b": "*"}):
        with pytest.raises(UnsafeNameError):
            SplitRules(bad)


@given(st.lists(st.text("trainvldes0-_./ ", min_size=1, max_size=12), max_size=5, unique=True))
def test_every_name_has_a_split_or_is_said_to_have_none(names: list[str]) -> None:
    division = SplitRules().divide(names)
    assert len(division.splits) == len(names)
    assert [name for name, split in zip(names, division.splits, strict=True) if split is None] == list(
        division.silent
    )
    assert bool(names) == bool(division.notes)
    # The order of the files changes nothing.
    again = SplitRules().divide(names[::-1])
    assert again.splits == division.splits[::-1]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["t-00000-of-00002", "t-00001-of-00002"], []),
        (["t-00001-of-00002", "t-00002-of-00002"], []),
        (["a.tfrecord", "t-00001.tfrecord", "t-00000-of-00000"], []),
        (
            ["b/t-00000-of-00003.x", "b/t-00002-of-00003.x", "t-00000-of-00001.x"],
            ["2 of 3 files b/t-*-of-00003.x are there: b/t-00001-of-00003.x is not"],
        ),
        (
            ["t-0009-of-999999999"],
            ["1 of 999999999 files t-*-of-999999999 are there: t-0000-of-999999999 is not"],
        ),
        (
            ["t-00000-of-00001", "t-00000-of-00002", "t-00001-of-00002"],
            ["t-* is there as sets of 00001 and 00002 files: if they hold the same records"],
        ),
        ([f"{n}-00000-of-00002" for n in range(5)], ["0-*", "1-*", "2-*", "2 more such notes"]),
    ],
    ids=str,
)
def test_sets_of_numbered_files_that_are_not_whole(names, says) -> None:
    notes = check_sets(names)
    assert len(notes) == len(says)
    assert all(said in note for said, note in zip(says, notes, strict=True))


@pytest.mark.parametrize("call", [shardio.adopt, shardio.convert_dataset])
def test_a_part_of_a_set_is_not_taken_in_silence(tmp_path, call) -> None:
    for number in (0, 2):
        (tmp_path / f"val-0000{number}-of-00003.jsonl").write_text('{"n": 1}\n')
    place = {"into": tmp_path / "ds"} if call is shardio.adopt else {"url": tmp_path / "ds"}
    report = call(tmp_path, workers=1, **place)
    assert list(shardio.open(tmp_path / "ds", allow_roots={str(tmp_path): {}}).splits) == ["val"]
    note = "2 of 3 files val-*-of-00003.jsonl are there: val-00001-of-00003.jsonl is not"
    assert note in report.notes
