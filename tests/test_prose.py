"""Pages for users are short, in short sentences and plain words; `tests/prose.py` has the limits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.prose import DOCS, ROOT, complaints, measure

# Specifications: complete rather than short.
REFERENCE = {"format.md", "order.md"}
# Notes for those who work on the project.
INSIDE = {"design"}

PAGES = sorted(
    name
    for path in DOCS.rglob("*.md")
    if (name := path.relative_to(DOCS).as_posix()) not in REFERENCE and name.split("/")[0] not in INSIDE
)

# Words of old books where the present day has plain ones: "not a number", "is", "callers", "others".
DATED = re.compile(
    r"\b([Nn]obody|[Ss]omebody|[Ww]hoever|[Ww]hom|[Aa]new|in vain|in the mean|without a word|let go of)\b"
    r"|\blies (?:in|on|at|under|inside|beside|within|behind)\b"
    r"|(?<![Tt]here )\b(?:is|are|was|were) no (?!longer|more|less|reason|such|memory|way)[a-z]"
)


@pytest.mark.parametrize("page", ["../README.md", *PAGES])
def test_a_page_is_short_and_so_are_its_sentences(page: str) -> None:
    assert complaints(measure((DOCS / page).read_text(encoding="utf-8"))) == []


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


def test_words_are_those_of_today() -> None:
    """Docstrings, comments, messages, tests and pages in the plain English of Python's own pages."""
    # One of the cases there has the name that it has in a golden file.
    spared = {Path(__file__), ROOT / "tests" / "codecs" / "_forms.py"}
    # The log of measurements stays as it was written.
    spared.add(ROOT / "docs" / "design" / "performance-log.md")
    folders = [(ROOT / name, "*.py") for name in ("shardio", "indexer", "tests")] + [(DOCS, "*.md")]
    texts = [path for folder, names in folders for path in folder.rglob(names)]
    found = {
        f"{path.relative_to(ROOT).as_posix()}:{number}": word[0]
        for path in sorted([*ROOT.glob("*.md"), *texts])
        if path not in spared and "v1" not in path.parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (word := DATED.search(line))
    }
    assert found == {}
