"""One version of a dataset, as callers see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardio.display import count, html_table, size
from shardio.metadata import Manifest


@dataclass(frozen=True)
class Version:
    """One version of a dataset: its manifest, and the SHA-256 (32 bytes) of the manifest's object."""

    manifest: Manifest
    sha256: bytes

    @property
    def number(self) -> int:
        """The version number, from 1."""
        return self.manifest.version

    @property
    def digest(self) -> str:
        """What `open(url, digest=...)` pins."""
        return f"sha256:{self.sha256.hex()}"

    @property
    def operation(self) -> str:
        """What made it, in a word: "create", "append", "overwrite", "delete", "gc" ..."""
        return self.manifest.operation

    @property
    def records(self) -> int:
        """Number of live records of all splits."""
        return sum(split.rows for split in self.manifest.splits)

    @property
    def shards(self) -> int:
        """Number of shards of all splits."""
        return sum(split.shards for split in self.manifest.splits)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The free metadata that writers gave."""
        return dict(self.manifest.metadata)

    def __repr__(self) -> str:
        splits = ", ".join(f"{split.name} {split.rows:,}" for split in self.manifest.splits)
        what = f"{self.number} by {self.operation}: {splits or 'no records'}"
        return f"<shardio.Version {what}; {self.digest[:19]}>"

    def _repr_html_(self) -> str:
        rows = [
            (split.name, count(split.rows), count(split.shards), size(split.stored_bytes))
            for split in self.manifest.splits
        ]
        title = f"version {self.number} by {self.operation}, {self.digest[:19]}"
        return html_table(rows, head=("split", "records", "shards", "stored"), title=title)

    def to_dict(self) -> dict[str, Any]:
        """Return what `shardio log` shows, for JSON."""
        manifest = self.manifest
        return {
            "version": self.number,
            "digest": self.digest,
            "operation": manifest.operation,
            "created_ms": manifest.created_ms,
            "writer": manifest.writer,
            "records": self.records,
            "shards": self.shards,
            "stored_bytes": sum(split.stored_bytes for split in manifest.splits),
            "sessions": [each.session for each in manifest.sessions if each.version == self.number],
            "splits": {
                split.name: {
                    "records": split.rows,
                    "shards": split.shards,
                    "stored_bytes": split.stored_bytes,
                }
                for split in manifest.splits
            },
            "metadata": dict(manifest.metadata),
            "restored_version": manifest.restored_version or None,
        }
