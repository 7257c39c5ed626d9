"""The law of the finder: conversion and adoption take the same records from the same tree and patterns."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import shardio
import shardio_indexer
from shardio.errors import NotFoundError

FILES = {
    "a.jsonl": 2,
    "b.jsonl": 1,
    "a[1].jsonl": 1,
    "{c}.jsonl": 1,
    "runs[2]/x.jsonl": 1,
    "{d}/x.jsonl": 1,
    "part-00000.jsonl": 1,
    "part-00001.jsonl": 1,
    "train/x.jsonl": 2,
    "train/deep/er/y.jsonl": 1,
    "val/x.jsonl": 1,
    "\u540d\u524d with spaces.jsonl": 1,
    ".hidden.jsonl": 1,
    ".cache/x.jsonl": 1,
    "__MACOSX/x.jsonl": 1,
    "__MACOSX/._a.jsonl": 1,
    "train/_SUCCESS": 1,
}
CLUTTER = {".hidden.jsonl", ".cache/x.jsonl", "__MACOSX/x.jsonl", "__MACOSX/._a.jsonl", "train/_SUCCESS"}
PATTERNS: dict[str, list[str]] = {
    "folder": [""],
    "one folder": ["train"],
    "star": ["*.jsonl"],
    "star of everything": ["*"],
    "any depth": ["**/*.jsonl"],
    "any depth below": ["train/**"],
    "question": ["?.jsonl"],
    "set": ["[ab].jsonl"],
    "complement": ["[!a].jsonl"],
    "a name with brackets": ["a[1].jsonl"],
    "a name with braces": ["{c}.jsonl"],
    "braces": ["{a,b}.jsonl"],
    "counting braces": ["part-{00000..00001}.jsonl"],
    "braces with a star": ["{train,val}/*.jsonl"],
    "folders by braces": ["{train,val}"],
    "a folder with brackets": ["runs[2]"],
    "a folder with braces": ["{d}"],
    "several": ["b.jsonl", "a.jsonl"],
    "twice": ["a.jsonl", "*.jsonl", "a.jsonl", ""],
    "a name that is hidden": [".hidden.jsonl"],
    "a hidden file among a folder": ["", ".hidden.jsonl"],
    "a folder that is hidden": [".cache"],
    "list": ["@"],
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a folder of JSON lines; each record says in which file and line it is."""
    root = tmp_path / "tree"
    for name, lines in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"at": f"{name} {row}"}) + "\n" for row in range(lines)))
    names = f"# names\n\n{root}/{{a,b}}.jsonl\n{root}/train/**/*.jsonl\n"
    (tmp_path / "names.list").write_text(names)
    return root


def sources_of(patterns: list[str], root: Path) -> list[str]:
    return [f"@{root.parent}/names.list" if one == "@" else str(root / one) for one in patterns]


def converted(sources: list[str], url: Path) -> tuple[list[str], shardio.convert.ConvertReport]:
    report = shardio.convert_dataset(sources, url, kind="jsonl", split="train")
    return [value["at"] for value in shardio.open(url)], report


def adopted(sources: list[str], root: Path) -> tuple[list[str], shardio_indexer.AdoptReport]:
    # The dataset goes to a folder above all sources, so that no root is elsewhere.
    report = shardio_indexer.adopt(sources, into=str(root), split="train")
    values = shardio.open(root) if report.version is not None else []
    return [value["at"] for value in values], report


@pytest.mark.sampled(2)
@pytest.mark.parametrize("patterns", PATTERNS.values(), ids=PATTERNS)
def test_conversion_and_adoption_take_the_same_records(tree, tmp_path, patterns) -> None:
    """Each record once; what is not taken is listed by both, and that is clutter alone."""
    sources = sources_of(patterns, tree)
    mine, convert_report = converted(sources, tmp_path / "converted")
    theirs, adopt_report = adopted(sources, tree)
    assert adopt_report.refused == ()
    assert sorted(mine) == sorted(theirs)
    assert len(set(mine)) == len(mine) > 0
    named = {one for one in patterns if one in FILES}
    hidden = {name for name in CLUTTER if any(at.startswith(f"{name} ") for at in mine)}
    assert hidden <= named | {".cache/x.jsonl"}
    ignored = {Path(url).name for url in adopt_report.ignored} - {Path(name).name for name in named}
    assert {Path(name).name for name in convert_report.ignored} == ignored
    if "" in patterns and not named:
        assert set(convert_report.ignored) == CLUTTER
    # A single text stands for the same as a list of one.
    if len(sources) == 1:
        again, _ = converted(sources[0], tmp_path / "again")
        assert again == mine


