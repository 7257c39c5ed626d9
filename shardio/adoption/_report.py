"""What an adoption found, as a value; and the line of Python that opens the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from shardio.errors import BadRecord, ShardioError
from shardio.metadata import Schema
from shardio.progress import BytesProgress
from shardio.reports import Report

# Values of these options are secrets.
_SECRET = ("secret", "key", "token", "password", "credential", "connection", "sas")


@dataclass(frozen=True)
class AdoptProgress(BytesProgress):
    """How far adoption has come.

    Attributes:
        done_bytes, total_bytes: stored bytes of shards that were scanned, and of all.
        done_shards, total_shards: the shards, likewise.
    """

    done_shards: int
    total_shards: int

    @property
    def amounts(self) -> tuple[tuple[int, str], ...]:
        """Shards that this run has scanned, whose rate is shown."""
        return ((self.done_shards, "shards"),)


class Refusal(NamedTuple):
    """A shard, or a pattern, that is not part of the dataset, and why."""

    url: str
    error: Exception

    def __str__(self) -> str:
        """Return the error, which names the URL."""
        return str(self.error)

    def to_dict(self) -> dict[str, Any]:
        """Return the address, the kind of error, its text and its fields, as JSON holds them."""
        fields = self.error.fields() if isinstance(self.error, ShardioError) else {}
        plain = {name: value if isinstance(value, int) else str(value) for name, value in fields.items()}
        return {**plain, "url": self.url, "kind": type(self.error).__name__, "error": str(self.error)}


@dataclass(frozen=True, kw_only=True)
class AdoptReport(Report):
    """Result of an adoption.

    Attributes:
        url: of the dataset.
        version: its number after the adoption; None where nothing could be adopted.
        digest: `"sha256:..."` of that version.
        opens: the line of Python that opens the dataset; "" where there is none.
        adopted: shards that became part of the dataset now.
        known: shards that were part of it before, unchanged.
        updated: shards that had changed and were indexed again.
        shards: the shards adopted, known and updated, by split.
        records, stored_bytes: of these shards; no records in a dry run, which reads none.
        splits: records of each split of the version, by name.
        schema: of the dataset, or None where records are bytes.
        refused: shards that could not be adopted, and patterns that match nothing.
        stale: URLs of shards that changed since they were adopted.
        missing: URLs of shards that are part of the dataset and no longer there.
        dropped: URLs of such shards that this adoption took out of the dataset.
        skipped: damage that salvage skipped, each with its range of decoded bytes.
        ignored: URLs of files that were found and not adopted: no shards by their names or first bytes, or of
            no split.
        notes: what deserves attention.
        dry_run: no shard was read, and nothing written: `adopted` and `updated` are what would be tried,
            `version` the one that is there.
    """

    _computed: ClassVar[tuple[str, ...]] = ("ok", "encoding")

    url: str
    version: int | None
    digest: str = ""
    opens: str = ""
    adopted: int = 0
    known: int = 0
    updated: int = 0
    shards: Mapping[str, int] = field(default_factory=dict)
    records: int = 0
    stored_bytes: int = 0
    splits: Mapping[str, int] = field(default_factory=dict)
    schema: Schema | None = None
    refused: tuple[Refusal, ...] = ()
    stale: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    skipped: tuple[BadRecord, ...] = ()
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """Whether the dataset is what was found: nothing refused, changed or gone."""
        done = self.dry_run or self.version is not None
        return done and not (self.refused or self.stale or self.missing)

    @property
    def encoding(self) -> str | None:
        """How the schema encodes records; None where they are bytes."""
        return None if self.schema is None else self.schema.encoding


def opening_line(
    url: str,
    *,
    split: str | None,
    target_options: Mapping[str, Any] | None,
    roots: Mapping[str, Mapping[str, Any]],
) -> str:
    """Return the line of Python that opens a dataset; secrets are left for the caller to fill in.

    Args:
        url: of the dataset.
        split: named where there are several.
        target_options: storage options of the dataset.
        roots: storage options by URL of the roots of its shards.
    """
    parts = [repr(url)]
    if split is not None:
        parts.append(f"split={split!r}")
    if target_options:
        parts.append(f"storage_options={_shown(target_options)}")
    if roots:
        inside = ", ".join(f"{root!r}: {_shown(options)}" for root, options in roots.items())
        parts.append(f"allow_roots={{{inside}}}")
    return f"ds = shardio.open({', '.join(parts)})"


def _shown(value: Any, name: str = "") -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_shown(item, key)}" for key, item in value.items()) + "}"
    secret = any(word in name.lower() for word in _SECRET) and value not in ("anon", None, True)
    return "..." if secret else repr(value)
