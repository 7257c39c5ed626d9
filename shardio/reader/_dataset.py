"""A dataset as a sequence of values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardio.reader._records import Records
from shardio.reader._source import reopen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardio.reader._source import DatasetSource

__all__ = ["DatasetReader"]


class DatasetReader(Records):
    """One split of one version of a dataset, or part of it; a `Sequence` of records in storage order.

    Made by `shardio.open`; slices of it and `select` give further readers over the same open shards.
    """

    source: DatasetSource

    @property
    def splits(self) -> Mapping[str, int]:
        """Number of live records of every split of this version, by name."""
        return {total.name: total.rows for total in self.source.version.manifest.splits}

    @property
    def split(self) -> str:
        """Name of the split read here, or "all"."""
        return self.source.split

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The free metadata that writers gave."""
        return dict(self.source.version.manifest.metadata)

    @property
    def version(self) -> int:
        """Number of the version read here."""
        return self.source.version.number

    @property
    def digest(self) -> str:
        """`"sha256:..."` of the version's manifest; pins it in `shardio.open(url, digest=...)`."""
        return self.source.version.digest

    def at(self, version: int, digest: str) -> DatasetReader:
        """Return this reader at a version that another process has resolved, and stay with it.

        Raises:
            ValueError: this reader was opened with another `version=` or `digest=`, or is a slice of another.
        """
        if digest == self.digest:
            self.source.pinned = True
            return self
        if self.source.pinned or not self._whole:
            message = (
                f"{self.source.url}: this process reads version {self.version} and another one version "
                f"{version}; open the same version= everywhere"
            )
            raise ValueError(message)
        return DatasetReader(reopen(self.source, version, digest))

    def __repr__(self) -> str:
        schema = "bytes" if self.schema is None else ", ".join(self.schema)
        return (
            f"<shardio.DatasetReader {self.source.url} version {self.version} split {self.split!r}: "
            f"{len(self):,} records ({schema})>"
        )
