"""Make the golden dataset of changes: deletions, a restore, a tag, a compaction; run by hand, once.

    python -m tests.golden.lifecycle.make

What is beside this file stays as it is: it shows that what was written once can be read forever.
"""

from __future__ import annotations

from pathlib import Path

import shardio

DatasetWriter = shardio.DatasetWriter
HERE = Path(__file__).parent
EXPECTED = {
    "1": [b"bird %d" % n for n in range(6)],
    "2": [b"bird %d" % n for n in range(9)],
    "3": [b"bird %d" % n for n in range(9) if n not in (1, 7)],
    "4": [b"bird %d" % n for n in range(6)],
    "5": [b"bird %d" % n for n in range(6)],
    "6": [b"bird %d" % n for n in range(9) if n not in (1, 7)],
    "7": [b"bird %d" % n for n in range(9) if n not in (1, 7)],
}


def make() -> None:
    """Write the dataset."""
    url = HERE / "birds"
    for day, numbers in (("one", range(6)), ("two", range(6, 9))):
        with DatasetWriter(url, mode="append", session=f"day-{day}") as out:
            for n in numbers:
                out.write(b"bird %d" % n)
    shardio.delete(url, [1, 7])
    shardio.restore(url, 1)
    shardio.tag(url, "v1", 2)
    shardio.restore(url, 3)
    shardio.compact(url, workers=1)


if __name__ == "__main__":
    make()