@pytest.mark.parametrize(
    "pattern", ["nothing-*", "absent.jsonl", "{a,absent}.jsonl", "deep/**/*.csv", "x[0]"]
)
def test_what_is_not_there_is_not_found(tree, tmp_path, pattern) -> None:
    with pytest.raises(NotFoundError):
        shardio.convert_dataset(str(tree / pattern), tmp_path / "out", kind="jsonl")
    # Adoption continues with what is there, and raises only where nothing is.
    try:
        (refusal,) = shardio_indexer.adopt(str(tree / pattern), into=str(tmp_path / "adopted")).refused
    except NotFoundError:
        assert "{" not in pattern
    else:
        assert isinstance(refusal.error, NotFoundError)


@pytest.mark.parametrize("pattern", ["", "*.jsonl"])
def test_names_that_are_not_text_are_listed_by_both(tree, tmp_path, pattern) -> None:
    with open(os.fsencode(tree) + b"/bad\xff.jsonl", "wb") as file:  # noqa: PTH123 - pathlib has no bytes
        file.write(b'{"at": "bad 0"}\n')
    with pytest.raises(shardio.errors.FormatError):
        shardio.convert_dataset(str(tree / pattern), tmp_path / "refused", kind="jsonl", split="train")
    report = shardio.convert_dataset(
        str(tree / pattern), tmp_path / "out", kind="jsonl", on_error="skip", split="train"
    )
    (bad,) = report.skipped
    assert bad.where.endswith("bad\\udcff.jsonl")
    theirs, adopt_report = adopted([str(tree / pattern)], tree)
    assert [refusal.url for refusal in adopt_report.refused] == [bad.where]
    values = shardio.open(tmp_path / "out", split="all")
    assert sorted(value["at"] for value in values) == sorted(theirs)


def test_splits_and_names_come_from_what_is_below_the_common_folder(tree, tmp_path) -> None:
    """Folders named one by one are what the folder above them is."""
    (tree / "train" / "_SUCCESS").unlink()
    url = tmp_path / "out"
    report = shardio.convert_dataset([tree / "train", tree / "val"], url, kind="jsonl")
    assert dict(report.records) == {"train": 3, "val": 1}
    text = shardio.convert_dataset(str(tree / "{train,val}" / "x.jsonl"), tmp_path / "text", kind="text")
    assert sum(text.records.values()) == 2
    paths = {value["path"] for value in shardio.open(tmp_path / "text", split="all")}
    assert paths == {"train/x.jsonl", "val/x.jsonl"}


def test_a_pattern_of_files_without_endings(tree, tmp_path) -> None:
    """A folder takes files by their names; a pattern that matches no such name means what it matches."""
    (tree / "a.jsonl").rename(tree / "raw-0")
    report = shardio.convert_dataset(str(tree / "raw-*"), tmp_path / "out", kind="jsonl")
    assert dict(report.records) == {"train": 2}
    report = shardio.convert_dataset(tree, tmp_path / "whole", kind="jsonl", split="train")
    assert "raw-0" in report.ignored


def test_a_link_is_no_second_file(tree, tmp_path) -> None:
    """`latest` beside the folder that it links to doubles no record; a link to another split is one of it."""
    plain, _ = adopted([str(tree)], tree)
    (tree / "latest").symlink_to(tree / "train")
    (tree / "val" / "also.jsonl").symlink_to(tree / "train" / "x.jsonl")
    mine, convert_report = converted(str(tree), tmp_path / "converted")
    theirs, adopt_report = adopted([str(tree)], tree)
    assert sorted(mine) == sorted(theirs) == sorted(plain)
    for report in (convert_report, adopt_report):
        assert any("symbolic link" in note for note in report.notes), report.notes
        assert any("latest" in name for name in report.ignored)
    elsewhere = tmp_path / "elsewhere"
    shardio_indexer.adopt(tree / "latest", into=elsewhere, split="train")
    assert shardio_indexer.adopt(tree / "train", into=elsewhere, split="train").adopted == 0
    assert shardio_indexer.adopt(tree / "val" / "also.jsonl", into=elsewhere, split="val").adopted == 1
