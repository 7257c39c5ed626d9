"""How long pages and their sentences are: `python -m tests.prose [PAGE ...]` prints it.

Only text that is read as sentences counts: no code, headings, tables or HTML. A list item is its own text.
"""

from __future__ import annotations

import re
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

WORDS = 1500  # of a page, its code aside
MEDIAN = 16  # words of a sentence, fewer than this
LONGEST = 35
COLUMNS = 85  # of code

FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
HTML = re.compile(r"<!--.*?-->|</?\w[^>\n]*>", re.DOTALL)
# A heading, a row of a table, a mark of a tab or an admonition, a reference that only tools read.
NO_TEXT = re.compile(
    r"^\s*(?:#{1,6} .*|\|.*|(?:===|!!!|\?\?\?).*|:::.*| {4,}(?:options|members|heading).*)$", re.MULTILINE
)
ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.|\[\^\w+\]:)\s+", re.MULTILINE)
IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)(?:\{[^}]*\})?|#only-\w+")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
END = re.compile(r"(?<=[.!?])[\"')\]*]*\s+(?=[\"'(\[*`]*[A-Z0-9`*])")


@dataclass(frozen=True)
class Prose:
    words: int
    sentences: list[str]
    wide: list[str]

    @property
    def median(self) -> float:
        return statistics.median(map(length, self.sentences)) if self.sentences else 0

    @property
    def long(self) -> list[str]:
        return [sentence for sentence in self.sentences if length(sentence) > LONGEST]


def length(sentence: str) -> int:
    return len([word for word in sentence.split() if re.search(r"\w", word)])


def measure(text: str) -> Prose:
    wide = [line for block in FENCE.finditer(text) for line in block[0].splitlines() if len(line) > COLUMNS]
    plain = HTML.sub("", IMAGE.sub("", FENCE.sub("\n", text)))
    words = len([word for word in LINK.sub(r"\1", plain).split() if re.search(r"\w", word)])
    # What stands in backticks is one word, whatever it holds.
    said = re.sub(r"`[^`]+`", "Code", LINK.sub(r"\1", NO_TEXT.sub("\n", plain)))
    texts = re.split(r"\n\s*\n", ITEM.sub("\n\n", said))
    sentences = [
        " ".join(sentence.split())
        for text in texts
        for sentence in END.split(text.strip())
        if length(sentence) > 1
    ]
    return Prose(words, sentences, wide)


def of_docstring(text: str) -> str:
    """Return a docstring as Markdown: what is said of an argument is an item, and examples are none."""
    text = re.sub(r"^ *(?:>>>|\.\.\.).*$|^ *\w+:$", "\n", text, flags=re.MULTILINE)
    return re.sub(r"^ +\*{0,2}\w[\w, *]*: ", "\n\n- ", text, flags=re.MULTILINE)


def complaints(prose: Prose) -> list[str]:
    """Say what of a page is beyond the limits."""
    found = [f"{length(sentence)} words: {sentence}" for sentence in prose.long]
    found += [f"{len(line)} columns: {line}" for line in prose.wide]
    if prose.words > WORDS:
        found.append(f"{prose.words} words in the page")
    if prose.median >= MEDIAN:
        found.append(f"a median of {prose.median:g} words")
    return found


def main(names: list[str]) -> None:
    pages = [Path(name) for name in names] or sorted(DOCS.rglob("*.md"))
    for page in pages:
        prose = measure(page.read_text(encoding="utf-8"))
        long = f"{len(prose.long):3} of {len(prose.sentences)} long"
        print(f"{prose.words:6} words, median {prose.median:4g}, {long}, {len(prose.wide)} wide  {page}")
        if names:
            print("".join(f"  {line}\n" for line in complaints(prose)), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
