"""A dataset of 10^8 records in a bucket, and what the viewer's first paint of it costs.

    python -m tests.view.first_paint [MILLISECONDS]

The S3 server of the tests is behind a proxy that holds every reply back, by 20 ms unless told.  A
chromium opens the page; measured are the seconds from its request for the page to the last reply that its
overview needs: summary, shards and first records.  100 shards of a million records each: one is written and
stored, the others are names in the list of shards.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import shardio
from shardio.catalog import Catalog, commit_receipts
from shardio.metadata import Receipt, ShardTable, SplitReceipt, naming
from shardio.storage import connect
from shardio.view import Pages
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
        session, attempt = f"auto.{naming.random_id()}", naming.random_id()
        keys = [f"{naming.DataKey('train', session, 0, attempt, k).key()}.zst" for k in range(SHARDS)]
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


def main(milliseconds: int = 20) -> None:
    """Measure, twice: the first time with modules to be loaded."""
    from tests.view.test_browser import shown
    from tests.view.test_web import TOKEN, serving

    with large() as (url, options, relay), tempfile.TemporaryDirectory() as folder:
        relay.delay = milliseconds / 1000
        for name in ("a server just started", "again"):
            begun: list[float] = []
            ended: list[float] = []
            relay.exchanges.clear()

            def timed(app: Any, begun: list[float] = begun, ended: list[float] = ended) -> Any:
                def call(environ: Any, start: Any) -> Any:
                    begun.append(time.perf_counter())
                    answer = app(environ, start)
                    ended.append(time.perf_counter())
                    return answer

                return call

            with serving(Pages(url, storage_options=options)) as browser:
                browser.server.application = timed(browser.server.application)
                dom = shown(f"http://127.0.0.1:{browser.port}/?token={TOKEN}", Path(folder))
            assert "100,000,000" in dom
            assert "First records of train" in dom
            requests = len(relay.exchanges)
            seconds = max(ended) - min(begun)
            print(f"{name}: {seconds:.2f} s, {requests} requests of the bucket, {len(begun)} of the viewer")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
