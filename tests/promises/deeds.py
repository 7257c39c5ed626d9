"""What users do to a dataset, each with what is seen before and after."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

import shardio
import shardio.lifecycle  # imported now: doubles of its stores are put in place afterwards
from shardio.codecs import encode_example
from shardio.errors import CommitOutcomeUnknownError, NotFoundError

Seen: TypeAlias = dict[str, list[bytes]] | str | None
SMALL = {"block_bytes": 64, "shard_bytes": 150}


def records(start: int, count: int) -> list[bytes]:
    return [b"record %d " % k * (k % 5) for k in range(start, start + count)]


DAMAGED = "damaged"


def seen(url: str) -> Seen:
    """Return all records by split, read twice over, or None where there is no dataset."""
    try:
        whole = shardio.open(url, "all")
    except NotFoundError:
        return None
    found: dict[str, list[bytes]] = {}
    for split in whole.splits:
        ds = shardio.open(url, split, decode=False)
        found[split] = list(ds)
        assert ds.read(range(len(ds))) == found[split]
    return found


def with_columns(url: str) -> None:
    """Make the dataset that tables and indexes of keys are built of: two shards, and one added later."""
    for mode, start, count in (("create", 0, 8), ("append", 100, 3)):
        with shardio.DatasetWriter(url, {"n": "int64"}, mode=mode, **SMALL) as out:
            for n in range(start, start + count):
                out.write({"n": n}, "a")


def check_columns(url: str) -> None:
    """What tables and indexes say of the records is what these hold, whether there are any or none."""
    ds = shardio.open(url, "a")
    numbers = [int(record["n"]) for record in ds]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of shards that have no table yet
        assert np.asarray(ds.filter("n > 4").selection).tolist() == [
            k for k, n in enumerate(numbers) if n > 4
        ]
    if ds.key_features:
        assert ds.find(numbers).tolist() == [*range(len(numbers))]


def beginnings(folder: Path) -> Path:
    """Make what deeds begin with; return the dataset that most of them do."""
    prepared(str(folder / "ds"))
    with_columns(str(folder / "columns"))
    (folder / "nothing").mkdir()
    shutil.copytree(folder / "ds", folder / "torn")
    tear(folder / "torn")
    return folder / "ds"


def tear(url: Path) -> None:
    """Damage the first record of split "a", an index, and a list of the first version."""
    a, b = (shardio.open(url, split).locate(0) for split in "ab")
    for shard, place in ((url / a.shard, a.start), (url / f"{b.shard}.shardidx", 30)):
        data = bytearray(shard.read_bytes())
        data[place] ^= 4
        shard.write_bytes(data)
    (url / shardio.log(url)[-1].manifest.lists[0].key).unlink()


def prepared(url: str) -> None:
    """Make the dataset that everything but "create" begins with: two versions, and a session left alone."""
    write(url, "create", 0, 20)
    write(url, "overwrite", 100, 15)
    with shardio.DatasetWriter(url, mode="append", session="left-alone", commit=False, **SMALL) as out:
        for record in records(500, 12):
            out.write(record)


def write(url: str, mode: str, start: int, count: int, **options) -> None:
    with shardio.DatasetWriter(url, mode=mode, **{**SMALL, **options}) as out:
        for k, record in enumerate(records(start, count)):
            out.write(record, "b" if k % 3 == 0 else "a")


def split_up(start: int, count: int) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {"a": [], "b": []}
    for k, record in enumerate(records(start, count)):
        found["b" if k % 3 == 0 else "a"].append(record)
    return found


def commit_array(url: str) -> None:
    for task in range(2):
        with shardio.DatasetWriter(
            url, mode="append", session="array", task=task, commit=False, **SMALL
        ) as out:
            for record in records(200 + 50 * task, 8):
                out.write(record, "a")
    shardio.commit(url, session="array", tasks=2)


def repair(url: str) -> None:
    report = shardio.repair(url, workers=1, dry_run=False)
    if not report.ok:  # what cannot be read is listed, and the rest is repaired
        raise CommitOutcomeUnknownError("; ".join(map(str, report.unrepaired)))


def collect(url: str) -> None:
    shardio.gc(url, expire=[1], abandon=["left-alone"], dry_run=False)


BASE = split_up(100, 15)


def joined(more: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
    return {split: BASE.get(split, []) + more.get(split, []) for split in {**BASE, **more}}


def without(split: str, *positions: int) -> dict[str, list[bytes]]:
    left = [record for k, record in enumerate(BASE[split]) if k not in positions]
    return {**BASE, split: left}


ROWS: Seen = {"a": [encode_example({"n": n}) for n in (*range(8), *range(100, 103))]}


@dataclass(frozen=True)
class Deed:
    """Something done to a dataset: how, from what to what, and the name of the one it begins with."""

    do: Callable[[str], None]
    before: Seen
    after: Seen
    empty: bool = False
    columns: bool = False
    begins: str = "ds"

    def source(self, begun: Path) -> Path:
        """Return the dataset that it begins with, of those that `beginnings` has made."""
        return begun.with_name("nothing" if self.empty else "columns" if self.columns else self.begins)

    def go_on(self, url: str) -> bytes:
        """Look at what is beside the records, and append one, which is returned."""
        if self.columns:
            check_columns(url)
        with shardio.DatasetWriter(url, mode="append") as out:
            out.write({"n": 900} if self.columns else b"and on", "a")
        return encode_example({"n": 900}) if self.columns else b"and on"


DEEDS = {
    "create": Deed(lambda url: write(url, "create", 300, 20), None, split_up(300, 20), empty=True),
    "append": Deed(lambda url: write(url, "append", 300, 20), BASE, joined(split_up(300, 20))),
    "overwrite": Deed(lambda url: write(url, "overwrite", 300, 20), BASE, split_up(300, 20)),
    "compressed": Deed(
        lambda url: write(url, "append", 300, 20, compression="zstd"), BASE, joined(split_up(300, 20))
    ),
    "session": Deed(
        lambda url: write(url, "append", 300, 20, session="mine"), BASE, joined(split_up(300, 20))
    ),
    "array": Deed(commit_array, BASE, joined({"a": records(200, 8) + records(250, 8)})),
    "gc": Deed(collect, BASE, BASE),
    "delete": Deed(lambda url: shardio.delete(url, [0, 4], split="a"), BASE, without("a", 0, 4)),
    "restore": Deed(lambda url: shardio.restore(url, 1), BASE, split_up(0, 20)),
    "erase": Deed(lambda url: shardio.erase(url, [0, 4], split="a"), BASE, without("a", 0, 4)),
    "compact": Deed(lambda url: shardio.compact(url, workers=1), BASE, BASE),
    "tag": Deed(lambda url: shardio.tag(url, "v1"), BASE, BASE),
    "remove": Deed(lambda url: shardio.remove_split(url, "b"), BASE, {"a": BASE["a"]}),
    "schema": Deed(
        lambda url: shardio.set_schema(url, {"m": shardio.Feature("int64", default=0)}),
        ROWS,
        ROWS,
        columns=True,
    ),
    "table": Deed(lambda url: shardio.build_table(url, features=["n"], workers=1), ROWS, ROWS, columns=True),
    "keys": Deed(lambda url: shardio.build_keys(url, "n", workers=1), ROWS, ROWS, columns=True),
    "repair": Deed(repair, DAMAGED, without("a", 0), begins="torn"),
    "rename": Deed(lambda url: shardio.rename_split(url, "b", "c"), BASE, {"a": BASE["a"], "c": BASE["b"]}),
}
