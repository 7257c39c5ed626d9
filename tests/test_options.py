"""Options that several functions share are checked and work in each of them."""

from __future__ import annotations

from typing import Any

import pytest

import shardio
from tests.suites.errors import refused


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n')
    return path


@pytest.mark.parametrize("seed", [0, 7, None, "yes"])
def test_a_seed_in_place_of_a_switch(tmp_path, lines, seed) -> None:
    with pytest.raises(TypeError, match="True or False"):
        shardio.write_dataset(tmp_path / "ds", [1], repr, shuffle=seed)
    with pytest.raises(TypeError, match="True or False"):
        shardio.convert_dataset(lines, tmp_path / "ds", shuffle=seed)


def test_splits_that_are_neither_patterns_nor_fractions(tmp_path, lines) -> None:
    mixed: Any = {"train": 0.9, "test": "*"}
    with refused(TypeError, "split=", "'train'"):
        shardio.convert_dataset(lines, tmp_path / "ds", split=mixed)


def test_an_option_that_a_kind_does_not_have(tmp_path, lines) -> None:
    with refused(TypeError, "classes="):
        shardio.convert_dataset(lines, tmp_path / "ds", options={"clases": ["a"]})
    with refused(ValueError, "classes=", "'jsonl'"):
        shardio.convert_dataset(lines, tmp_path / "ds", options={"classes": ["a"]})


@pytest.mark.parametrize(
    ("option", "match"), [("compresion", "compression"), ("task", "each task"), ("block_byte", "block_bytes")]
)
def test_an_option_that_no_writer_has(tmp_path, lines, option, match) -> None:
    given: Any = {option: 1}
    with pytest.raises(TypeError, match=match):
        shardio.write_dataset(tmp_path / "ds", [1], repr, **given)
    with pytest.raises(TypeError, match=match):
        shardio.convert_dataset(lines, tmp_path / "ds", **given)
