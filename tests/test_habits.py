"""The same word means the same, and takes the same values, in every function that has it."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from collections.abc import Callable
from typing import Any

import pytest

import shardio
import shardio_indexer

WRITERS: dict[str, Callable[..., Any]] = {
    "write": shardio.write_dataset,
    "convert": shardio.convert_dataset,
    "export": shardio.export_dataset,
    "adopt": shardio_indexer.adopt,
}
# Word by word: how the annotation reads, in every function that has the option.
WORDS = {
    "workers": "int | None",
    "executor": "Executor | None",
    "on_error": "Literal['raise', 'skip']",
    "shuffle": "bool",
    "seed": "int",
    "session": "str | None",
    "mode": "str",
}


@pytest.mark.parametrize("word", WORDS)
def test_options_read_the_same(word) -> None:
    having = {
        name: inspect.signature(function).parameters[word]
        for name, function in WRITERS.items()
        if word in inspect.signature(function).parameters
    }
    assert having
    told = {str(parameter.annotation).replace('"', "'") for parameter in having.values()}
    assert told == {WORDS[word]}
    assert len({parameter.default for parameter in having.values()}) == 1


def test_progress_is_a_switch_or_a_function_everywhere() -> None:
    for function in WRITERS.values():
        parameter = inspect.signature(function).parameters["progress"]
        assert str(parameter.annotation).startswith("bool | Callable[[")
        assert parameter.default is False


@pytest.mark.parametrize("function", [shardio.write_dataset, shardio.convert_dataset])
def test_options_of_the_writer_are_those_that_it_has(function) -> None:
    """Typed, and none that `DatasetWriter` does not know."""
    writer = inspect.signature(shardio.DatasetWriter).parameters
    options = inspect.signature(function).parameters["writer"]
    assert "Unpack[" in str(options.annotation)
    from shardio.writer import LayoutOptions, WriterOptions

    assert typing.get_type_hints(WriterOptions, vars(sys.modules["shardio.writer._settings"])).keys() <= set(
        writer
    )
    named = set(inspect.signature(function).parameters)
    typed = LayoutOptions if function is shardio.convert_dataset else WriterOptions
    # What the function does not give itself can be said.
    assert set(writer) - {"url", "task", "commit"} <= named | set(typed.__annotations__)


@pytest.mark.parametrize("seed", [0, 7, None, "yes"])
def test_a_seed_in_place_of_a_switch(tmp_path, seed) -> None:
    with pytest.raises(TypeError, match="True or False"):
        shardio.write_dataset(tmp_path / "ds", [1], repr, shuffle=seed)
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    with pytest.raises(TypeError, match="True or False"):
        shardio.convert_dataset(tmp_path / "a.jsonl", tmp_path / "ds", shuffle=seed)


def test_shares_in_place_of_a_name(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    shares: Any = {"train": 0.9, "test": 0.1}
    with pytest.raises(TypeError, match=r"shares=\{'train'"):
        shardio.convert_dataset(tmp_path / "a.jsonl", tmp_path / "ds", split=shares)
    with pytest.raises(ValueError, match="give one of them"):
        shardio.convert_dataset(tmp_path / "a.jsonl", tmp_path / "ds", split="train", shares=shares)


@pytest.mark.parametrize(
    ("option", "match"), [("compresion", "compression"), ("task", "each task"), ("block_byte", "block_bytes")]
)
def test_an_option_that_no_writer_has(tmp_path, option, match) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    given: Any = {option: 1}
    with pytest.raises(TypeError, match=match):
        shardio.write_dataset(tmp_path / "ds", [1], repr, **given)
    with pytest.raises(TypeError, match=match):
        shardio.convert_dataset(tmp_path / "a.jsonl", tmp_path / "ds", **given)


def test_progress_of_every_function(tmp_path, capsys) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    seen: list[Any] = []
    for progress in (True, seen.append):
        shardio.convert_dataset(tmp_path / "a.jsonl", tmp_path / "ds", mode="overwrite", progress=progress)
        shardio.export_dataset(tmp_path / "ds", tmp_path / f"out{len(seen)}", kind="jsonl", progress=progress)
        into = str(tmp_path / f"adopted{len(seen)}")
        shardio_indexer.adopt(tmp_path / "a.jsonl", into=into, progress=progress)
    told = capsys.readouterr().err
    for task in ("write: 100%", "export: 100%", "index: 100%"):
        assert task in told
    assert seen


def test_dir_is_the_public_names() -> None:
    script = "import shardio.writer, json; shardio.open; print(json.dumps(dir(shardio)))"
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    names = set(__import__("json").loads(found))
    assert names == {*shardio.__all__, "jax", "torch", "v1"}
