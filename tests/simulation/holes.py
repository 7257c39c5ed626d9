"""What protects versions, taken out one piece at a time: how soon does the simulation notice?

    python -m tests.simulation.holes [seconds for each]

The pieces are those of `tests/promises/sabotages.toml` in the rooms that the simulation drives.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.promises.sabotage import LIST, Sabotage, copy

ROOMS = ("shardio/catalog/", "shardio/writer/_task", "shardio/lifecycle/_delete", "shardio/lifecycle/_erase",
         "shardio/lifecycle/_rewrite", "shardio/lifecycle/_change")  # fmt: skip


class Tried(NamedTuple):
    """One hole, and after how many schedules it was found; None where it was not."""

    hole: Sabotage
    schedules: int | None
    law: str


def holes() -> list[Sabotage]:
    """Return the pieces of protection in the rooms that the simulation drives."""
    return [each for each in LIST if each.file.startswith(ROOMS)]


def try_each(seconds: float) -> Iterator[Tried]:
    """Put each hole into a copy and search there."""
    with tempfile.TemporaryDirectory() as folder:
        root = copy(Path(folder))
        for hole in holes():
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
            law = re.search(r"^(\w*(?:Error|Exception)\b.*)$", done.stderr, re.MULTILINE)
            yield Tried(hole, int(seed[1]) + 1 if seed else None, law[1] if law else done.stderr[-200:])


def main(seconds: float = 60.0) -> None:
    for hole, schedules, law in try_each(seconds):
        found = f"found after {schedules}" if schedules else "not found"
        print(f"{found:>18}  {hole.file}: {hole.old.strip().splitlines()[0][:70]}")
        print(f"{'':20}{law[:110]}", flush=True)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
