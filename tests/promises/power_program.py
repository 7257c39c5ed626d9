"""What is done while the power may go; run under strace by `test_p01_power.py`.

    python -m tests.promises.power_program ROOT MARKS

After each deed it writes a line to MARKS: what an observer sees then, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import shardio

SMALL: dict[str, Any] = {"block_bytes": 64, "shard_bytes": 200}


def look(url: str, version: int | None = None) -> dict[str, Any]:
    """Return what is seen of a dataset: records, version, names of others, and what was made beside."""
    if not Path(url, "_shardio").is_dir():
        return {}
    try:
        ds = shardio.open(url, "all", version=version)
    except shardio.errors.NotFoundError:
        return {}
    seen = {"version": ds.version, "records": sorted(int(record["n"]) for record in ds)}
    if version is None:
        log = list(shardio.log(url))
        expired = {each for v in log for each in v.manifest.expiry.expired_versions}
        seen["versions"] = sorted({v.number for v in log} - expired)
        seen["tags"] = dict(shardio.tags(url))
        seen["keys"] = list(ds.key_features)
        seen["schema"] = sorted(ds.schema)
    return seen


def write(url: str, first: int, count: int, **options: Any) -> None:
    with shardio.DatasetWriter(url, {"n": "int64"}, **{**SMALL, **options}) as out:
        for n in range(first, first + count):
            out.write({"n": n}, "ab"[n % 2])


def task(url: str, number: int) -> None:
    write(url, 300 + 20 * number, 12, mode="append", session="array", task=number, commit=False)


DEEDS: list[Callable[[str], object]] = [
    lambda url: write(url, 0, 30),
    lambda url: write(url, 100, 12, mode="append"),
    lambda url: shardio.tag(url, "first"),
    lambda url: task(url, 0),
    lambda url: task(url, 1),
    lambda url: shardio.commit(url, session="array", tasks=2),
    lambda url: shardio.delete(url, [0, 3, 5], split="a"),
    lambda url: shardio.build_table(url, ["n"], workers=1),
    lambda url: shardio.build_keys(url, "n", workers=1),
    lambda url: shardio.erase(url, [1], split="b", drop_tags=True),
    lambda url: shardio.compact(url, workers=1),
    lambda url: shardio.set_schema(url, {"m": shardio.Feature("int64", default=0)}),
    lambda url: shardio.tag(url, "second"),
    lambda url: shardio.tag(url, "second", move=True),
    lambda url: shardio.rename_split(url, "b", "c"),
    lambda url: shardio.restore(url, shardio.open(url).version - 1),
    lambda url: shardio.untag(url, "second"),
    lambda url: write(url, 500, 10, mode="append", compression="zstd"),
    lambda url: shardio.gc(url, keep=2, dry_run=False),
    lambda url: write(url, 600, 10, mode="overwrite"),
    lambda url: shardio.gc(url, keep=1, dry_run=False),
    lambda url: write(url, 700, 3, mode="append"),
]


def main(root: str, marks: str) -> None:
    url = f"{root}/folder/ds"
    with Path(marks).open("ab", buffering=0) as out:
        out.write(json.dumps({}).encode())
        for deed in DEEDS:
            deed(url)
            out.write(json.dumps(look(url)).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
