"""Code of a page by its headings, for datasets of the tests."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs"


def code_of(page: str, heading: str, **replacements: str) -> str:
    """Return the Python below a heading, after the page's first block.

    Args:
        page: path below docs/.
        heading: how the heading begins; "" for what stands above all headings.
        replacements: by what stands in the code, its replacement; each must occur.
    """
    text = (PAGES / page).read_text(encoding="utf-8")
    first, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    section = next(section for section in sections if section.startswith(heading)) if heading else ""
    code = "\n".join(re.findall(r"```python\n(.*?)```", first + section, re.DOTALL))
    for printed, own in replacements.items():
        assert printed in code, printed
        code = code.replace(printed, own)
    return code
