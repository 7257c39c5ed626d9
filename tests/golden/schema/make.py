"""Make the golden dataset of a schema that changed: classes, descriptions, names; run by hand, once.

    python -m tests.golden.schema.make

What is beside this file stays as it is: it shows that what was written once can be read forever.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import shardio
from shardio import Feature

DatasetWriter = shardio.DatasetWriter
HERE = Path(__file__).parent


def read(url: Path | str, version: int) -> dict[str, Any]:
    """Return what a reader of a version sees, as JSON has it."""
    ds = shardio.open(url, version=version)
    features = {
        name: [feature.short, feature.description, list(feature.classes or ())]
        for name, feature in ds.schema.items()
    }
    records = [
        {name: value if isinstance(value, str) else int(value) for name, value in each.items()} for each in ds
    ]
    return {"features": features, "records": records}


def make() -> None:
    """Three versions: written with classes, appended with another class, renamed for readers."""
    url = HERE / "birds"
    for mode, species in (("create", ["wren", "robin"]), ("append", ["wren", "robin", "ärt"])):
        schema = {"n": "int64", "species": Feature("int64", classes=species, description="by two annotators")}
        with DatasetWriter(url, schema, mode=mode) as out:
            for n in range(4):
                out.write({"n": n, "species": species[-1 - n % 2]})
    shardio.set_schema(
        url, {"place": Feature("text", default="unknown", description="of the ring")}, rename={"n": "number"}
    )
    expected = {str(version): read(url, version) for version in (1, 2, 3)}
    (HERE / "expected.json").write_text(
        json.dumps(expected, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    make()
