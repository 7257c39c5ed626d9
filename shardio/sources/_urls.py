"""URLs as text: taken apart into folders, expanded from braces, matched against patterns.

No filesystem expands anything: a name from a listing is only ever compared with a pattern here.
"""

from __future__ import annotations

import itertools
import pathlib
import re
import urllib.parse
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shardio.redact import redact, refuse_password
from shardio.storage import local_path

_SCHEME = re.compile(r"((?:[A-Za-z][A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+://)(.*)", re.DOTALL)
# Filesystems of fsspec within a file of another one; elsewhere keys may hold "::".
_WITHIN_A_FILE = ("zip://", "tar://", "libarchive://", "reference://")
_ANOTHER_URL = re.compile(r"::[A-Za-z][A-Za-z0-9+.-]+:/")
_WEB = ("http://", "https://")
_UNENCODED = "!$&'()*,;=:@"  # in a component of a path; some servers read "+" as a space
_SAME_STORES = {"s3a://": "s3://", "gcs://": "gs://", "abfs://": "az://"}
_MAGIC = re.compile(r"[*?\[]")
_INNERMOST = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_MOST_NAMES = 1_000_000


class SplitUrl(NamedTuple):
    """A URL taken apart: its scheme with `://` ("" for a local path), and its components."""

    scheme: str
    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> SplitUrl:
        """Take a URL or local path apart; a local path becomes absolute.

        Raises:
            ValueError: empty, a URL with a password; a URL with a query, which names no object of a dataset;
                or a chain of which no files can be listed.
        """
        match = _SCHEME.fullmatch(refuse_password(text))
        scheme = match[1].lower() if match is not None else ""
        if match is None or scheme in ("file://", "local://"):
            path = text if match is None else match[2]
            if not path:
                raise ValueError("a path must not be empty; '.' is the current folder")
            return cls("", pathlib.PurePath(local_path(text)).parts[1:])
        within = scheme in _WITHIN_A_FILE and "::" in match[2]
        if within or _ANOTHER_URL.search(match[2]) or scheme.endswith(("::file://", "::local://")):
            raise ValueError(
                f"{text!r}: files are not listed within a file of another filesystem, nor behind a cache of "
                "local ones; unpack it and name the folder. A dataset of shardio's is opened by such an "
                "address: shardio.open(url)"
            )
        if scheme in _WEB and ("?" in match[2] or "#" in match[2]):
            raise ValueError(
                f"{redact(text)!r}: a URL with a query cannot be read by ranges from a dataset; use plain "
                "addresses"
            )
        parts = [part for part in match[2].split("/") if part]
        if not parts:
            raise ValueError(f"{text!r} names no bucket")
        if scheme.endswith(_WEB):
            # One file has many addresses there: it is found to be one by one of them.
            host = parts[0].lower().removesuffix(":443" if scheme.endswith("https://") else ":80")
            parts = [host, *(_encoded(urllib.parse.unquote_to_bytes(part)) for part in parts[1:])]
        return cls(scheme, tuple(parts))

    @property
    def url(self) -> str:
        """The URL, or the absolute local path."""
        return f"{self.scheme}{'/'.join(self.parts)}" if self.scheme else f"/{'/'.join(self.parts)}"

    @property
    def is_web(self) -> bool:
        """Whether a web server answers for it."""
        return self.scheme.endswith(_WEB)

    @property
    def folder(self) -> SplitUrl:
        """The place that this one is in."""
        return SplitUrl(self.scheme, self.parts[:-1])

    def join(self, key: str) -> SplitUrl:
        """Return the place of a key below this one."""
        return SplitUrl(self.scheme, (*self.parts, *key.split("/")))

    def join_key(self, key: str) -> SplitUrl:
        """Return the place of a key below this one: web addresses are percent-encoded, keys are not."""
        return self.join(_encoded(key.encode("utf-8", "surrogateescape"), "/") if self.is_web else key)

    def below(self, folder: SplitUrl) -> str | None:
        """Return the key of this place under a folder, or None where it is elsewhere."""
        count = len(folder.parts)
        same = _SAME_STORES.get(self.scheme, self.scheme) == _SAME_STORES.get(folder.scheme, folder.scheme)
        if not same or self.parts[:count] != folder.parts or len(self.parts) <= count:
            return None
        key = "/".join(self.parts[count:])
        return urllib.parse.unquote(key) if self.is_web else key


def _encoded(part: bytes, more: str = "") -> str:
    """Return a part of the path of a web address, percent-encoded where it must be."""
    return urllib.parse.quote(part, safe=_UNENCODED + more)


def common_folder(folders: Iterable[SplitUrl]) -> SplitUrl | None:
    """Return the deepest folder that holds all of them; None where there is no such folder."""
    given = list(dict.fromkeys(folders))
    if not given or len({place.scheme for place in given}) > 1:
        return None
    shared = itertools.takewhile(
        lambda same: len(set(same)) == 1, zip(*(place.parts for place in given), strict=False)
    )
    parts = tuple(same[0] for same in shared)
    return SplitUrl(given[0].scheme, parts) if parts else None


def has_pattern(text: str) -> bool:
    """Tell whether a name holds a character that patterns give a meaning: `*`, `?` or `[`."""
    return _MAGIC.search(text) is not None


def glob_expression(pattern: str) -> str:
    """Return the regular expression of a pattern over keys.

    `*` and `?` stay within a component, `[...]` and `[!...]` are sets of characters, and `**` as a component
    stands for any number of folders.
    """
    out: list[str] = []
    parts = pattern.split("/")
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            out.append(".*" if last else "(?:.*/)?")
        else:
            out.append(_component(part) + ("" if last else "/"))
    return "".join(out)


def literal_prefix(pattern: str) -> str:
    """Return what every key that a pattern matches begins with."""
    return _MAGIC.split(pattern)[0]


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


def expand_braces(text: str) -> list[str]:
    """Return every name that a pattern with braces stands for, in order; the text itself where it has none.

    `{0000..0127}` counts, `{train,val}` lists, as in shells and WebDataset. Numbers keep the leading zeros of
    the first one. Braces around something else stay as they are.

    Raises:
        ValueError: more than a million names.
    """
    names = list(itertools.islice(_expand(text, 0), _MOST_NAMES + 1))
    if len(names) > _MOST_NAMES:
        message = f"{text!r} stands for more than {_MOST_NAMES} names; give the names in a file, as @list.txt"
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
        # What stood before may hold an outer brace, so the search starts again.
        yield from _expand(text[: match.start()] + choice + text[match.end() :], 0 if start == 0 else start)


def _choices(inside: str) -> list[str] | None:
    found = _RANGE.fullmatch(inside)
    if found is not None:
        first, last = int(found[1]), int(found[2])
        if abs(last - first) >= _MOST_NAMES:
            count = abs(last - first) + 1
            message = f"{{{inside}}} stands for {count} names; at most {_MOST_NAMES} are taken at once"
            raise ValueError(message)
        width = len(found[1]) if found[1].lstrip("-").startswith("0") else 0
        step = 1 if last >= first else -1
        return [f"{number:0{width}d}" for number in range(first, last + step, step)]
    return inside.split(",") if "," in inside else None
