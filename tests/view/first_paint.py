"""A dataset of 10^8 records in a bucket behind a proxy.

Of its 100 shards of a million records each, one is stored; the others are names in the list of shards.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import shardio
from shardio.catalog import Catalog, commit_receipts
from shardio.metadata import Receipt, ShardTable, SplitReceipt, naming
from shardio.storage import connect
from tests.servers import s3
from tests.servers.proxy import Proxy, proxy

SHARDS = 100


@contextlib.contextmanager
def large(records: int = 1_000_000) -> Iterator[tuple[str, dict[str, Any], Proxy]]:
    """Yield URL and storage options of a dataset of `SHARDS * records`, and the proxy before it."""
    with s3.moto() as endpoint, proxy(endpoint) as relay, tempfile.TemporaryDirectory() as folder:
        url = f"s3://{s3.make_bucket(endpoint)}/large"
        small = Path(folder) / "small"
        with shardio.DatasetWriter(small, {"n": "int64"}, "zstd", shard_bytes=1 << 30) as out:
            for n in range(records):
                out.write({"n": n})
        catalog = Catalog(connect(str(small)))
        version = catalog.load()
        (entry,) = catalog.table(version)
        session, attempt = f"auto.{naming.random_id()}", naming.random_attempt()
        keys = [
            f"{naming.DataKey('train', naming.session_id(session), 0, attempt, k).key()}.zst"
            for k in range(SHARDS)
        ]
        store = connect(url, storage_options=s3.options_for(endpoint))
        store.put_if_absent(keys[0], (small / entry.key).read_bytes())
        store.put_if_absent(f"{keys[0]}.shardidx", (small / entry.usual_index_key).read_bytes())
        receipt = Receipt(
            session=session,
            task=0,
            attempt=attempt,
            complete=True,
            table=ShardTable.from_entries(replace(entry, key=key) for key in keys),
            splits={"train": SplitReceipt(SHARDS * records, 0)},
            schema=version.manifest.schema,
        )
        commit_receipts(Catalog(store), [receipt], mode="create")
        yield url, s3.options_for(relay.url), relay
