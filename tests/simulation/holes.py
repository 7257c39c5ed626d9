"""What protects versions, taken out one piece at a time: how soon does the simulation notice?

    python -m tests.simulation.holes [seconds of a processor for each] [number of the first]

The pieces are those of `tests/promises/sabotages.toml` in the rooms that the simulation drives. What came of
each goes to docs/figures/reliability.json, the table to docs/design/simulation.md.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.promises.sabotage import LIST, Sabotage, copy
from tests.soak import RECORD, ROOT, load, write_page

ROOMS = ("shardio/catalog/", "shardio/writer/_task", "shardio/lifecycle/_delete", "shardio/lifecycle/_erase",
         "shardio/lifecycle/_rewrite", "shardio/lifecycle/_change", "shardio/storage/_store")  # fmt: skip


PAGE = ROOT / "docs" / "design" / "simulation.md"
BEGIN, END = "<!-- holes: begin -->", "<!-- holes: end -->"


def holes() -> list[Sabotage]:
    """Return the pieces of protection in the rooms that the simulation drives."""
    return [each for each in LIST if each.file.startswith(ROOMS)]


def try_each(seconds: float, first: int) -> Iterator[dict[str, Any]]:
    """Put each hole into a copy and search there; yield after how many schedules it was found, or None."""
    with tempfile.TemporaryDirectory() as folder:
        root = copy(Path(folder))
        for hole in holes()[first:]:
            path = root / hole.file
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace(hole.old, hole.new), encoding="utf-8")
            command = [sys.executable, "-m", "tests.simulation.simulate", "0", "1000000", "0", str(seconds)]
            environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "0"}
            done = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, text=True, check=False
            )
            path.write_text(text, encoding="utf-8")
            seed = re.search(r"^seed (\d+)$", done.stderr, re.MULTILINE)
            law = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception)\b:? ?(.*)$", done.stderr, re.MULTILINE)
            yield {
                "file": hole.file,
                "old": hole.old.strip().splitlines()[0],
                "promise": hole.promise,
                "schedules": int(seed[1]) + 1 if seed else None,
                "law": law[-1][:100] if law else done.stderr[-200:],
                "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
            }


def table(found: list[dict[str, Any]]) -> str:
    """Return the holes as a table, those that were found first."""
    lines = ["| what was taken out | found after schedules | what was wrong then |", "|---|--:|---|"]
    for each in sorted(found, key=lambda each: each["schedules"] or 1 << 30):
        after = each["schedules"] or "not found"
        law = re.sub(r"[0-9a-f]{16,}|[|<>]", "...", each["law"])
        lines.append(
            f"| `{each['file']}`: `{each['old'][:80]}` | {after} | {law if each['schedules'] else ''} |"
        )
    return "\n".join(lines)


def main(seconds: float = 60.0, first: float = 0) -> None:
    for tried in try_each(seconds, int(first)):
        record = load()
        there = {(hole.file, hole.old.strip().splitlines()[0]) for hole in holes()}
        others = [each for each in record.get("holes", []) if (each["file"], each["old"]) in there]
        same = (tried["file"], tried["old"])
        record["holes"] = [*(each for each in others if (each["file"], each["old"]) != same), tried]
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"{tried['schedules'] or 'not found':>10}  {tried['file']}: {tried['old'][:70]}", flush=True)
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    text = f"{before}{BEGIN}\n\n{table(load()['holes'])}\n\n{END}{rest.partition(END)[2]}"
    PAGE.write_text(text, encoding="utf-8")
    write_page()


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
