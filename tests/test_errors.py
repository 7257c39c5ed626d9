"""Errors say much, and not everything: what is in a file does not decide how long a message gets."""

from __future__ import annotations

import ast
import importlib
import pickle
import sys
import tomllib
from pathlib import Path

import pytest

from shardio.errors import FormatError, ShardioError

ROOT = Path(__file__).parent.parent
LONG = [
    "a" * (16 << 20),
    b"a" * (16 << 20),
    tuple(range(10**6)),
    ["a" * 10**6] * 100,
    {"a" * 10**6: ["b" * 10**6]},
    set(range(10**5)),
    1 << (1 << 20),
    [1 << (1 << 20)],
    range(10**9),
]


@pytest.mark.parametrize("value", LONG, ids=[str(number) for number in range(len(LONG))])
def test_no_message_is_longer_than_people_read(value):
    error = FormatError("a thing is wrong", expected=value, found=value, advice="do this", url="here")
    text = str(error)
    assert len(text) < 3000
    assert text.startswith("a thing is wrong (here): expected ")
    assert text.endswith("; do this")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == text
    assert str(error.located(row=3)).replace(", row 3", "") == text
    assert len(pickle.dumps(error)) < 6000


def test_texts_are_cut_where_they_are_long():
    error = ShardioError("w" * 10**6, url="u" * 10**6, shard="s" * 10**6, advice="a" * 10**6)
    assert len(str(error)) < 17_000
    assert "... (1000000 characters)" in error.what


def test_short_sides_stay_what_they_are():
    for value in (7, "x", b"abc", (1, "a"), ["a", "b"], {"a": 1}, None, 2.5):
        assert FormatError("x", expected=value, found=value).expected is value


def test_an_extra_that_an_error_names_brings_the_packages() -> None:
    """What the message says to install is what is missing."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    asked = [
        node.args[1:]
        for path in sorted((ROOT / "shardio").rglob("*.py"))
        if "need(" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "need" and len(node.args) > 1
    ]
    assert len(asked) > 12
    for install, *packages in asked:
        if isinstance(install, ast.Constant) and install.value.startswith("shardio["):
            brought = " ".join(extras[install.value[8:-1]]).lower().replace("-", "_")
            asked_for = {each.value.lower().replace("-", "_") for each in packages}
            assert {each for each in asked_for if each not in brought} == set()


@pytest.mark.parametrize("module", ["shardio.torch", "shardio.jax"])
def test_a_room_without_its_framework_names_the_extra(module, monkeypatch) -> None:
    name = module.removeprefix("shardio.")
    for loaded in [each for each in sys.modules if each == module or each.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ModuleNotFoundError, match=rf'^{module} needs {name}: pip install "shardio\[{name}\]"$'
    ):
        importlib.import_module(module)
