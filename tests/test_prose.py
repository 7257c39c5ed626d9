"""Pages for users are short, in short sentences; `tests/prose.py` has the limits."""

from __future__ import annotations

import re

import pytest

from tests.prose import DOCS, complaints, measure

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
