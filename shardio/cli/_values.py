"""What is typed behind an option, as the value that the library takes; ValueError says what was expected."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

NOTHING = object()  # for `none`, typed where the default is something


def whole_number(text: str) -> int:
    """Return a number of ASCII digits: `int` takes `1_0` for 10, and other digits, too."""
    if re.fullmatch(r"[+-]?[0-9]+", text) is None:
        raise ValueError(f"expected a whole number, found {text!r}")
    return int(text)


def json_value(text: str) -> Any:
    """Return the value of JSON, or else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def json_pair(text: str) -> tuple[str, Any]:
    """Return KEY=VALUE as a pair, the value as JSON where it is JSON."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"expected KEY=VALUE, found {text!r}")
    return key, json_value(value)


def text_pair(text: str) -> tuple[str, str]:
    """Take NAME=VALUE apart."""
    name, _, value = text.partition("=")
    if not name or not value:
        raise ValueError(f"expected NAME=VALUE, found {text!r}")
    return name, value


def once(flag: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return pairs as a dict; a name given twice is refused."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{flag} {name}= is given twice")
        found[name] = value
    return found


def comma_names(text: str) -> list[str]:
    """Return names that commas separate."""
    found = [name.strip() for name in text.split(",")]
    if not all(found):
        raise ValueError(f"expected names with commas between them, found {text!r}")
    return found


def fractions(text: str) -> dict[str, float]:
    """Return fractions of splits: train=0.9,test=0.1."""
    pairs = [(name.strip(), share) for name, _, share in (part.partition("=") for part in text.split(","))]
    found = once("--fractions", pairs)
    try:
        return {name: float(share) for name, share in found.items()}
    except ValueError:
        raise ValueError(f"--fractions {text}: expected fractions such as train=0.9,test=0.1") from None


def split_patterns(given: Sequence[str]) -> str | dict[str, str]:
    """Return the name of the one split, or patterns by name."""
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    pairs = [text.partition("=") for text in given]
    if any(not equals for _, equals, _ in pairs):
        raise ValueError("--split NAME alone names the one split; several need patterns: --split 'val=*val*'")
    if any(re.match(r"[\d.]+(,|$)", pattern) for _, _, pattern in pairs):
        raise ValueError(f"--split {given[0]}: fractions of the records are given with --fractions")
    return {name: pattern for name, _, pattern in pairs}


def parse_version(text: str) -> int | str:
    """Return a number, or a tag, of which none looks like a number."""
    from shardio.errors import UnsafeNameError
    from shardio.metadata import naming

    if text.isascii() and text.removeprefix("-").isdigit():
        return int(text)
    try:
        return naming.check_tag(text)
    except UnsafeNameError as error:
        raise ValueError(f"{text!r} is neither a number nor a tag: {error.expected}") from error


def record_range(text: str) -> slice:
    """Return A:B as a slice."""
    start, colon, stop = text.partition(":")
    try:
        if not colon:
            raise ValueError  # noqa: TRY301 - one message for all
        return slice(whole_number(start) if start else None, whole_number(stop) if stop else None)
    except ValueError:
        raise ValueError(f"expected A:B, found {text!r}") from None


def rank_of(text: str) -> tuple[int, int]:
    """Return R/N as a rank and the number of ranks."""
    rank, slash, ranks = text.partition("/")
    if not slash or not rank.isdecimal() or not ranks.isdecimal() or int(rank) >= int(ranks):
        raise ValueError(f"expected R/N with R below N, found {text!r}")
    return int(rank), int(ranks)


def function_of(name: str) -> Any:
    """Return the function that `package.module:name` means."""
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"expected MODULE:FUNCTION, found {name!r}")
    # A module in the current folder is found, as `python -m` would find it.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name}: {error}") from error


def parse_key(text: str, known: Mapping[str, str], feature: str | None) -> str | bytes | int:
    """Return what was typed as a key of the feature's type: decimal for integers, hexadecimal for bytes.

    Args:
        text: what was typed.
        known: features that have an index of keys, each with its type.
        feature: whose keys are meant; None for the only one.
    """
    if feature is None and len(known) == 1:
        feature = next(iter(known))
    kind = known.get(feature or "", "text")  # what has no index is refused where it is looked up
    if kind == "text":
        return text
    try:
        return bytes.fromhex(text) if kind == "bytes" else whole_number(text)
    except ValueError as error:
        wanted = "hexadecimal digits" if kind == "bytes" else "a whole number"
        raise ValueError(f"{text!r} is not {wanted}, as the keys are {kind}") from error
