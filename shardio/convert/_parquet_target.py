"""Parquet as a target: a column a feature, row groups of at most 16 MiB or 10,000 rows.

The metadata of a field keep the feature's type as `shardio.type`, so that images and JSON, which Arrow does
not have, come back as what they were; bfloat16 comes back as float32.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from shardio.codecs import arrow_array
from shardio.formats import GroupedFiles, as_lists, json_text
from shardio.metadata import Feature, Schema


class ParquetWriter(GroupedFiles):
    """Write Parquet with pyarrow."""

    group: ClassVar[int] = 10_000
    group_bytes: ClassVar[int] = 16 << 20
    compressions: ClassVar[tuple[str, ...]] = ("zstd", "gzip", "snappy")
    holds_classes: ClassVar[bool] = True
    pattern: ClassVar[str] = "{split}-{number}.parquet"

    @classmethod
    def check(cls, schema: Schema | None, compression: str | None) -> None:
        """Refuse records without columns, and types that Arrow does not have."""
        super().check(schema, compression)
        if not schema or schema.sequence_features:
            raise ValueError("Parquet needs columns: a schema with features, and no feature lists")
        from shardio.convert._columns import arrow_schema

        arrow_schema(schema)

    def add(self, value: Any) -> None:
        """Take a row."""
        assert self.schema is not None  # noqa: S101 - as `check` found
        row = {name: _cell(value.get(name), name, feature) for name, feature in self.schema.items()}
        self.hold(row, sum(map(_size, value.values())))

    def write(self, items: list[Any], size: int) -> int:
        """Write a row group."""
        import pyarrow as pa
        import pyarrow.parquet

        from shardio.convert._columns import arrow_schema

        assert self.schema is not None  # noqa: S101 - as `check` found
        schema = arrow_schema(self.schema)
        if self._file is None:
            self._file = pyarrow.parquet.ParquetWriter(
                self.next_path(), schema, compression=self.compression or "snappy"
            )
        columns = []
        for column, feature in zip(schema, self.schema.values(), strict=True):
            values = [row[column.name] for row in items]
            number = feature.kind == "number"
            columns.append(arrow_array(values, feature) if number else pa.array(values, column.type))
        self._file.write_table(pa.Table.from_arrays(columns, schema=schema))
        return size


def _cell(value: Any, name: str, feature: Feature) -> Any:
    if value is None and (feature.optional or feature.kind != "json"):
        return None
    if feature.kind == "json":
        # A list of documents stays one document, as it is one value; so does the null of a required one.
        return json_text(value)
    if feature.kind == "number" and np.size(value) == 0:
        as_lists(value, name, feature)  # refuses sizes that lists cannot tell
    return feature.fit(value, name)[0] if feature.kind == "tensor" else value


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    return len(value) if isinstance(value, bytes | str | list) else 8
