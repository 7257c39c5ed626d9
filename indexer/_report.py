"""What an adoption found, as a value; and the line of Python that opens the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from shardio.errors import ShardioError
from shardio.metadata import schema_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardio.codecs import InferenceReport
    from shardio.errors import BadRecord
    from shardio.metadata import Schema

__all__ = ["AdoptProgress", "AdoptReport", "Refusal", "opening_line"]

# Values of these options are secrets.
_SECRET = ("secret", "key", "token", "password", "credential", "connection", "sas")


class AdoptProgress(NamedTuple):
    """How far it has come: shards and their bytes, done and in all."""

    done_shards: int
    shards: int
    done_bytes: int
    bytes: int

    @property
    def done(self) -> int:
        """`done_bytes`; see `shardio.progress.ProgressState`."""
        return self.done_bytes

    @property
    def total(self) -> int:
        """`bytes`."""
        return self.bytes

    @property
    def unit(self) -> str:
        """Bytes."""
        return "B"

    @property
    def amounts(self) -> tuple[tuple[int, str], ...]:
        """Shards."""
        return ((self.done_shards, "shards"),)


class Refusal(NamedTuple):
    """A shard, or a pattern, that is not part of the dataset, and why."""

    url: str
    error: Exception


@dataclass(frozen=True, kw_only=True)
class AdoptReport:
    """What became of the shards.

    Attributes:
        url: of the dataset.
        version: its number after the adoption; None where nothing could be adopted.
        digest: `"sha256:..."` of that version.
        opens: the line of Python that opens the dataset; "" where there is none.
        adopted: shards that became part of the dataset now.
        known: shards that were part of it before, unchanged.
        updated: shards that had changed and were indexed again.
        records, num_bytes: how many records and bytes of the shards adopted, known and updated.
        splits: records of each split of the version, by name.
        schema: of the dataset, or None where records are bytes.
        inference: what the schema rests on, where it was inferred.
        refused: shards that could not be adopted, and patterns that match nothing.
        stale: URLs of shards that changed since they were adopted.
        missing: URLs of shards that are part of the dataset and no longer there.
        dropped: URLs of such shards that this adoption took out of the dataset.
        skipped: damage that salvage left out, each with its range of decoded bytes.
        ignored: URLs of files that were found and not adopted: no shards by their names or first bytes, or of
            no split.
        notes: what deserves a word.
    """

    url: str
    version: int | None
    digest: str = ""
    opens: str = ""
    adopted: int = 0
    known: int = 0
    updated: int = 0
    records: int = 0
    num_bytes: int = 0
    splits: Mapping[str, int] = field(default_factory=dict)
    schema: Schema | None = None
    inference: InferenceReport | None = None
    refused: tuple[Refusal, ...] = ()
    stale: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    skipped: tuple[BadRecord, ...] = ()
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the dataset is what was found: nothing refused, changed or gone."""
        return self.version is not None and not (self.refused or self.stale or self.missing)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, fit for JSON."""
        return {
            "url": self.url,
            "ok": self.ok,
            "version": self.version,
            "digest": self.digest,
            "opens": self.opens,
            "adopted": self.adopted,
            "known": self.known,
            "updated": self.updated,
            "records": self.records,
            "bytes": self.num_bytes,
            "splits": dict(self.splits),
            "schema": None if self.schema is None else schema_to_json(self.schema),
            "encoding": None if self.schema is None else self.schema.encoding,
            "refused": [_refusal(refusal) for refusal in self.refused],
            "stale": list(self.stale),
            "missing": list(self.missing),
            "dropped": list(self.dropped),
            "ignored": list(self.ignored),
            "skipped": [part.to_dict() for part in self.skipped],
            "notes": list(self.notes),
        }


def _refusal(refusal: Refusal) -> dict[str, Any]:
    error = refusal.error
    fields = error.fields() if isinstance(error, ShardioError) else {}
    plain = {name: value if isinstance(value, int) else str(value) for name, value in fields.items()}
    return {**plain, "url": refusal.url, "kind": type(error).__name__, "error": str(error)}


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


def _shown(options: Mapping[str, Any]) -> str:
    inside = ", ".join(f"{name!r}: {_value(name, value)}" for name, value in options.items())
    return f"{{{inside}}}"


def _value(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return _shown(value)
    secret = (
        any(word in name.lower() for word in _SECRET) and value not in ("anon", None) and value is not True
    )
    return "..." if secret else repr(value)
