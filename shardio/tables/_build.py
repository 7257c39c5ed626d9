"""Build the table of small features: a Parquet file beside each shard that has none, and one commit.

Promises: what is published is whole or not there at all; shards that have a table of these features are not
read again.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardio.arguments import checked_options, names
from shardio.catalog import Catalog, StoredLists, Version, commit_change
from shardio.codecs import need_pyarrow
from shardio.errors import CommitConflictError
from shardio.format import DEFAULT_LIMITS
from shardio.metadata import Manifest, Schema, ShardEntry, ShardTable, TableColumn, naming, table_address
from shardio.parallel import SidecarPlan, run_build
from shardio.progress import CountProgress
from shardio.reader import (
    ReadOptions,
    RecordSequence,
    Slice,
    choose_columns,
    columns_now,
    has_table,
    iterate_rows,
    slices,
    sources_of,
    table_refusal,
)
from shardio.reports import Report
from shardio.storage import Place, temporary_files

_GROUP = 1 << 16  # rows of a row group
_GROUP_BYTES = 64 << 20


@dataclass(frozen=True)
class TableReport(Report):
    """Result of building a table.

    Attributes:
        url: of the dataset.
        version: that has the table.
        digest: of this version.
        features: columns of the table, after `shard` and `row`.
        shards: of the dataset; each has a table now.
        built: shards whose tables were made now.
        records: rows of the tables made now, deleted ones too.
        stored_bytes: of all tables of the version.
        dry_run: nothing was changed; `built` is what would be.
    """

    url: str
    version: int
    digest: str
    features: tuple[str, ...]
    shards: int
    built: int
    records: int
    stored_bytes: int
    dry_run: bool = False


@checked_options
def build_table(
    url: Place,
    features: Sequence[str] | None = None,
    *,
    rebuild: bool = False,
    dry_run: bool = False,
    executor: Executor | None = None,
    workers: int | None = None,
    progress: bool | Callable[[CountProgress], None] = False,
) -> TableReport:
    """Keep small features of every record beside the shards, as Parquet that other programs read as it is.

    `ds.filter("label = 3")`, `ds.to_arrow` and `ds.to_pandas` then read these and no records. A dataset has
    one table. Calling it again makes what new shards need; with other features, the table has those instead.

    Args:
        url: of the dataset; or a `shardio.Address`, or a reader.
        features: names of single values, and `NAME_length` of text, bytes, images and ragged features; None
            for those that the table has. Values are numbers, bools, text, bytes and JSON; lengths are
            characters, bytes and items.
        rebuild: make all of it again, as after damage.
        dry_run: only say what would be done.
        executor: any of `concurrent.futures`, or one with its interface; None for a process pool of its own.
        workers: processes of that pool; None for one per processor.
        progress: True for a bar on a terminal and lines in a log, or a function of a `CountProgress`.

    Raises:
        ValueError, TypeError: there are no such features, or they are not small; the dataset has no schema.
        NotFoundError: there is no dataset.
        CorruptBlockError, FormatError, StaleIndexError: a shard is damaged; nothing was published.
        StorageError: the environment failed, or a data root is not allowed.
        ImportError: pyarrow is not installed: `pip install "shardio[table]"`.

    Examples:
        >>> import shardio, tempfile
        >>> url = tempfile.mkdtemp() + "/birds"
        >>> with shardio.DatasetWriter(url, schema={"label": "int64", "caption": "text"}) as out:
        ...     for n in range(6):
        ...         out.write({"label": n % 3, "caption": "bird " * n})
        >>> report = shardio.build_table(url, ["label", "caption_length"], workers=1)
        >>> ds = shardio.open(url)
        >>> len(ds.filter("label = 2 AND caption_length > 10"))
        1
    """
    need_pyarrow("a table of small features")
    plan = partial(_plan_table, features=features, rebuild=rebuild)
    return run_build(plan, url, "table", executor, workers, progress=progress, dry_run=dry_run)


class _StoredTable(NamedTuple):
    """A table that was stored."""

    key: str
    size: int
    sha256: bytes


def _plan_table(
    catalog: Catalog, options: ReadOptions, seen: Version, features: Sequence[str] | None, *, rebuild: bool
) -> SidecarPlan[TableReport]:
    manifest, table = seen.manifest, catalog.table(seen)
    if features is None:
        if not manifest.table:
            raise ValueError('this dataset has no table yet: name its features, as in features=["label"]')
        features = [column.name for _, column in columns_now(manifest.schema, manifest.table)]
    chosen = names("features", features)
    described = _describe(manifest.schema, chosen)
    known = manifest.table == described and not rebuild
    lacking = [n for n in range(len(table)) if not (known and has_table(table, n, described))]
    build = _TableBuild(catalog, seen, chosen, described, lacking, table)
    parts = [*slices(catalog.store.url, seen, table, options, lacking)]
    read = partial(_make_table, features=chosen, described=described)
    return SidecarPlan(parts, read, build.store, build.publish)


class _TableBuild:
    """A build on its way.

    Args:
        catalog: of the dataset.
        seen: the version whose shards get tables.
        features: columns of the table.
        described: the same, as the manifest lists them.
        lacking: numbers of the shards without a table.
        table: the shards of the version.
    """

    def __init__(
        self,
        catalog: Catalog,
        seen: Version,
        features: tuple[str, ...],
        described: tuple[TableColumn, ...],
        lacking: list[int],
        table: ShardTable,
    ) -> None:
        self._catalog, self._seen, self._features, self._described = catalog, seen, features, described
        self._lacking, self._table, self._published = lacking, table, table
        self._made: dict[bytes, _StoredTable] = {}

    def store(self, results: Iterable[tuple[Slice, _StoredTable]]) -> None:
        """Take the tables that workers have stored."""
        self._made = {part.entry.index_head_sha256: made for part, made in results}

    def publish(self, dry_run: bool) -> TableReport:  # noqa: FBT001 - as `SidecarPlan` calls it
        """Publish the tables of all shards of the latest version, and return the report."""
        keys = [made.key for made in self._made.values()]
        version = self._seen
        if not dry_run:
            version = commit_change(self._catalog, self._follow, operation="table", seen=version, keys=keys)
        return TableReport(
            url=self._catalog.store.url,
            version=version.number,
            digest=version.digest,
            features=self._features,
            shards=len(self._published),
            built=len(self._lacking),
            records=int(self._table.rows[np.array(self._lacking, np.int64)].sum()),
            stored_bytes=int(self._published.table_bytes.sum()),
            dry_run=dry_run,
        )

    def _follow(self, base: Version, lists: StoredLists) -> Manifest | None:
        manifest, table = base.manifest, self._catalog.table(base)
        if _describe(manifest.schema, self._features) != self._described:
            what = "the schema changed while the table was built"
            raise CommitConflictError(what, url=self._catalog.store.url)
        entries = [self._with_table(entry) for entry in table]
        self._published = ShardTable.from_entries(entries)
        if manifest.table == self._described and [*self._published.table_key] == [*table.table_key]:
            return None
        # Shards that were added meanwhile have no table yet; their old ones are of other columns.
        refs = lists.extend(self._catalog, (), self._published, merge=False)
        return replace(manifest, table=self._described, lists=refs)

    def _with_table(self, entry: ShardEntry) -> ShardEntry:
        made = self._made.get(entry.index_head_sha256)
        if made is not None:
            return replace(entry, table_key=made.key, table_bytes=made.size, table_sha256=made.sha256)
        address = table_address(entry.index_head_sha256, self._described)
        if entry.table_key and naming.table_address_of(entry.table_key) != address:
            return entry.without_table()
        return entry


def _describe(schema: Schema | None, features: Sequence[str]) -> tuple[TableColumn, ...]:
    """Return features as columns of a table.

    Raises:
        ValueError: one of them cannot be a column of a table.
    """
    columns = choose_columns(schema, features, what="a table of small features")
    if not columns:
        raise ValueError("a table needs at least one feature")
    for column in columns:
        if (refusal := table_refusal(column)) is not None:
            raise ValueError(refusal)
        if column.name.lower() in ("shard", "row"):
            raise ValueError(
                f"feature {column.name!r}: a table has a column of this name for the place of a record"
            )
    return tuple(column.described for column in columns)


@temporary_files()
def _make_table(
    part: Slice, *, features: tuple[str, ...], described: tuple[TableColumn, ...]
) -> _StoredTable:
    """Make and store the table of one shard, in a worker."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = part.open()
    store = source.pool.stores[0]
    columns = choose_columns(part.schema, features, what="a table of small features")
    limits = part.options.limits or DEFAULT_LIMITS
    schema = pa.schema(
        [
            pa.field("shard", pa.string(), nullable=False),
            pa.field("row", pa.uint32(), nullable=False),
            *(pa.field(column.name, column.type) for column in columns),
        ]
    )
    # A folder, which goes also where an interrupt comes in the moment in which it was made.
    with tempfile.TemporaryDirectory(prefix="shardio-table-") as folder:
        path = f"{folder}/table.parquet"
        row = 0
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            waiting: list[Any] = []
            for batch in iterate_rows(RecordSequence, source, 0, columns):
                count = len(batch[sources_of(columns)[0]])
                data = [
                    pa.array([part.entry.key] * count, pa.string()),
                    pa.array(np.arange(row, row + count, dtype=np.uint32)),
                    *(column.array(batch[column.source]) for column in columns),
                ]
                waiting.append(pa.Table.from_arrays(data, schema=schema))
                row += count
                if sum(part.num_rows for part in waiting) >= _GROUP or (
                    sum(part.nbytes for part in waiting) >= _GROUP_BYTES
                ):
                    writer.write_table(pa.concat_tables(waiting))
                    waiting = []
            if waiting:
                writer.write_table(pa.concat_tables(waiting))
        size = Path(path).stat().st_size
        if size > limits.index:
            raise ValueError(
                f"the table of shard {part.entry.key} has {size} bytes, more than {limits.index}: these "
                "features are not small"
            )
        digest = hashlib.sha256(Path(path).read_bytes()).digest()
        key = naming.table_key(table_address(part.entry.index_head_sha256, described))
        store.put_idempotent((key, Path(path)))
        return _StoredTable(key, size, digest)
