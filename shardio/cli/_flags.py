"""Messages in the words of the command line: flags in place of the library's arguments.

The library's messages name its arguments, as in `shard_bytes=0` and `on_error="skip"`; at a terminal the same
advice is `--shard-bytes 0` and `--skip`.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import click

__all__ = ["in_flags"]

# A line of Python, `open(url, split="x")`, stays one.
_CALL = re.compile(r"(\w\((?:[^()]|\([^()]*\))*\))")
# Arguments that are called otherwise than their flags, by flag: what they look like, and what is typed.
_SCHEMA = r'\bschema=\{("(?:[^"\\]|\\.)*"): (None|"[^"]*")\}'
_CLASSES = r"\bclasses=(\[[^\]]*\])"
_METADATA = r'\bmetadata=\{("(?:[^"\\]|\\.)*"): \.\.\.\}'
_OTHER_NAMES = {
    "--allow-root": "allow_roots",
    "--storage-option": "storage_options",
    "--ranks": "world_size",
    "--memory": "memory_bytes",
}


def in_flags(text: str, params: Sequence[click.Parameter]) -> str:
    """Return a message with the flags of a command that stand for the arguments in it.

    Args:
        text: a message of the library.
        params: the parameters of the command; arguments that it has no flag for stay as they are.
    """
    flags = [name for param in params for name in param.opts if name.startswith("--")]
    for flag, pattern, write in _OTHERS:
        if flag in flags:
            text = re.sub(pattern, write, text)
    names = {flag[2:].replace("-", "_"): flag for flag in flags}
    names |= {name: flag for flag, name in _OTHER_NAMES.items() if flag in flags}
    if not names:
        return text
    parts = _CALL.split(text)
    parts[::2] = [_generic(part, names) for part in parts[::2]]
    return "".join(parts)


def _generic(text: str, names: Mapping[str, str]) -> str:
    name = rf"(?<![\w.\"'{{])({'|'.join(map(re.escape, names))})="
    text = re.sub(name + "True\\b", lambda match: names[match[1]], text)
    text = re.sub(
        name + r"(?:\"([^\"\n]*)\"|'([^'\n]*)'|(-?\d[\d.]*\d|-?\d))",
        lambda match: f"{names[match[1]]} {shlex.quote(match[2] or match[3] or match[4] or '')}",
        text,
    )
    return re.sub(name + r"(?=[ ,;:.)]|$)", lambda match: names[match[1]], text)


def _type(match: re.Match[str]) -> str:
    kind = "-" if match[2] == "None" else json.loads(match[2])
    return f"--type {shlex.quote(f'{json.loads(match[1])}={kind}')}"


def _classes(match: re.Match[str]) -> str:
    try:
        names = json.loads(match[1])
    except ValueError:
        return match[0]
    return "".join(f" --class {shlex.quote(name)}" for name in names)[1:]


def _metadata(match: re.Match[str]) -> str:
    return f"--metadata {shlex.quote(json.loads(match[1]) + '=...')}"


_OTHERS: tuple[tuple[str, str, str | Callable[[re.Match[str]], str]], ...] = (
    ("--skip", r'\bon_error="skip"', "--skip"),
    ("--no-image-check", r"\bcheck_images=False", "--no-image-check"),
    ("--type", _SCHEMA, _type),
    ("--class", _CLASSES, _classes),
    ("--metadata", _METADATA, _metadata),
)
