"""Pages for users are short, in short sentences; `tests/prose.py` has the limits."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator

import pytest

from tests.prose import DOCS, MEDIAN, ROOT, complaints, length, measure, of_docstring

# Specifications: complete rather than short.
REFERENCE = {"format.md", "order.md"}
# Notes for those who work on the project.
INSIDE = {"design"}

PAGES = sorted(
    name
    for path in DOCS.rglob("*.md")
    if (name := path.relative_to(DOCS).as_posix()) not in REFERENCE and name.split("/")[0] not in INSIDE
)


@pytest.mark.parametrize("page", ["../README.md", *PAGES])
def test_a_page_is_short_and_so_are_its_sentences(page: str) -> None:
    assert complaints(measure((DOCS / page).read_text(encoding="utf-8"))) == []


def public() -> Iterator[tuple[str, str]]:
    """Yield the docstrings of what the reference names, and of its members."""
    names = "|".join(
        re.escape(name.rpartition(".")[2])
        for page in (DOCS / "api").glob("*.md")
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    )
    definition = re.compile(rf"^(?:class|def) (?:{names})\b", re.MULTILINE)
    for path in [*(ROOT / "shardio").rglob("*.py"), *(ROOT / "indexer").glob("*.py")]:
        text = path.read_text(encoding="utf-8")
        if not definition.search(text):
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and definition.match(f"class {node.name}"):
                members = node.body if isinstance(node, ast.ClassDef) else []
                for each in [node, *members]:
                    if isinstance(each, ast.ClassDef | ast.FunctionDef) and not each.name.startswith("_"):
                        yield f"{node.name}.{each.name}", ast.get_docstring(each) or ""


def test_the_sentences_of_the_reference_are_short() -> None:
    measured = {name: measure(of_docstring(text)) for name, text in public()}
    assert len(measured) > 100
    assert {name: prose.long for name, prose in measured.items() if prose.long} == {}
    assert statistics.median(length(each) for prose in measured.values() for each in prose.sentences) < MEDIAN


def test_pages_lead_to_pages_of_the_site() -> None:
    """The notes in `docs/design` are not on the site."""
    texts = {page: (DOCS / page).read_text(encoding="utf-8") for page in [*PAGES, *REFERENCE]}
    assert [page for page, text in texts.items() if re.search(r"\]\([^)]*design/", text)] == []


def test_what_is_measured_is_what_is_read() -> None:
    prose = measure(
        "# A heading is not a sentence\n\n"
        "Three words here. `code in ticks` counts once, and so does\n[a link](https://example.org)!\n\n"
        "- An item. Without an end\n\n"
        "| a | row |\n\n```python\nx = 1  # no sentence. Not one.\n" + "y" * 86 + "\n```\n"
        "<p>Said</p>![not this](x.png)\n"
    )
    assert prose.sentences == [
        "Three words here.",
        "Code counts once, and so does a link!",
        "An item.",
        "Without an end",
    ]
    assert prose.wide == ["y" * 86]
    assert complaints(measure("word " * 36)) == [
        "36 words: " + " ".join(["word"] * 36),
        "a median of 36 words",
    ]
