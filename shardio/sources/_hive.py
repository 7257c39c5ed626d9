"""Folders named `key=value`, as Hive, Spark and Arrow name parts of a table: `year=2020/lang=en/0.parquet`.

The one place that takes such names apart.  Keys and values are percent-encoded; a value that is null is
`__HIVE_DEFAULT_PARTITION__`.  The key `split` names a split, see `SplitRules`.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from shardio.errors import FormatError, SchemaError
from shardio.metadata import Feature

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


def key_value(text: str | None, name: str, feature: Feature) -> Any:
    """Return the text of a key as a value of its feature; what does not fit, the feature refuses.

    Raises:
        SchemaError: the text is none of the feature's type.
    """
    if text is None or feature.kind != "number" or feature.classes is not None:
        return text
    try:
        if feature.type == "bool":
            return {"true": True, "false": False}[text.lower()]
        return float(text) if "float" in feature.type else int(text)
    except (KeyError, ValueError):
        what = f"a folder says {name}={text}, which does not fit the feature {name!r}"
        raise SchemaError(
            what,
            expected=feature.short,
            found=repr(text),
            advice=f'give the feature another type with schema={{"{name}": "text"}}',
        ) from None


def check_partitions(partitions: object) -> None:
    """Raise ValueError for what no caller may say of names of folders."""
    if partitions not in ("hive", None):
        raise ValueError(f'partitions={partitions!r} must be "hive" or None')


def type_of_key(texts: Sequence[str | None], *, optional: bool) -> Feature:
    """Return the type of a key by its values, as Arrow infers it: int64 where all are integers, else text."""
    given = [text for text in texts if text is not None]
    numbers = bool(given) and all(
        _INTEGER.fullmatch(text) and -_INT64 <= int(text) < _INT64 for text in given
    )
    return Feature("int64" if numbers else "text", optional=optional or len(given) < len(texts))
