"""URLs taken apart as text: places, keys below folders, the folder that places have in common."""

from __future__ import annotations

import pathlib
import re
import urllib.parse
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Place", "common_folder"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+://)(.*)", re.DOTALL)


class Place(NamedTuple):
    """A URL taken apart: its scheme with `://` ("" for a local path), and its components."""

    scheme: str
    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Place:
        """Take a URL or local path apart; a local path becomes absolute.

        Raises:
            ValueError: empty, or a URL with a query, which names no object of a dataset.
        """
        match = _SCHEME.fullmatch(text)
        scheme = match[1].lower() if match is not None else ""
        if match is None or scheme in ("file://", "local://"):
            path = text if match is None else match[2]
            if not path:
                raise ValueError("a path must not be empty; '.' is the current folder")
            absolute = pathlib.Path(path).expanduser().absolute()
            return cls("", tuple(_without_dots(absolute.parts[1:])))
        if scheme in ("http://", "https://") and ("?" in match[2] or "#" in match[2]):
            message = (
                f"{text!r}: a URL with a query cannot be read by ranges from a dataset; use plain addresses"
            )
            raise ValueError(message)
        parts = [part for part in match[2].split("/") if part]
        if not parts:
            message = f"{text!r} names no bucket"
            raise ValueError(message)
        return cls(scheme, tuple(parts))

    @property
    def url(self) -> str:
        """The URL, or the absolute local path."""
        return f"{self.scheme}{'/'.join(self.parts)}" if self.scheme else f"/{'/'.join(self.parts)}"

    @property
    def is_web(self) -> bool:
        """Whether a web server answers for it."""
        return self.scheme in ("http://", "https://")

    def below(self, folder: Place) -> str | None:
        """Return the key of this place under a folder, or None where it lies elsewhere."""
        count = len(folder.parts)
        if self.scheme != folder.scheme or self.parts[:count] != folder.parts or len(self.parts) <= count:
            return None
        key = "/".join(self.parts[count:])
        # Web addresses are percent-encoded, keys are not.
        return urllib.parse.unquote(key) if self.is_web else key


def common_folder(folders: Iterable[Place]) -> Place | None:
    """Return the deepest folder that holds all of them; None where there is no such folder."""
    given = list(dict.fromkeys(folders))
    if not given or len({place.scheme for place in given}) > 1:
        return None
    parts = given[0].parts
    for place in given[1:]:
        count = 0
        while count < min(len(parts), len(place.parts)) and parts[count] == place.parts[count]:
            count += 1
        parts = parts[:count]
    return Place(given[0].scheme, parts) if parts else None


def _without_dots(parts: Iterable[str]) -> list[str]:
    out: list[str] = []
    for part in parts:
        if part == "..":
            del out[-1:]
        elif part not in ("", "."):
            out.append(part)
    return out
