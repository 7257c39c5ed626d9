"""JSON as records hold it: one decoder that convert, adoption, reading and verification all ask.

A document is what RFC 8259 says, in UTF-8.  `NaN`, `Infinity` and a name that comes twice in an object are
refused, because another program would read something else or nothing; so are numbers beyond float64, which
would become infinite, and documents nested deeper than `MAX_JSON_DEPTH`, which would be read or not depending
on the caller.

A file of JSON lines may begin with a byte order mark and may hold blank lines: neither is a record.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

UTF8_BOM = b"\xef\xbb\xbf"
MAX_JSON_DEPTH = 256
_TOO_DEEP = f"nested deeper than {MAX_JSON_DEPTH} levels"

# UTF-32's little-endian mark begins with that of UTF-16, so it comes first.
_WIDE = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_WHITESPACE = b" \t\r\n"
_CONTAINERS = {dict, list}
_FLOATS = ("NaN", "Infinity", "-Infinity")


def parse_json(
    data: bytes | bytearray | memoryview, *, make: Callable[[dict[str, Any]], Any] | None = None
) -> Any:
    """Return the value of one JSON document.

    Args:
        data: the document, UTF-8; whitespace around it is allowed.
        make: called with each object, innermost first; what it returns takes the object's place.

    Raises:
        ValueError: it is not a JSON document; the message says why in one sentence.

    Examples:
        >>> parse_json(b'{"a": [1, 2.5, null]}')
        {'a': [1, 2.5, None]}
    """
    data = bytes(data)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 ({error.reason} at byte {error.start})") from error
    if text.startswith("\ufeff"):
        raise ValueError("a byte order mark is where a JSON document should begin")
    if make is not None:
        check_json_depth(data)  # which cannot be told by what `make` returns
    try:
        value = _decoded(_decoder(make, finite=False), text)
        # Of a number that is too large, or of what `make` returned: the numbers themselves tell.
        return _decoder(make, finite=True).decode(text) if _has_infinity(value) else value
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos}") from error
    except RecursionError:
        check_json_depth(data)
        raise


def restored_object(value: dict[str, Any]) -> Any:
    """Return what an export to JSON lines wrote as an object, because JSON has no word for it.

    Another object is returned as it is. Such values are bytes as `{"$base64": ...}`, `{"$float": "NaN"}`
    and infinities, and `{"$complex": [re, im]}`.
    """
    if len(value) != 1:
        return value
    ((name, text),) = value.items()
    if name == "$float" and text in _FLOATS:
        return float(text)
    if name == "$complex" and isinstance(text, list) and [type(part) for part in text] == [float, float]:
        return complex(*text)
    if name == "$base64" and isinstance(text, str):
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return value
    return value


def is_blank_line(line: bytes) -> bool:
    """Tell whether a line of a JSON lines file holds no document: nothing but JSON's whitespace."""
    return (not line or line[0] in _WHITESPACE) and not line.strip(_WHITESPACE)


def wide_encoding(head: bytes) -> str | None:
    """Return the name of the encoding if a text file begins with the mark of UTF-16 or UTF-32, else None."""
    return next((name for mark, name in _WIDE if head.startswith(mark)), None)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = Counter(name for name, _ in pairs)
        twice = next(name for name, times in names.items() if times > 1)
        raise ValueError(f"the name {twice[:100]!r} comes twice in an object")
    return value


# Made once: `json.loads` with a hook makes a decoder at every call.
@functools.lru_cache(maxsize=16)
def _decoder(make: Callable[[dict[str, Any]], Any] | None, *, finite: bool) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=_object if make is None else lambda pairs: make(_object(pairs)),
        parse_constant=_no_constant,
        # A function of Python for each number costs, so it is called only where one is infinite.
        parse_float=_finite if finite else None,
    )


def _decoded(decoder: json.JSONDecoder, text: str) -> Any:
    # `decode` looks for whitespace by an expression before and behind, which costs a fifth of a line.
    if text.startswith(("{", "[")):
        value, end = decoder.raw_decode(text)
        if not text[end:].strip(" \t\r\n"):
            return value
    return decoder.decode(text)


def _has_infinity(value: Any) -> bool:
    """Return whether there is an infinite float in a value, at any depth.

    Raises:
        ValueError: it is nested too deeply.
    """
    # Not recursive: whether a document can be read must not depend on the caller's stack.
    level, depth = ([value] if type(value) in _CONTAINERS else []), 0
    while level:
        depth += 1
        if depth > MAX_JSON_DEPTH:
            raise ValueError(_TOO_DEEP)
        inner = []
        for container in level:
            for item in container if type(container) is list else container.values():
                kind = type(item)
                if kind is float:
                    if item - item:  # not a number, where it is infinite
                        return True
                elif kind is dict or kind is list:
                    inner.append(item)
        level = inner
    return type(value) is float and math.isinf(value)


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"the number {digits[:60]} is larger than float64 can hold")
    return number


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON; a missing number is written as null")


def check_json_depth(data: bytes) -> None:
    """Raise ValueError for a document nested too deeply; brackets within strings do not count."""
    if data.count(b"[") + data.count(b"{") <= MAX_JSON_DEPTH:
        return
    marks = np.frombuffer(_STRING.sub(b"", data), np.uint8)
    steps = np.zeros(len(marks), np.int8)
    steps[(marks == ord("[")) | (marks == ord("{"))] = 1
    steps[(marks == ord("]")) | (marks == ord("}"))] = -1
    if int(np.cumsum(steps, dtype=np.int64).max(initial=0)) > MAX_JSON_DEPTH:
        raise ValueError(_TOO_DEEP)


def check_json_keys(value: object) -> None:
    """Refuse a key that is not text, at any depth: JSON would make text of it, and give that back.

    Raises:
        TypeError: names the key.
        RecursionError: nested beyond reason.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is {type(key).__name__}, and keys of JSON objects are text")
            check_json_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            check_json_keys(item)
