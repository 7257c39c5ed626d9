"""Formats of other packages: registered by entry points, found by kind and ending, as the page shows."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import shardio
from shardio.cli import main
from shardio.convert import source_kinds, target_kinds
from shardio.errors import FormatError
from shardio.formats import Claim, Score

PACKAGE = Path(__file__).parent / "pairs_package"
PAGE = Path(__file__).parents[2] / "docs" / "export.md"


def install(place: Path, name: str, groups: dict[str, dict[str, str]]) -> None:
    """Write what pip writes of a package's entry points."""
    folder = place / f"{name.replace('-', '_')}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        line
        for group, points in groups.items()
        for line in (f"[{group}]", *(f"{kind} = {value}" for kind, value in points.items()))
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package of the page, installed, and a file of its format."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    install(tmp_path / "site", project["name"], project["entry-points"])
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(PACKAGE))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "birds.pairs").write_text("wren=3\nrobin=5\n")
    return tmp_path


def test_a_format_of_another_package_goes_in_and_out(pairs: Path, capsys) -> None:
    assert source_kinds()[-1] == target_kinds()[-1] == "pairs"
    report = shardio.convert_dataset("birds.pairs", "birds")
    assert (report.kind, report.records) == ("pairs", {"train": 2})
    assert [(row["name"], row["value"]) for row in shardio.open("birds")] == [("wren", "3"), ("robin", "5")]
    shardio.export_dataset("birds", "out", kind="pairs")
    assert (pairs / "out" / "train.pairs").read_bytes() == (pairs / "birds.pairs").read_bytes()
    assert main(["convert", "out", "again", "--kind", "pairs", "--workers", "2"]) == 0
    assert main(["export", "again", "twice", "--kind", "pairs"]) == 0
    assert main(["export", "-h"]) == 0
    assert "pairs" in capsys.readouterr().out


def test_a_format_without_an_ending_is_recognised_by_what_is_in_its_files(pairs: Path, monkeypatch) -> None:
    kind = importlib.import_module("shardio_pairs").PairFiles
    monkeypatch.setattr(kind, "endings", ())
    (pairs / "birds.pairs").rename(pairs / "birds")
    with pytest.raises(ValueError, match="not clear from its file names"):
        shardio.convert_dataset("birds", "out")

    def claim(listings, peek):
        files = [file for each in listings for file in each.data if peek.head(file).startswith(b"wren=")]
        return Claim("pairs", files, Score.BYTES) if files else None

    monkeypatch.setattr(kind, "claim", claim)
    assert shardio.convert_dataset("birds", "out").kind == "pairs"


@pytest.mark.slow
def test_the_package_as_pip_installs_it(tmp_path: Path) -> None:
    site, source = tmp_path / "site", shutil.copytree(PACKAGE, tmp_path / "package")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True)
    (tmp_path / "birds.pairs").write_text("wren=3\nrobin=5\n")
    convert = [sys.executable, "-m", "shardio", "convert", "birds.pairs", "birds"]
    subprocess.run(convert, check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)})
    assert [row["name"] for row in shardio.open(tmp_path / "birds")] == ["wren", "robin"]


def test_what_is_wrong_in_it_is_said_as_of_any_other(pairs: Path) -> None:
    (pairs / "birds.pairs").write_text("wren=3\nrobin\n")
    with pytest.raises(FormatError):
        shardio.convert_dataset("birds.pairs", "birds")
    report = shardio.convert_dataset("birds.pairs", "birds", on_error="skip")
    assert [(each.where.rpartition("/")[2], each.reason) for each in report.skipped] == [
        ("birds.pairs line 2", "there is no = in it")
    ]
    with shardio.DatasetWriter(pairs / "other", {"n": "int64"}) as out:
        out.write({"n": 1})
    with pytest.raises(ValueError, match="pairs hold the features name and value"):
        shardio.export_dataset("other", "out", kind="pairs")
    assert not (pairs / "out").exists()


@pytest.mark.parametrize(
    ("points", "error", "words"),
    [
        ({"csv": "shardio_pairs:PairFiles"}, ValueError, "'csv' is shardio's own, and the package bad"),
        ({"bad": "no_such_module:X"}, ImportError, "the package bad registers the kind 'bad' and cannot"),
        ({"bad": "shardio_pairs:NoSuch"}, ImportError, "cannot be imported"),
        ({"bad": "json:loads"}, ValueError, "derives from shardio.formats.FileSource"),
    ],
)
def test_a_package_that_registers_what_cannot_be(pairs: Path, monkeypatch, points, error, words) -> None:
    install(pairs / "bad", "bad", {"shardio.sources": points})
    monkeypatch.syspath_prepend(str(pairs / "bad"))
    (kind,) = points
    with pytest.raises(error, match=words):
        shardio.convert_dataset("birds.pairs", "birds", kind=kind)
    # Another kind is converted all the same.
    assert shardio.convert_dataset("birds.pairs", "birds", kind="pairs").records == {"train": 2}


def test_the_page_shows_the_package() -> None:
    _, _, text = PAGE.read_text(encoding="utf-8").partition("## Add a format")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert "\n\n".join(blocks) == (PACKAGE / "shardio_pairs.py").read_text()
    assert (PACKAGE / "pyproject.toml").read_text() in text
