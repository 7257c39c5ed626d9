"""Commands, flags, functions and arguments that a message names exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import shardio
import shardio_indexer
from shardio import cli

ROOT = Path(__file__).parents[1]
SOURCES = [
    path.read_text(encoding="utf-8")
    for folder in ("shardio", "indexer")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "v1" not in path.parts
]
COMMANDS = {*re.findall(r"`shardio ([a-z]+)", "\n".join(SOURCES))}


@functools.cache
def _nodes() -> list[ast.AST]:
    return [node for text in SOURCES for node in ast.walk(ast.parse(text))]


def _texts(node: ast.AST) -> list[str]:
    """Return the strings below a node, with `{}` for what is filled in."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)]
    return [text for child in ast.iter_child_nodes(node) for text in _texts(child)]


@functools.cache
def _messages() -> set[str]:
    """Return every text that is given as advice or raised."""
    found: set[str] = set()
    for node in _nodes():
        if isinstance(node, ast.keyword) and node.arg == "advice":
            found.update(_texts(node.value))
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            found.update(text for argument in node.exc.args for text in _texts(argument))
    return found


def test_commands_in_messages_exist(capsys) -> None:
    assert len(_messages()) > 300
    named = {
        (command, flag)
        for text in _messages()
        for command, quoted in re.findall(r"`shardio ([a-z]+)\b([^`]*)`", text)
        for flag in re.findall(r"--[a-z][a-z-]*", quoted)
    }
    for command in COMMANDS:
        assert cli.main([command, "--help"]) == 0
        shown = capsys.readouterr().out
        assert f"shardio {command}" in shown
        flags = {flag for name, flag in named if name == command}
        assert flags <= set(re.findall(r"--[a-z][a-z-]*", shown)), command


def test_functions_in_messages_exist() -> None:
    named = {
        (module, name)
        for text in _messages()
        for module, name in re.findall(r"\b(shardio|shardio_indexer)\.([a-zA-Z]\w*)\(", text)
    }
    modules = {"shardio": shardio, "shardio_indexer": shardio_indexer}
    assert [name for module, name in sorted(named) if not hasattr(modules[module], name)] == []


def test_arguments_in_messages_exist() -> None:
    nodes = _nodes()
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)} | {
        node.target.id
        for node in nodes
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for text in _messages():
        # `train=0.9` behind a flag is what the caller types.
        if "--" not in text:
            assert set(re.findall(r"(?<![\w./-])([a-z][a-z_]*)=", text)) <= parameters, text
