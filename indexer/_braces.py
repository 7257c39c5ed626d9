"""Braces in names of shards: `{0000..0127}` counts, `{train,val}` lists, as in shells and WebDataset."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["expand_braces"]

_INNERMOST = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_MOST = 1_000_000


def expand_braces(text: str) -> list[str]:
    """Return every name that a pattern with braces stands for, in order; the text itself where it has none.

    Numbers keep the leading zeros of the first one. Braces around something else stay as they are.

    Raises:
        ValueError: more than a million names.
    """
    names = list(itertools.islice(_expand(text, 0), _MOST + 1))
    if len(names) > _MOST:
        message = f"{text!r} stands for more than {_MOST} names; give the names in a file, as @list.txt"
        raise ValueError(message)
    return names


def _expand(text: str, start: int) -> Iterator[str]:
    match = _INNERMOST.search(text, start)
    if match is None:
        yield text
        return
    choices = _choices(match[1])
    if choices is None:
        yield from _expand(text, match.end())
        return
    for choice in choices:
        # What stood before may hold an outer brace, so the search begins anew.
        yield from _expand(text[: match.start()] + choice + text[match.end() :], 0 if start == 0 else start)


def _choices(inside: str) -> list[str] | None:
    found = _RANGE.fullmatch(inside)
    if found is not None:
        first, last = int(found[1]), int(found[2])
        if abs(last - first) >= _MOST:
            message = (
                f"{{{inside}}} stands for {abs(last - first) + 1} names; at most {_MOST} are taken at once"
            )
            raise ValueError(message)
        width = len(found[1]) if found[1].lstrip("-").startswith("0") else 0
        step = 1 if last >= first else -1
        return [f"{number:0{width}d}" for number in range(first, last + step, step)]
    return inside.split(",") if "," in inside else None
