"""A split that was not meant does not appear: declared names, and names that look mistyped."""

from __future__ import annotations

import itertools
import warnings
from functools import partial

import pytest
from hypothesis import given, strategies as st

import shardio
from shardio.errors import NotFoundError, UnsafeNameError
from shardio.metadata import naming
from tests.suites.errors import refused

ALIKE = [
    ("train", "trian"),
    ("train", "Train"),
    ("train", "tain"),
    ("train", "trainn"),
    ("train", "trsin"),
    ("train", "rtain"),
    ("train", "train_"),
    ("validation", "validatoin"),
    ("test", "tset"),
]
OTHERS = [
    ("train", "test"),
    ("val", "eval"),
    ("dev", "deu"),
    ("a", "b"),
    ("part1", "part2"),
    ("part-9", "part-10"),
    ("train", "train_b"),
    ("valid", "validation"),
    ("train", "train"),
]


@pytest.mark.parametrize(("one", "two"), ALIKE)
def test_names_that_look_alike(one, two) -> None:
    assert naming.look_alike(one, two)
    assert naming.look_alike(two, one)


@pytest.mark.parametrize(("one", "two"), OTHERS)
def test_names_that_do_not(one, two) -> None:
    assert not naming.look_alike(one, two)
    assert not naming.look_alike(two, one)


def edits(name: str) -> set[str]:
    """Return all names that one edit makes of a name over two letters."""
    cuts = [(name[:at], name[at:]) for at in range(len(name) + 1)]
    made = {a + b[1:] for a, b in cuts if b} | {a + b[1] + b[0] + b[2:] for a, b in cuts if len(b) > 1}
    made |= {a + c + b[1:] for a, b in cuts if b for c in "ab"} | {a + c + b for a, b in cuts for c in "ab"}
    return made - {name}


@given(st.text("ab", min_size=4, max_size=7), st.text("ab", min_size=4, max_size=7))
def test_alike_is_one_edit(one, two) -> None:
    assert naming.look_alike(one, two) == (two in edits(one))


def write(url, *splits: str, **options) -> None:
    with shardio.DatasetWriter(url, **options) as out:
        for split in splits:
            out.write(b"x", split)


def test_a_mistyped_split_is_refused_while_writing(tmp_path) -> None:
    with refused(ValueError, "'trian'", "'train'", "splits="):
        write(tmp_path / "ds", "train", "train", "trian")
    with pytest.raises(NotFoundError):
        shardio.open(tmp_path / "ds")


def test_a_mistyped_split_is_refused_while_appending(tmp_path) -> None:
    write(tmp_path / "ds", "train")
    with refused(ValueError, "'train'"):
        write(tmp_path / "ds", "tarin", mode="append")
    write(tmp_path / "ds", "test", "train", mode="append")
    assert shardio.open(tmp_path / "ds", split="all").splits == {"train": 2, "test": 1}
    # A dataset that is overwritten has no splits to be mistaken for.
    write(tmp_path / "ds", "tarin", mode="overwrite")


def test_declared_splits_are_all_that_may_be_written(tmp_path) -> None:
    write(tmp_path / "ds", "train", "trian", splits=["train", "trian"])
    with refused(ValueError, "'test'", "splits=", "'train'"):
        write(tmp_path / "ds", "train", "test", splits=["train", "trial"], mode="append")
    with refused(ValueError, "'train'"):
        write(tmp_path / "ds", "tran", splits=["train", "test"], mode="append")
    # Also where the dataset has the split.
    with pytest.raises(ValueError, match="not one of"):
        write(tmp_path / "ds", "train", splits=["test"], mode="append")


@pytest.mark.parametrize(
    ("splits", "error"), [("train", TypeError), ([], ValueError), (["a b"], UnsafeNameError)]
)
def test_declarations_without_sense(tmp_path, splits, error) -> None:
    with pytest.raises(error):
        shardio.DatasetWriter(tmp_path / "ds", splits=splits)
    with pytest.raises(error):
        shardio.write_dataset(tmp_path / "ds", [1], repr, splits=splits)
    assert not (tmp_path / "ds").exists()


def one_split(names: tuple[str, ...], item: int) -> tuple[str, bytes]:
    return names[item], b"x"


def test_splits_that_different_tasks_wrote(tmp_path) -> None:
    """No task sees the other's: nothing is lost, and report and warning say it."""
    names = ("train", "trian")
    with pytest.warns(UserWarning, match="'train' and 'trian' may be one"):
        report = shardio.write_dataset(
            tmp_path / "a", range(2), partial(one_split, names), tasks=2, workers=1
        )
    assert report.records == {"train": 1, "trian": 1}
    assert len(report.notes) == 1
    with refused(ValueError, "'train'"):
        shardio.write_dataset(tmp_path / "b", range(2), partial(one_split, names), tasks=1, workers=1)
    for shuffle, tasks in itertools.product([False, True], [1, 2]):
        url = tmp_path / f"c{shuffle}{tasks}"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            report = shardio.write_dataset(
                url,
                range(2),
                partial(one_split, names),
                tasks=tasks,
                workers=1,
                splits=names,
                shuffle=shuffle,
            )
        assert report.notes == []


@pytest.mark.parametrize("split", [{"train": 0.9}, ["train"], None, 3, "", "all", "a/b"])
def test_what_is_not_a_name_is_refused(tmp_path, split) -> None:
    """Shares too, which are an option elsewhere; the writer continues."""
    with shardio.DatasetWriter(tmp_path / "ds") as out:
        out.write(b"a")
        with pytest.raises(UnsafeNameError):
            out.write(b"b", split=split)
        with pytest.raises(UnsafeNameError):
            out.write_encoded(b"b", split=split)
    assert list(shardio.open(tmp_path / "ds")) == [b"a"]
