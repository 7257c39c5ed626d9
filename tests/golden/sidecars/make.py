"""Make the golden dataset with a table and indexes of keys; run by hand, once, and never by tests.

    python tests/golden/sidecars/make.py

What is beside this file stays as it is: it shows that what was written once can be read forever.
"""

from __future__ import annotations

import json
from pathlib import Path

import shardio
from shardio import Feature

DatasetWriter = shardio.DatasetWriter
HERE = Path(__file__).parent
URL = HERE / "birds"
SCHEMA = {
    "id": "text",
    "number": "int64",
    "caption": Feature("text", optional=True),
    "tags": "int32[?]",
    "kind": Feature("int8", default=7),
}


def bird(n: int) -> dict[str, object]:
    """Return a record."""
    made: dict[str, object] = {"id": f"bird-{n}", "number": -n, "tags": list(range(n % 4))}
    if n % 3:
        made |= {"caption": "ü" * n, "kind": n}
    return made


def main() -> None:
    """Two appends; records deleted before and after the sidecars; one shard without them."""
    for first, mode in ((0, "create"), (20, "append")):
        with DatasetWriter(URL, SCHEMA, mode=mode, block_bytes=256, shard_bytes=600) as out:
            for n in range(first, first + 20):
                out.write(bird(n))
        if first:
            shardio.delete(URL, positions=[3, 25])
        shardio.build_keys(URL, "id", workers=1)
    shardio.build_keys(URL, "number", workers=1)
    shardio.build_table(URL, ["id", "number", "caption", "tags_length", "kind", "caption_length"], workers=1)
    shardio.delete(URL, positions=[0])
    with DatasetWriter(URL, SCHEMA, mode="append") as out:
        out.write(bird(40))
    kept = [n for n in range(41) if n not in (0, 3, 25)]
    ds = shardio.open(URL)
    assert [value["id"] for value in ds] == [f"bird-{n}" for n in kept]
    facts = {"version": ds.version, "digest": ds.digest, "birds": kept, "runs": 1}
    (HERE / "expected.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
