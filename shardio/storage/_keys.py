"""Keys and roots as text: what may name an object, and where a root URL leads.

Callers validate keys by the rules of their format; this is the last fence, and it holds whatever they do.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from typing import NamedTuple

from shardio.errors import NotFoundError, UnsafeNameError
from shardio.metadata import naming
from shardio.redact import refuse_password

# Names of our own half-written files on local disks. Keys may not use it.
TEMPORARY = ".shardio-tmp-"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
# What pathlib makes of a URL: `str(Path("s3://bucket/x"))` is "s3:/bucket/x".
_COLLAPSED = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]+(?:://?[^:]*)?::)*([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
# Only what leads to another URL is a chain: keys may hold "::".
_CHAIN = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]+)(?:://[^:]*)?(?:::[A-Za-z][A-Za-z0-9+.-]+(?:://[^:]*)?)*::[A-Za-z][A-Za-z0-9+.-]+://"
)


class Root(NamedTuple):
    """A root URL taken apart: lower-case protocol, and what follows it without a trailing slash."""

    protocol: str
    path: str


def check_key(key: str) -> None:
    """Refuse a key that is not a plain relative path of UTF-8 text.

    Raises:
        UnsafeNameError: a component is empty, `.`, `..` or the name of a temporary, or the key holds a
            backslash, a control character but the tab, or what UTF-8 cannot express.
    """
    unsafe = naming.unsafe_part(key)
    if unsafe is None and TEMPORARY in key:
        unsafe = next((f"the component {p!r}" for p in key.split("/") if p.startswith(TEMPORARY)), None)
    if unsafe is not None:
        raise UnsafeNameError(f"a key may not hold {unsafe}", found=repr(key))


def check_prefix(prefix: str) -> None:
    """Refuse a prefix under which no key could be; its last component may be cut short, or empty.

    Raises:
        UnsafeNameError: as in `check_key`.
    """
    folder, slash, last = prefix.rpartition("/")
    if last not in {"", ".", ".."}:
        check_key(prefix)
    elif slash:
        check_key(folder)


def is_temporary(key: str) -> bool:
    """Tell whether a listed file is one of our half-written ones."""
    return key.rpartition("/")[2].startswith(TEMPORARY)


def url_text(url: object) -> str:
    """Return a URL or path that a caller gave, as text.

    `str(url)` would turn a forgotten `None` into a folder of that name.

    Raises:
        TypeError: it is neither text nor a path.
        ValueError: it is empty, holds a NUL or a password, or has lost a slash.
    """
    text = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(text, str):
        raise TypeError(f"a URL is text or a pathlib.Path, not {type(url).__name__}")
    if not text:
        raise ValueError("a URL must not be empty; '.' is the current folder")
    if "\0" in text:
        raise ValueError(f"{text!r} holds a character NUL, which no name of a file or an object has")
    collapsed = _COLLAPSED.match(text)
    if collapsed is not None:
        raise ValueError(
            f"{text!r} has one slash after {collapsed[1]}: where a URL has two; pathlib.Path takes one away, "
            f"so give URLs as text; a local path that begins so is written './{text}'"
        )
    return refuse_password(text)


def split_url(url: str | os.PathLike[str]) -> Root:
    """Take a root URL apart; a path without a scheme, and `file://`, become an absolute local path.

    `~` is expanded in paths, as fsspec does: a root is the caller's own word. Percent signs stay as they are.

    Raises:
        TypeError, ValueError: as `url_text`.
        UnsafeNameError: a component of a remote path is `.` or `..`: some clients resolve it, others take it
            for a name, so what is written under it may not be found again.
    """
    text = url_text(url)
    chain = _CHAIN.match(text)
    scheme = _SCHEME.match(text)
    if chain is None and (scheme is None or scheme[1].lower() in {"file", "local"}):
        return Root("file", local_path(text).rstrip(os.sep) or os.sep)
    for link in text.split("::"):
        is_web = link.lower().startswith(("http://", "https://"))
        path = re.split("[?#]", link)[0] if is_web else link
        for part in path.partition("://")[2].split("/"):
            if (urllib.parse.unquote(part) if is_web else part) in {".", ".."}:
                raise UnsafeNameError(
                    f"a URL may not hold the component {part!r}",
                    url=text,
                    advice="write the address that it leads to",
                )
    if chain is not None:
        return Root(chain[1].lower(), text.rstrip("/"))
    assert scheme is not None  # noqa: S101 - else it is a local path
    return Root(scheme[1].lower(), text[scheme.end() :].rstrip("/"))


def followed(url: str) -> str:
    """Return the URL of a place, as stores give it, with the links on a local path followed.

    By it two names of one place are found to be one; a store keeps the name that its caller gave.
    """
    return url if "://" in url else os.path.realpath(url)


def is_link(url: str) -> bool:
    """Tell whether a place is a symbolic link on a local path."""
    return "://" not in url and os.path.islink(url)


def local_path(url: str) -> str:
    """Return the absolute path of a local path or `file://` URL; `~` is expanded, links are not followed.

    Raises:
        NotFoundError: the path is relative, and the current folder was removed.
    """
    # `localhost` may name the machine; any other word begins a relative path, as it does in fsspec.
    path = re.sub(r"\A(?i:file|local)://(?:localhost(?=/))?", "", url)
    try:
        return os.path.abspath(os.path.expanduser(path))
    except FileNotFoundError as error:  # of `os.getcwd`
        what = "the current folder is gone, so a relative path leads nowhere"
        raise NotFoundError(
            what, url=path, advice="change to a folder that exists, or give the whole path"
        ) from error
