"""Parquet files, `<split>-00000.parquet`: a column a feature, row groups of at most 16 MiB or 10,000 rows.

The metadata of a field keep the feature's type as `shardio.type`, so that images and JSON, which Arrow does
not have, come back as what they were; bfloat16 comes back as float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shardio.convert._arrow_types import arrow_field
from shardio.convert._target import NumberedFiles, as_lists, json_text

if TYPE_CHECKING:
    from shardio.metadata import Feature, Schema

__all__ = ["ParquetWriter"]

_GROUP = 10_000
_GROUP_BYTES = 16 << 20


class ParquetWriter(NumberedFiles):
    """Write Parquet with pyarrow."""

    compressions: ClassVar[tuple[str, ...]] = ("zstd", "gzip", "snappy")
    pattern: ClassVar[str] = "{split}-{number:05d}.parquet"
    _size = 0

    @classmethod
    def check(cls, schema: Schema | None, compression: str | None) -> None:
        """Refuse records without columns, and types that Arrow does not have."""
        super().check(schema, compression)
        if not schema or schema.sequence_features:
            raise ValueError("Parquet needs columns: a schema with features, and no feature lists")
        for name, feature in schema.items():
            arrow_field(name, feature)

    def add(self, value: Any) -> None:
        """Take a row."""
        assert self.schema is not None  # noqa: S101 - as `check` found
        row = {name: _cell(value.get(name), name, feature) for name, feature in self.schema.items()}
        if not self.records:
            self._rows: list[dict[str, Any]] = []
            self._rows_bytes = 0
        self.records += 1
        self._rows.append(row)
        self._rows_bytes += sum(map(_size, value.values()))
        if len(self._rows) >= _GROUP or self._rows_bytes >= min(_GROUP_BYTES, self.shard_bytes):
            self._write()

    def _write(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        assert self.schema is not None  # noqa: S101 - as `check` found
        fields = [arrow_field(name, feature) for name, feature in self.schema.items()]
        if self._file is None:
            self._file = pyarrow.parquet.ParquetWriter(
                self.next_path(), pa.schema(fields), compression=self.compression or "snappy"
            )
        columns = [pa.array([row[field.name] for row in self._rows], field.type) for field in fields]
        self._file.write_table(pa.Table.from_arrays(columns, schema=pa.schema(fields)))
        self._size += self._rows_bytes
        self._rows, self._rows_bytes = [], 0
        if self._size >= self.shard_bytes:
            self.finish()
            self._size = 0

    def close(self) -> None:
        """Write the rows that are waiting; a split without records has no file."""
        if self.records and self._rows:
            self._write()
        self.finish()


def _cell(value: Any, name: str, feature: Feature) -> Any:
    if value is None and (feature.optional or feature.kind != "json"):
        return None
    if feature.kind == "json":
        # A list of documents stays one document, as it is one value; so does the null of a required one.
        return json_text(value)
    if feature.kind == "number" and (feature.type == "bfloat16" or np.ndim(value) > 1):
        return as_lists(value, name, feature)
    return value


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    return len(value) if isinstance(value, bytes | str | list) else 8
