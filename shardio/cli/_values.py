"""Converters from command-line words to the values that the library takes; they raise ValueError."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from cyclopts import Parameter


def one(convert: Callable[[str], Any], metavar: str | None = None) -> Parameter:
    """Return a Parameter that converts one word."""
    return Parameter(
        converter=lambda _, tokens: convert(tokens[0].value), n_tokens=1, metavar=metavar, negative=()
    )


def several(convert: Callable[[list[str]], Any], metavar: str | None = None) -> Parameter:
    """Return a Parameter that converts all words of a repeatable option."""
    return Parameter(
        converter=lambda _, tokens: convert([token.value for token in tokens]), metavar=metavar, negative=()
    )


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


def pairs(words: Sequence[str], value: Callable[[str], Any] = str) -> dict[str, Any]:
    """Return words such as NAME=VALUE as a dict; a name given twice is refused."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not name or not equals:
            raise ValueError(f"expected NAME=VALUE, found {word!r}")
        if name in found:
            raise ValueError(f"{name}= is given twice")
        found[name] = value(text)
    return found


def comma_names(words: Sequence[str]) -> list[str]:
    """Return comma-separated names."""
    found = [name.strip() for word in words for name in word.split(",")]
    if not all(found):
        raise ValueError(f"expected names with commas between them, found {','.join(words)!r}")
    return found


def split_patterns(given: Sequence[str]) -> str | dict[str, Any]:
    """Return the name of the one split; or patterns by name, or fractions where all are numbers."""
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    if any("=" not in text for text in given):
        raise ValueError("--split NAME alone names the one split; several need patterns: --split 'val=*val*'")
    patterns = pairs(given)
    numbers = all(re.fullmatch(r"\d*\.?\d+", pattern) for pattern in patterns.values())
    return {name: float(pattern) for name, pattern in patterns.items()} if numbers else patterns


def parse_version(text: str) -> int | str:
    """Return a version number, or a tag."""
    if text.isascii() and text.removeprefix("-").isdigit():
        return int(text)
    if re.fullmatch(r"[\w.+-]+", text, re.ASCII) is None:
        raise ValueError(f"{text!r} is neither a version number nor a tag")
    return text


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
    """Return the function named `package.module:name`."""
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
    """Return a word as a key of the feature's type: decimal for integers, hexadecimal for bytes.

    Args:
        text: the word.
        known: features that have an index of keys, each with its type.
        feature: of the keys; None for the only one.
    """
    if feature is None and len(known) == 1:
        feature = next(iter(known))
    kind = known.get(feature or "", "text")  # a lookup refuses a feature without an index
    if kind == "text":
        return text
    try:
        return bytes.fromhex(text) if kind == "bytes" else whole_number(text)
    except ValueError as error:
        wanted = "hexadecimal digits" if kind == "bytes" else "a whole number"
        raise ValueError(f"{text!r} is not {wanted}, as the keys are {kind}") from error


def positions(words: Sequence[str]) -> list[int]:
    """Return numbers of records."""
    return [whole_number(word) for word in words]


def cache_folder(folder: str) -> Any:
    """Return the cache in a folder."""
    from shardio.storage import CacheOptions

    return CacheOptions(folder, max_bytes=1)


Whole: TypeAlias = Annotated[int, one(whole_number, "N")]
Wholes: TypeAlias = Annotated[list[int], several(positions, "N")]
Version: TypeAlias = Annotated[str, one(parse_version, "N|TAG")]
Names: TypeAlias = Annotated[list[str], several(comma_names, "NAME,...")]
JsonPairs: TypeAlias = Annotated[list[str], several(lambda words: pairs(words, json_value), "KEY=VALUE")]
TextPairs: TypeAlias = Annotated[list[str], several(pairs, "NAME=VALUE")]
Splits: TypeAlias = Annotated[list[str], several(split_patterns, "NAME[=PATTERN|FRACTION]")]
Positions: TypeAlias = Annotated[
    list[int], several(positions, "POSITION..."), Parameter(help="numbers from 0, or from the end: -1")
]
Urls: TypeAlias = Annotated[
    list[str], Parameter(help="dataset, or the datasets of a mixture in order: local paths or fsspec URLs")
]
Slice: TypeAlias = Annotated[
    slice | None,
    one(record_range, "A:B"),
    Parameter(help="the streamed slice; either end may be omitted: 1000:"),
]
Rank: TypeAlias = Annotated[tuple[int, int], one(rank_of, "R/N")]
