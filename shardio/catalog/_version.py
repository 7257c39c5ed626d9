"""One version of a dataset, as callers see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardio.display import count, html_table, size
from shardio.errors import NotFoundError
from shardio.format import Compression, Framing
from shardio.metadata import Manifest, Schema, ShardTable


@dataclass(frozen=True)
class Version:
    """One version of a dataset: its manifest, and the SHA-256 (32 bytes) of the manifest's object.

    It pickles without the credentials of its place, and then no longer reads its lists of shards.
    """

    manifest: Manifest
    sha256: bytes
    read_table: Callable[[Version], ShardTable] | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Version, (self.manifest, self.sha256)

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
    def num_shards(self) -> int:
        """Number of shards of all splits."""
        return sum(split.shards for split in self.manifest.splits)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The free metadata that writers gave."""
        return dict(self.manifest.metadata)

    @property
    def tags(self) -> dict[str, int]:
        """Tags as this version knows them, each with the number of its version; the latest knows all."""
        return dict(sorted(self.manifest.tags.items()))

    @property
    def expired_versions(self) -> list[int]:
        """Numbers of the versions that expired before this one was made."""
        return list(self.manifest.expiry.expired_versions)

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
            "shards": self.num_shards,
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

    def facts(self) -> dict[str, Any]:
        """Return all that the manifest says, for JSON: `to_dict()`, the schema and where the data is.

        Nothing is read.
        """
        manifest = self.manifest
        facts = self.to_dict()
        for split in manifest.splits:
            facts["splits"][split.name]["decoded_bytes"] = split.decoded_bytes
        schema = manifest.schema
        return {
            **facts,
            "dataset_uuid": manifest.dataset_uuid.hex(),
            "roots": list(manifest.roots.values()),
            "table": [column.name for column in manifest.table],
            "encoding": None if schema is None else schema.encoding,
            "schema": None if schema is None else feature_facts(schema),
        }

    def shards(self) -> dict[str, Any]:
        """Return the shards in order, a column a key; reads the lists of shards.

        Returns:
            Lists of text: `split`, `shard` (the key below the dataset or its root), `compression`,
            `framing`. NumPy int64 arrays: `records` (live ones), `deleted`, `blocks`, `stored_bytes`,
            `decoded_bytes`. NumPy bool: `adopted`.

        Raises:
            NotFoundError: the version expired and its lists are gone; or it was unpickled.
            FormatError: a list is damaged or missing.
        """
        if self.read_table is None:
            message = "a version that was unpickled does not know where its dataset is"
            raise NotFoundError(message, advice="take it from shardio.log(url)")
        table = self.read_table(self)
        return {
            "split": list(table.split),
            "shard": list(table.key),
            "records": table.live_rows.astype(np.int64),
            "deleted": (table.rows - table.live_rows).astype(np.int64),
            "blocks": table.blocks.astype(np.int64),
            "stored_bytes": table.stored_bytes.astype(np.int64),
            "decoded_bytes": table.decoded_bytes.astype(np.int64),
            "compression": _names(Compression, table.compression),
            "framing": _names(Framing, table.framing),
            "adopted": np.array([bool(etag) for etag in table.etag], bool) | (np.asarray(table.root) != 0),
        }


def _names(kind: Any, numbers: Any) -> list[str]:
    return [kind(number).name.lower() for number in numbers.tolist()]


def feature_facts(schema: Schema) -> list[dict[str, Any]]:
    """Return what is known of each feature, for JSON; the names of feature lists begin with `[] `."""
    return [
        {
            "name": f"{prefix}{name}",
            "type": feature.short,
            "optional": feature.optional,
            "classes": None if feature.classes is None else list(feature.classes),
            "description": feature.description,
            "unit": feature.unit,
            "stored_name": f"{prefix}{feature.stored_name or name}",
        }
        for prefix, group in zip(("", "[] "), schema.groups, strict=True)
        for name, feature in group.items()
    ]
