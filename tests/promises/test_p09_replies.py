"""P9: a reply whose bytes are not those that were stored is asked for again, whatever object it is of.

Every kind of object of a dataset, and every way to look at one; what stays damaged is told as damage at rest
is (`test_damage.py`).
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import shardio
from shardio.catalog import Catalog, find_safe_work
from shardio.errors import FormatError
from shardio.metadata import naming
from shardio.storage import connect
from tests.promises.damage import Victim
from tests.servers import s3
from tests.servers.faults import FaultServer, fault_server

URL = "s3://bucket/ds"
DELETED = [3, 4, 17]
NUMBERS = [n for n in range(40) if n not in DELETED]


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with fault_server() as running:
        yield running


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with an object of each kind; of its latest version the number is even."""
    folder = tmp_path_factory.mktemp("whole") / "ds"
    with mock.patch("shardio.catalog._lists._SESSIONS", 1):
        for day in range(4):
            session = f"day-{day}"
            with shardio.DatasetWriter(
                folder, {"n": "int64"}, mode="append", session=session, compression="zstd", block_bytes=40
            ) as out:
                out.write_many({"n": n} for n in range(10 * day, 10 * day + 10))
    shardio.delete(folder, positions=DELETED, split="train")
    shardio.build_table(folder, ["n"], workers=1)
    shardio.build_keys(folder, "n", workers=1)
    with shardio.DatasetWriter(
        folder, {"n": "int64"}, mode="append", session="open", task=0, commit=False
    ) as out:
        out.write({"n": 40})
    shardio.tag(folder, "a")
    assert (folder / naming.HINT_KEY).read_text() == "8"
    return folder


def damaging(server: FaultServer, times: int, end: str = "") -> Counter[str]:
    """Let the first replies about each object be damaged; count them."""
    done: Counter[str] = Counter()

    def plan(request: Any) -> str | None:
        if request.method != "GET" or request.range is None or not request.path.endswith(end):
            return None
        done[request.path] += 1
        return "damaged" if done[request.path] <= times else None

    server.plan = plan
    return done


def looked_at(server: FaultServer, engine: str) -> dict[str, Any]:
    """Return what the ways to look at a dataset show."""
    options: dict[str, Any] = {"storage_options": s3.options_for(server.url), "engine": engine}
    ds = shardio.open(URL, **options)
    catalog = Catalog(connect(URL, **options))
    version = catalog.load()
    work = find_safe_work(catalog, "open", 0)
    return {
        "records": [int(value["n"]) for value in ds],
        "keys": [int(value["n"]) for value in ds.read(ds.find([39, 0]))],
        "table": ds.to_arrow(["n"]).column("n").to_pylist(),
        "session": catalog.merged(version, "day-0") is not None,
        "receipt": None if work is None else work.table.rows.tolist(),
        "verify": shardio.verify(shardio.Address(URL, **options)).findings,
    }


@pytest.mark.parametrize(("engine", "times"), [("fsspec", 1), ("obstore", 2)])
def test_what_arrives_damaged_is_fetched_again(server, whole, engine, times):
    """Manifest, hint, list of shards or sessions, receipt, deletions, table, key index, index, shard."""
    server.objects.clear()
    server.load(whole, "/bucket/ds")
    done = damaging(server, times)
    assert looked_at(server, engine) == {
        "records": NUMBERS,
        "keys": [39, 0],
        "table": NUMBERS,
        "session": True,
        "receipt": [1],
        "verify": (),
    }
    kinds = {path.rpartition(".")[2] for path in done if done[path] > times}
    assert kinds >= {"manifest", "list", "receipt", "rows", "parquet", "run", "shardidx", "zst"}, kinds


@pytest.mark.parametrize("end", [".manifest", ".list"])
def test_what_stays_damaged_is_an_error(server, whole, end):
    server.objects.clear()
    server.load(whole, "/bucket/ds")
    done = damaging(server, 1000, end)
    with pytest.raises(FormatError) as caught:
        shardio.open(URL, storage_options=s3.options_for(server.url))
    url = caught.value.url or ""
    assert url.endswith(end)
    assert done[f"/bucket/ds/{url.removeprefix(URL + '/')}"] == 3


def test_repair_loses_no_more_where_replies_are_damaged(server, whole, tmp_path):
    """What a block lost is lost; what only arrived damaged is not."""
    copy = tmp_path / "ds"
    shutil.copytree(whole, copy)
    victim = Victim(str(copy), [])
    key = victim.of_kind(".zst")[0]
    victim.put(key, victim.objects[key][:-3] + b"bad")
    server.objects.clear()
    server.load(copy, "/bucket/ds")
    right = shardio.repair(copy, workers=1, dry_run=False)
    assert right.lost_records > 0
    damaging(server, 2)
    options = s3.options_for(server.url)
    found = shardio.repair(shardio.Address(URL, storage_options=options), workers=1, dry_run=False)
    assert (found.lost_records, found.after) == (right.lost_records, right.after)
    server.plan = lambda _: None
    there = shardio.open(URL, storage_options=options)
    assert list(there) == list(shardio.open(copy))
