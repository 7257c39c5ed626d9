"""Globs as regular expressions over keys; no filesystem expands anything."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MAGIC", "glob_expression"]

MAGIC = re.compile(r"[*?\[]")


def glob_expression(parts: Iterable[str]) -> str:
    """Return the regular expression of a glob; `**` as a component stands for any number of folders."""
    out: list[str] = []
    pieces = list(parts)
    for number, part in enumerate(pieces):
        last = number == len(pieces) - 1
        if part == "**":
            out.append(".*" if last else "(?:.*/)?")
        else:
            out.append(_component(part) + ("" if last else "/"))
    return "".join(out)


def _component(part: str) -> str:
    out, at = "", 0
    while at < len(part):
        char = part[at]
        stop = part.find("]", at + 2) if char == "[" else -1
        if char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif stop > 0:
            inside = part[at + 1 : stop].replace("\\", "\\\\")
            out += f"[{'^' + inside[1:] if inside.startswith(('!', '^')) else inside}]"
            at = stop
        else:
            out += re.escape(char)
        at += 1
    return out
