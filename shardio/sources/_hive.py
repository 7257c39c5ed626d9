"""Folders named `key=value`, as Hive, Spark and Arrow name parts of a table: `year=2020/lang=en/0.parquet`.

The one place that takes such names apart.  Keys and values are percent-encoded; a value that is null is
`__HIVE_DEFAULT_PARTITION__`.  The key `split` names a split, see `SplitRules`.
"""

from __future__ import annotations

import re
import urllib.parse
from typing import TYPE_CHECKING, NamedTuple

from shardio.errors import FormatError
from shardio.metadata import Feature

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

SPLIT_KEY = "split"

_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_INT64 = 1 << 63


class FolderKey(NamedTuple):
    """One key of a folder, and the text of its value; None where the value is null."""

    name: str
    text: str | None

    def __str__(self) -> str:
        return f"{self.name}={_NULL if self.text is None else self.text}"


def folder_key(folder: str) -> FolderKey | None:
    """Return what the name of one folder says, or None where it is not `key=value`."""
    name, equals, text = folder.partition("=")
    if not name or not equals:
        return None
    value = None if text == _NULL else urllib.parse.unquote(text)
    return FolderKey(urllib.parse.unquote(name), value)


def split_of(folder: str) -> str | None:
    """Return the split that a folder `split=NAME` names, or None."""
    found = folder_key(folder)
    return found.text if found is not None and found.name == SPLIT_KEY else None


def folder_keys(url: str, roots: Iterable[str]) -> tuple[FolderKey, ...]:
    """Return the keys of the folders that a file is in, the outermost first.

    Those count that are below the folder that was searched, and those that this one and the ones directly
    above it have, so that one part of a table alone has the same keys as the whole.

    Args:
        url: of the file.
        roots: URLs of the folders that were searched.

    Raises:
        FormatError: two folders give one key different values.
    """
    found: dict[str, FolderKey] = {}
    for folder in _counted(url, roots):
        key = folder_key(folder)
        if key is not None and found.setdefault(key.name, key) != key:
            raise FormatError(
                f"two folders give the key {key.name!r} different values",
                url=url,
                found=f"{found[key.name]} and {key}",
                advice="rename one of them",
            )
    return tuple(found.values())


def _counted(url: str, roots: Iterable[str]) -> list[str]:
    around = [root.rstrip("/") for root in roots if url.startswith(root.rstrip("/") + "/")]
    root = max(around, key=len, default=url.rpartition("/")[0])
    above: list[str] = []
    for folder in reversed(root.split("/")):
        if folder_key(folder) is None:
            break
        above.insert(0, folder)
    return above + url[len(root) + 1 :].split("/")[:-1]


def note_on_records(urls: Iterable[str], roots: Collection[str], *, split_is_key: bool) -> list[str]:
    """Return the note on keys of folders that records, which stay as they are, do not hold.

    Args:
        urls: of the files of records.
        roots: of the folders that were searched.
        split_is_key: the key `split` does not name the split.
    """
    folders = {url.rpartition("/")[0] + "/" for url in urls}
    found: dict[str, FolderKey] = {}
    for folder in sorted(folders):
        for key in folder_keys(folder, roots):
            found.setdefault(key.name, key)
    if not split_is_key:
        found.pop(SPLIT_KEY, None)
    told = ", ".join(map(str, found.values()))
    remedy = "a conversion of the files, `shardio convert FOLDER NEW` with their kind as `--kind`"
    return [f"records do not hold what names of folders say ({told}); {remedy}, adds it"] if found else []


def type_of_key(texts: Sequence[str | None], *, optional: bool) -> Feature:
    """Return the type of a key by its values, as Arrow infers it: int64 where all are integers, else text."""
    given = [text for text in texts if text is not None]
    numbers = bool(given) and all(
        _INTEGER.fullmatch(text) and -_INT64 <= int(text) < _INT64 for text in given
    )
    return Feature("int64" if numbers else "text", optional=optional or len(given) < len(texts))
