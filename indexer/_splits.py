"""Which split a shard belongs to: by the pattern that its name matches first."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from shardio.metadata import check_split

__all__ = ["DEFAULT_SPLIT", "Splits"]

DEFAULT_SPLIT = "train"


class Splits:
    """Names of splits by pattern.

    Args:
        given: None for one split "train"; the name of the one split; or patterns by name, e.g.
            `{"train": "*train*", "val": "*val*"}`, the first that matches counts.

    Raises:
        UnsafeNameError: no name for a split.
    """

    def __init__(self, given: str | Mapping[str, str] | None) -> None:
        if isinstance(given, Mapping):
            self._patterns = dict(given)
        else:
            self._patterns = {given or DEFAULT_SPLIT: "*"}
        for name in self._patterns:
            check_split(name)

    def of(self, key: str) -> str | None:
        """Return the split of a shard by its key; None where no pattern matches."""
        name = key.rpartition("/")[2]
        for split, pattern in self._patterns.items():
            if fnmatch.fnmatchcase(key, pattern) or fnmatch.fnmatchcase(name, pattern):
                return split
        return None

    def __str__(self) -> str:
        return ", ".join(f"{name}={pattern}" for name, pattern in self._patterns.items())
