"""The documents and the tests say the same.

Every sentence of docs/format.md with a MUST is in the docstring of a test; every promise is named by tests.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"


@functools.cache
def test_functions() -> dict[str, str]:
    """Return the docstrings of all tests, by `path::name`; of files too, for what a whole file shows."""
    found = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        name = path.relative_to(TESTS.parent).as_posix()
        found[name] = ast.get_docstring(tree) or ""
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[f"{name}::{node.name}"] = ast.get_docstring(node) or ""
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found[f"{name}::{node.targets[0].id}"] = ""
    return found


test_functions.__test__ = False


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def sentences(markdown: str) -> list[str]:
    """Return the sentences of running text, list items included, without code and tables."""
    text = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    text = "\n".join("" if line.startswith(("|", "#", "<!--")) else line for line in text.splitlines())
    text = re.sub(r"^- ", "\n", text, flags=re.MULTILINE)
    paragraphs = [plain(part) for part in re.split(r"\n\s*\n", text)]
    return [
        sentence for part in paragraphs for sentence in re.split(r"(?<=[.:]) (?=[A-Z`])", part) if sentence
    ]


def test_every_must_is_the_docstring_of_a_test():
    """Each sentence with a MUST is the docstring of the test that holds shardio to it."""
    page = (DOCS / "format.md").read_text(encoding="utf-8")
    musts = [
        sentence.rstrip(";")
        for sentence in sentences(page)
        if "MUST" in sentence and "RFC 2119" not in sentence and "is the docstring" not in sentence
    ]
    assert len(musts) > 50
    said = plain(" ".join(test_functions().values()))
    missing = [must for must in musts if must not in said]
    assert missing == []


def test_every_promise_is_held_by_a_test():
    promised = set(
        re.findall(r"^\| (P\d+) \|", (DOCS / "promises.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    held = set(re.findall(r"\bP\d+\b", " ".join(test_functions().values())))
    assert len(promised) > 20
    assert promised - held == set()


def test_every_line_of_the_threat_model_names_its_test():
    page = (TESTS.parent / "SECURITY.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and "| what happens |" not in line]
    assert len(rows) > 20
    named = [re.findall(r"`(tests/[^`:]+)[^`]*`", row) for row in rows]
    assert [row for row, names in zip(rows, named, strict=True) if len(names) != 1] == []
    assert [name for (name,) in named if not (TESTS.parent / name).exists()] == []
