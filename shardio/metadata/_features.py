"""Critical features: what a reader must know to read an object at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.errors import FormatError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FORMAT_VERSION", "INDEX_ADVICE", "INDEX_FEATURES", "MANIFEST_FEATURES", "check_version"]

FORMAT_VERSION = 1
INDEX_FEATURES = frozenset({"gaps", "record_crc32", "record_unchecked", "stream"})
# What to do about an index that is damaged, gone or another's.
INDEX_ADVICE = (
    "restore the index from a copy; that of an adopted shard is made again with `shardio index URL --update`"
)
MANIFEST_FEATURES = frozenset({"deletions", "foreign_roots", "session_lists"})


def check_version(
    version: int, features: Iterable[str], known: frozenset[str], *, what: str, url: str | None
) -> None:
    """Raise `UnsupportedVersionError` for what this program is too old to read; version 0 is none at all."""
    if version == 0:
        raise FormatError(f"a {what} names no format version", url=url, expected=FORMAT_VERSION)
    unknown = sorted(set(features) - known)
    if version != FORMAT_VERSION or unknown:
        found = f"version {version}" + (f" with {', '.join(map(repr, unknown))}" if unknown else "")
        raise UnsupportedVersionError(
            f"a {what} was written by a newer shardio",
            url=url,
            expected=f"version {FORMAT_VERSION}"
            + (f" with {', '.join(sorted(known))} at most" if unknown else ""),
            found=found,
            advice="upgrade shardio to read it",
        )
