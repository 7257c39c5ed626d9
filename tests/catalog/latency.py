"""What opening, appending and garbage collection take after many appends, where each request waits.

    python -m tests.catalog.latency [APPENDS]

Appends of one shard each under session ids of the caller's own, in memory; each request then waits 30 ms, and
as many are under way together as with an object store.  Prints requests and seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shardio.catalog import Catalog, collect_garbage
from shardio.storage import connect
from tests.catalog.test_lists import append
from tests.promises.places import fresh
from tests.promises.stores import FaultyStore

WAIT = 0.03
AT_ONCE = 16  # as `RemoteStore`


class DistantStore(FaultyStore):
    """A store in memory whose replies take their time."""

    def concurrently(self, call: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for begin in range(0, len(items), 4 * AT_ONCE):
                yield from pool.map(call, items[begin : begin + 4 * AT_ONCE])


def main(appends: int = 302) -> None:
    """Append, then measure."""
    url = fresh("memory", None)
    near = Catalog(connect(url))
    for k in range(appends):
        append(near, 1, f"day-{k}")
    for key in near.table(near.latest()).key:
        near.store.put_if_absent(key, b"shard")

    def measured(name: str, act: Callable[[Catalog], object]) -> None:
        requests: list[str] = []

        def wait(verb: str, _key: str) -> str:
            requests.append(verb)
            time.sleep(WAIT)
            return ""

        begun = time.perf_counter()
        act(Catalog(DistantStore(connect(url), wait)))
        print(f"{name}: {len(requests)} requests, {time.perf_counter() - begun:.2f} s")

    measured("read the manifest and the lists of shards", lambda catalog: catalog.table(catalog.load()))
    measured("append", lambda catalog: append(catalog, 1, "another"))
    measured("gc, dry run", collect_garbage)
    measured("gc, keep=3", lambda catalog: collect_garbage(catalog, keep=3, dry_run=False))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
