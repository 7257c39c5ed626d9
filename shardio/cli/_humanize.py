"""Numbers and text as people read them."""

from __future__ import annotations

__all__ = ["count", "plural", "printable", "size"]


def printable(text: str) -> str:
    """Return text with every character that is not printed as itself written as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def size(value: int) -> str:
    """Return bytes as people write them: 1,234 becomes "1.2 kB"."""
    if value < 1000:
        return f"{value} B"
    amount = float(value)
    for unit in ("kB", "MB", "GB", "TB"):
        amount /= 1000
        if amount < 999.95:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:,.1f} PB"


def count(value: int) -> str:
    """Return a number with commas."""
    return f"{value:,}"


def plural(value: int, noun: str, many: str | None = None) -> str:
    """Return "1 shard", "2 shards", "2 indexes"."""
    return f"{value:,} {noun if value == 1 else many or noun + 's'}"
