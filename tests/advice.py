"""Every piece of advice in the sources, found by reading them: `advice=` and names that hold it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = (
    "indexer",
    *(f"shardio/{room}" for room in ("sources", "reader", "metadata", "codecs", "catalog", "lifecycle")),
)


@functools.cache
def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


@functools.cache
def inventory(*rooms: str) -> dict[str, str]:
    """Return each piece of advice, with `{}` for what is filled in, and the file that gives it."""
    out: dict[str, str] = {}
    for room in rooms or ROOMS:
        for path in sorted((ROOT / room).glob("**/*.py")):
            for text in _advice(_nodes(path)):
                out.setdefault(text, str(path.relative_to(ROOT)))
    return out


_MISTAKES = ("ValueError", "TypeError", "IndexError")


@functools.cache
def mistakes(*rooms: str) -> dict[str, str]:
    """Return what plain errors of Python say of callers' mistakes, and the file that says so."""
    out: dict[str, str] = {}
    for room in rooms:
        for path in sorted((ROOT / room).glob("**/*.py")):
            for function in _nodes(path):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    for text in _mistakes(function):
                        out.setdefault(text, str(path.relative_to(ROOT)))
    return out


def _mistakes(function: ast.AST) -> Iterator[str]:
    named: dict[str, list[ast.AST]] = {}
    nodes = list(ast.walk(function))
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            named.setdefault(node.targets[0].id, []).append(node.value)
    for node in nodes:
        error = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(error, ast.Call) and getattr(error.func, "id", "") in _MISTAKES and error.args:
            text = error.args[0]
            for value in named.get(text.id, []) if isinstance(text, ast.Name) else [text]:
                yield from _texts(value)


@functools.cache
def parameters(*rooms: str) -> set[str]:
    """Return the names of all parameters of functions, and of the fields of classes."""
    out: set[str] = set()
    for room in rooms:
        for path in (ROOT / room).glob("**/*.py"):
            for node in _nodes(path):
                if isinstance(node, ast.arg):
                    out.add(node.arg)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    out.add(node.target.id)
    return out


def _advice(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        values: list[ast.AST] = []
        if isinstance(node, ast.keyword) and node.arg == "advice":
            values = [node.value]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if any("advice" in name.lower() for name in names) and node.value is not None:
                values = [node.value]
        elif isinstance(node, ast.arguments):
            placed = [*node.posonlyargs, *node.args]
            given = [*placed[len(placed) - len(node.defaults) :], *node.kwonlyargs]
            defaults = zip(given, [*node.defaults, *node.kw_defaults], strict=True)
            values = [value for arg, value in defaults if "advice" in arg.arg and value is not None]
        elif isinstance(node, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            values = [value for key, value in zip(keys, node.values, strict=True) if key == "advice"]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ValueMismatchError":
            values = node.args[2:]
        for value in values:
            yield from _texts(value)


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts that an expression can be; a condition has two."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _texts(value)
    elif isinstance(node, ast.BinOp):
        left, right = list(_texts(node.left)), list(_texts(node.right))
        yield from (a + b for a in left or ["{}"] for b in right or ["{}"])
    elif isinstance(node, ast.Dict):
        for value in node.values:
            yield from _texts(value)
