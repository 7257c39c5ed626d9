from __future__ import annotations

import pytest

import shardio

RECORDS = 6000


@pytest.fixture(scope="module")
def numbers(tmp_path_factory) -> str:
    """Return the URL of a dataset of some shards, each of several blocks."""
    url = str(tmp_path_factory.mktemp("engines") / "numbers")
    write_numbers(url)
    return url


def write_numbers(url, *, records: int = RECORDS, first: int = 0, **options) -> None:
    schema = {"n": "int64", "name": "text", "image": "bytes", "vector": "float32[2]"}
    settings = {"shard_bytes": 120_000, "block_bytes": 10_000, **options}
    with shardio.DatasetWriter(url, schema=schema, **settings) as out:
        for n in range(first, first + records):
            name = f"name {n % 7}"
            out.write({"n": n, "name": name, "image": b"%d" % n * 20, "vector": [n, n / 2]})


def write_birds(url) -> None:
    with shardio.DatasetWriter(url, schema={"label": "int64", "caption": "text"}) as out:
        for n in range(600):
            out.write({"label": n % 10, "caption": f"bird {n}" if n % 3 else ""})
