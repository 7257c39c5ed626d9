"""What protects versions, taken out one piece at a time: how soon does the simulation notice?

    python -m tests.simulation.holes [seconds of a processor for each] [numbers of those to try]

The pieces are those of `tests/promises/sabotages.toml` in the rooms that the simulation drives. What came of
each goes to docs/figures/reliability.json, the table to docs/design/simulation.md.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.promises.sabotage import LIST, Sabotage, copy
from tests.soak import RECORD, ROOT, load, write_page

ROOMS = ("shardio/catalog/", "shardio/writer/_task", "shardio/lifecycle/_delete", "shardio/lifecycle/_erase",
         "shardio/lifecycle/_rewrite", "shardio/lifecycle/_change", "shardio/storage/_store")  # fmt: skip


# Pieces that protect from what no client of this world does and none of its faults is, by their first lines.
OUTSIDE = {
    "if forbidden:": "no listing is forbidden",
    "except NotDurableError as error:": "there is no disk",
    "tail.insert(0, kept.pop())": "the order of records is not looked at",
    "and _session_of(info) in given_up": "there are no uploads in parts",
    "and is_own_key(info.key)": "there are no files of others",
    "if found < hinted:": "no manifest is lost",
    "if found != named:": "no manifest is damaged",
    "if found != expected:": "no list is damaged",
    "if table.has_doubles():": "no list is damaged",
    'if self.mode == "create" and base is not None:': "the dataset is there",
    "store.put_and_confirm(key, data)": "of two creations one wins",
    "live = {*lists[0], *(ref.key for version in alive for ref in version.manifest.session_lists)}": (
        "sessions are few"
    ),
    "if found is not None or is_random_session(session):": "sessions are few",
    "data, sha256 = seal_sessions([*older, *sessions])": "sessions are few",
    "if len(self.written) == 1 and base == kept.number:": "no append changes the schema",
    "if twice:": "no append changes the schema",
    "if dry_run or not plan.has_work():": "a dry run may do as it would",
    "if again and self._strict:": "deletions are by conditions",
    "except ShardioError:": "there is no Ctrl-C",
    "complete=most is None and not self._linked": "no disk is full, and there are no links",
}

# Pieces that protect from the same as another does, by the first lines of both: they are taken out together.
TOGETHER: dict[str, str] = {}

PAGE = ROOT / "docs" / "design" / "simulation.md"
BEGIN, END = "<!-- holes: begin -->", "<!-- holes: end -->"


def holes() -> list[Sabotage]:
    """Return the pieces of protection in the rooms that the simulation drives."""
    return [each for each in LIST if each.file.startswith(ROOMS)]


def first_line(text: str) -> str:
    return text.strip().splitlines()[0]


def key_of(hole: Mapping[str, Any]) -> tuple[str, str, str]:
    return hole["file"], hole["old"], hole["new"]


def try_each(seconds: float, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Put each hole into a copy and search there; yield after how many schedules it was found, or None."""
    with tempfile.TemporaryDirectory() as folder:
        root = copy(Path(folder))
        for number, hole in enumerate(holes()):
            if first_line(hole.old) in OUTSIDE or (numbers and number not in numbers):
                continue
            also = [each for each in holes() if first_line(each.old) == TOGETHER.get(first_line(hole.old))]
            for piece in (hole, *also):
                path = root / piece.file
                text = path.read_text(encoding="utf-8")
                path.write_text(text.replace(piece.old, piece.new), encoding="utf-8")
            command = [sys.executable, "-m", "tests.simulation.simulate", "0", "1000000", "0", str(seconds)]
            environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "0"}
            done = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, text=True, check=False
            )
            for piece in (hole, *also):
                shutil.copy(ROOT / piece.file, root / piece.file)
            seed = re.search(r"^seed (\d+)$", done.stderr, re.MULTILINE)
            law = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception)\b:? ?(.*)$", done.stderr, re.MULTILINE)
            yield {
                "file": hole.file,
                "old": hole.old,
                "new": hole.new,
                "also": [f"{each.file}: {first_line(each.old)}" for each in also],
                "promise": hole.promise,
                "schedules": int(seed[1]) + 1 if seed else None,
                "law": law[-1][:100] if law else done.stderr[-200:],
                "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
            }


def table(found: list[dict[str, Any]]) -> str:
    """Return the holes as a table, those that were found first."""
    lines = ["| what was taken out | found after schedules | what was wrong then |", "|---|--:|---|"]
    for each in sorted(found, key=lambda each: each["schedules"] or 1 << 30):
        after, law = "not found", ""
        if each["schedules"]:
            after, law = f"{each['schedules']:,}", re.sub(r"[0-9a-f]{16,}|[|<>]", "...", each["law"])
        pieces = [f"{each['file']}: {first_line(each['old'])}", *each["also"]]
        lines.append(f"| {', and '.join(f'`{piece}`' for piece in pieces)} | {after} | {law} |")
    lines += [
        f"| `{hole.file}: {first_line(hole.old)}` | not searched: {why} | |"
        for hole in holes()
        if (why := OUTSIDE.get(first_line(hole.old)))
    ]
    return "\n".join(lines)


def main(seconds: float = 60.0, *numbers: float) -> None:
    for tried in try_each(seconds, [*map(int, numbers)]):
        record = load()
        there = {key_of(hole._asdict()) for hole in holes() if first_line(hole.old) not in OUTSIDE}
        there -= {key_of(tried)}
        record["holes"] = [*(each for each in record.get("holes", []) if key_of(each) in there), tried]
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"{tried['schedules'] or 'not found':>10}  {tried['file']}: {tried['old'].strip()}", flush=True)
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    text = f"{before}{BEGIN}\n\n{table(load()['holes'])}\n\n{END}{rest.partition(END)[2]}"
    PAGE.write_text(text, encoding="utf-8")
    write_page()


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
