"""The same word means the same, and takes the same values, in every function that has it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shardio
import shardio.codecs
import shardio.torch
import shardio.view
import shardio_indexer
from tests.suites.offered import offered

# Word by word: how an option of that name reads in every public function, method and constructor that has it,
# its default included; where it may be left out in some and must be given in others, both forms.
WORDS = {
    "cache": {"CacheOptions", "CacheOptions | None = None"},
    "digest": {"str", "str | None = None"},
    "dry_run": {"bool = False", "bool = True"},  # what removes or repairs shows first what it would do
    "engine": {"str | None = None"},
    "executor": {"Executor | None = None"},
    "limits": {"Limits | None = None"},
    "fractions": {"Mapping[str, float] | None = None"},
    "mode": {"str = 'create'", "str | None = None"},
    "num_threads": {"int = 2"},
    "on_error": {"Literal['raise', 'skip'] = 'raise'", "Literal['raise', 'skip', 'quarantine'] = 'raise'"},
    "progress": {"bool | Callable[[...], None] = False"},
    "schema": {
        "Mapping[str, Any] | Schema | None = None",
        "Mapping[str, Any] | Schema | RecordCodec | None = None",
        "Schema",
    },
    "seed": {"int = 0"},
    "session": {"str", "str | None = None"},
    "shards": {"int | None = None", "Sequence[str]"},  # how many are written; or their names
    "shuffle": {"bool = False", "bool = True"},  # writing keeps the order, streams do not
    "split": {"str", "str = 'train'", "str | None = None"},
    "storage_options": {"Mapping[str, Any] | None = None"},
    "url": {"str | Path"},
    "version": {"int", "int | str", "int | str | None = None"},
    "workers": {"int | None = None"},
    "world_size": {"int = 1", "int | None = None"},
}
OTHERS = {
    # Patterns by name: which of the files that are found make which split.
    "shardio_indexer.adopt(split)": "str | Mapping[str, str] | None = None",
    "shardio.convert_dataset(split)": "str | Mapping[str, str] | None = None",
    # Or a reader, of which some records are chosen.
    "shardio.export_dataset(url)": "str | Path | DatasetReader",
    # What describes the bytes: a schema, a codec, descriptions as TensorFlow has them.
    "shardio_indexer.adopt(schema)": "Any = None",
    "shardio.codecs.record_codec(schema)": "Any = None",
    # Of a DataLoader, whose word for its processes it is; how many a plan serves.
    "shardio.Plan(workers)": "int",
    "shardio.plan_report(workers)": "int = 0",
    "shardio.Stream.begin(workers)": "int = 0",
    "shardio.Stream.begin_in_worker(workers)": "int",
    "shardio.Stream.batches(workers)": "int = 1",
    # Of files that others wrote, names by pattern, too.
    "shardio.adopt(schema)": "Any = None",
    "shardio.adopt(split)": "str | Mapping[str, str] | None = None",
    # How large a manifest may be.
    "shardio.Limits(shards)": "int = 100000000",
    "shardio_indexer.ScanOptions(limits)": f"Limits = {shardio.Limits()!r}",
    # What the pages say of a version.
    "shardio.view.version_facts(url)": "str",
    "shardio.view.version_facts(version)": "Version",
    "shardio.view.feature_facts(schema)": "Schema",
}


def _public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """All public functions, and the constructors and methods of public classes; reports and values aside."""
    modules = [shardio, shardio_indexer, shardio.torch, shardio.codecs, shardio.view]
    for module in modules:
        for name in offered(module):
            found = getattr(module, name)
            if inspect.isclass(found) and not issubclass(found, BaseException):
                if not hasattr(found, "to_dict") and not hasattr(found, "_fields"):
                    yield f"{module.__name__}.{name}", found
                methods = [each for each in vars(found) if not each.startswith("_")]
                yield from ((f"{module.__name__}.{name}.{each}", getattr(found, each)) for each in methods)
            elif inspect.isfunction(found):
                yield f"{module.__name__}.{name}", found


def _reading(parameter: inspect.Parameter) -> str:
    """Return annotation and default as they are written, without what a progress function is called with."""
    told = re.sub(r"Callable\[\[\w+\]", "Callable[[...]", str(parameter.annotation).replace('"', "'"))
    return told if parameter.default is inspect.Parameter.empty else f"{told} = {parameter.default!r}"


def test_options_read_the_same() -> None:
    having: dict[str, str] = {}
    for name, function in _public():
        if callable(function):  # and no property
            for parameter in inspect.signature(function).parameters.values():
                if parameter.name in WORDS:
                    having[f"{name}({parameter.name})"] = _reading(parameter)
    words = {name.partition("(")[2].rstrip(")") for name in having}
    assert words == set(WORDS)
    other = {
        name: told
        for name, told in having.items()
        if told not in WORDS[name.partition("(")[2].rstrip(")")] and OTHERS.get(name) != told
    }
    assert other == {}


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
    fractions: Any = {"train": 0.9, "test": 0.1}
    with pytest.raises(TypeError, match=r"fractions=\{'train'"):
        shardio.convert_dataset(tmp_path / "a.jsonl", tmp_path / "ds", split=fractions)
    with pytest.raises(ValueError, match="give one of them"):
        shardio.convert_dataset(tmp_path / "a.jsonl", tmp_path / "ds", split="train", fractions=fractions)


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
