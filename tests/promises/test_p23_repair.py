"""P23: repair loses nothing that is good and never makes anything up."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import shardio
import shardio_indexer
from shardio.catalog import Catalog
from shardio.cli import main
from shardio.errors import (
    CommitConflictError,
    FormatError,
    NotFoundError,
    ShardioError,
    StorageError,
)
from shardio.metadata import naming, parse_head
from shardio.storage import connect
from tests.promises.damage import Victim
from tests.promises.places import PLACES, fresh
from tests.promises.stores import faulty
from tests.suites.errors import refused

COMPRESSIONS = ["none", "zstd", "gzip"]
EVERY_KIND = pytest.mark.parametrize("compression", COMPRESSIONS)
EVERY_PLACE = pytest.mark.parametrize("place", PLACES)


def written(url: str, compression: str = "none") -> list[bytes]:
    """Write three shards in two versions; return their records."""
    records = []
    for version in range(2):
        mode = "append" if version else "create"
        with shardio.DatasetWriter(
            url, None, compression, mode=mode, block_bytes=200, shard_bytes=700, session=f"s{version}"
        ) as out:
            for k in range(60 if version else 40):
                record = random.Random(100 * version + k).randbytes(k % 30) + b"%d/%d" % (version, k)
                out.write(record)
                records.append(record)
    return records


def victim(compression: str, place: str, tmp_path: Path) -> Victim:
    url = fresh(place, tmp_path)
    return Victim(url, written(url, compression))


def copy_of(case: Victim, tmp_path: Path) -> str:
    """Return the URL of a whole copy, as a tool that copies buckets makes it."""
    url = fresh("local", tmp_path)
    store = connect(url)
    for info in case.store.list():
        store.put_if_absent(info.key, case.store.get(info.key, max_bytes=1 << 20))
    return url


def read(url: str) -> list[bytes]:
    return list(shardio.open(url, "all", decode=False))


def repaired(url: str, **options: object) -> shardio.lifecycle.RepairReport:
    """Repair; verify must be content afterwards, and a second repair has nothing to do."""
    dry = shardio.repair(url, workers=1, **options)
    report = shardio.repair(url, dry_run=False, workers=1, **options)
    assert report.ok, report.unrepaired
    again = shardio.verify(url)
    assert again.ok, again.findings
    if not any("after the manifests and lists are restored" in note for note in dry.notes):
        assert [(i.how, i.what, i.url, i.lost) for i in dry.repaired] == [
            (i.how, i.what, i.url, i.lost) for i in report.repaired
        ]
        assert dry.lost == report.lost
        assert dry.after == report.after
    assert shardio.repair(url, dry_run=False, workers=1, **options).repaired == ()
    return report


def flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def is_part(part: list[bytes], whole: list[bytes]) -> bool:
    """Tell whether records stand in the whole in this order; each of them is there once."""
    rest = iter(whole)
    return all(record in rest for record in part)


@EVERY_PLACE
@EVERY_KIND
def test_nothing_to_repair(compression, place, tmp_path):
    case = victim(compression, place, tmp_path)
    report = shardio.repair(case.url, dry_run=False)
    assert (report.repaired, report.unrepaired, report.lost, report.version) == ((), (), (), None)
    assert {info.key for info in case.store.list() if not info.key.startswith("_shardio/s")} == {
        *case.objects,
        naming.HINT_KEY,
    }


@EVERY_KIND
def test_a_usual_index_that_is_gone_gets_its_very_bytes(compression, tmp_path):
    """An index made again that is the one that the list names needs no new version."""
    url = fresh("local", tmp_path)
    with shardio.DatasetWriter(url, None, compression) as out:
        for k in range(5000):
            out.write(b"%d" % k * 10)
    case = Victim(url, [])
    (key,) = case.of_kind(".shardidx")
    case.put(key, None)
    assert repaired(url).version is None
    assert case.store.get(key, max_bytes=1 << 20) == case.objects[key]


@EVERY_KIND
def test_every_damaged_byte_of_an_index(compression, tmp_path, long):
    """Without its exact bytes, a shard or an index that is damaged MUST stay as it is."""
    case = victim(compression, "local", tmp_path)
    key = case.of_kind(".shardidx")[1]
    good = case.objects[key]
    for place in range(3, len(good), 97 if long else 291):
        damaged = flipped(good, 8 * place + place % 8)
        case.put(key, damaged)
        report = repaired(case.url)
        assert [each.what for each in report.repaired] == ["index"], place
        assert report.version is not None
        assert read(case.url) == case.payloads
        assert case.store.get(key, max_bytes=1 << 20) == damaged
        # The damaged version is what the next byte damages.
        restart(case)


def restart(case: Victim) -> None:
    """Take the dataset back to what it was."""
    for info in list(case.store.list()):
        if info.key not in case.objects and not info.key.startswith("_shardio/sessions/"):
            case.store.delete(info.key)
    case.restore(*case.objects)
    case.store.overwrite(naming.HINT_KEY, b"2")


@pytest.fixture(scope="module")
def rich_dataset(tmp_path_factory) -> Path:
    """Return a dataset with every kind of object: two versions, deleted rows, a table, an index of keys."""
    path = tmp_path_factory.mktemp("rich") / "ds"
    for version in range(2):
        with shardio.DatasetWriter(
            path, {"n": "int64"}, mode="append" if version else "create", block_bytes=200, shard_bytes=700
        ) as out:
            for n in range(40):
                out.write({"n": 100 * version + n})
    shardio.delete(path, [39])
    shardio.build_table(path, ["n"], workers=1)
    shardio.build_keys(path, "n", workers=1)
    return path


def key_of(case: Victim, what: str, number: int = 0) -> str:
    """Return the key of an object: of the shards and indexes the first, of all else the last."""
    ends = {
        "shard": ".tfrecord", "index": ".shardidx", "rows": ".rows", "list": ".list", "manifest": ".manifest",
        "table": "_shardio/tables/", "keys": "_shardio/keys/",
    }  # fmt: skip
    found = [
        key for key in case.of_kind("") if ends[what] in f"{key}/" and not key.endswith(".tfrecord.shardidx")
    ]
    if what in ("shard", "index"):
        found = case.of_kind(ends[what])
        return [key for key in found if not key.endswith(".rows")][number]
    return found[-1]


def swap(case: Victim) -> None:
    a, b = (key_of(case, "shard", number) for number in (0, 1))
    case.put(a, case.objects[b])
    case.put(b, case.objects[a])


def replace(case: Victim, index: str) -> None:
    """Put the second shard in the place of the first; do the same to its index, or remove it, or neither."""
    case.put(key_of(case, "shard"), case.objects[key_of(case, "shard", 1)])
    if index != "whole":
        other = case.objects[key_of(case, "index", 1)]
        case.put(key_of(case, "index"), other if index == "another" else None)


def harm(*damages: tuple[str, str]) -> Callable[[Victim], None]:
    def do(case: Victim) -> None:
        for what, damage in damages:
            key = key_of(case, what)
            good = case.objects[key]
            case.put(key, flipped(good, 8 * 20) if damage == "one record" else damaged_by(damage, good))

    return do


# What is done to a dataset; how it is repaired without a mirror ("" for not at all); records that are lost
# then: a number, "some", or "a shard". With a mirror nothing is ever lost.
TABLE: dict[str, tuple[Callable[[Victim], None], str, object]] = {
    "an index is gone": (harm(("index", "gone")), "rebuilt index", 0),
    "an index is damaged": (harm(("index", "flipped")), "rebuilt index", 0),
    "an index is empty": (harm(("index", "empty")), "rebuilt index", 0),
    "a record is damaged": (harm(("shard", "one record")), "salvaged shard", 1),
    "a record is damaged, and the index": (
        harm(("shard", "one record"), ("index", "flipped")), "salvaged shard", 1,
    ),
    "a record is damaged, and the index gone": (
        harm(("shard", "one record"), ("index", "gone")), "salvaged shard", 1,
    ),
    "a shard is cut": (harm(("shard", "cut")), "salvaged shard", "some"),
    "a shard is longer": (harm(("shard", "longer")), "salvaged shard", 0),
    "a shard is gone": (harm(("shard", "gone")), "dropped shard", "a shard"),
    "a shard and its index are gone": (
        harm(("shard", "gone"), ("index", "gone")), "dropped shard", "a shard",
    ),
    "two shards are swapped": (swap, "dropped shard", "some"),
    "another shard in its place": (lambda case: replace(case, "whole"), "dropped shard", "a shard"),
    "another shard with its index": (lambda case: replace(case, "another"), "dropped shard", "a shard"),
    "another shard, and no index": (lambda case: replace(case, "gone"), "dropped shard", "a shard"),
    "deleted rows are gone": (harm(("rows", "gone")), "", None),
    "deleted rows are damaged": (harm(("rows", "flipped")), "", None),
    "a table is gone": (harm(("table", "gone")), "", None),
    "a table is damaged": (harm(("table", "flipped")), "", None),
    "an index of keys is gone": (harm(("keys", "gone")), "", None),
    "an index of keys is damaged": (harm(("keys", "flipped")), "", None),
    "the latest manifest is gone": (harm(("manifest", "gone")), "", None),
    "the latest manifest is damaged": (harm(("manifest", "flipped")), "", None),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("damage", TABLE)
def test_what_comes_of_damage(damage, mirrored, rich_dataset, tmp_path):
    """Records that go into a new shard MUST be those of blocks that match their checksum in an index which
    the list names, or match their own checksums, but none of a block (without an index: of a shard)
    that does not match its checksum and of which every record does: these are records, and not those
    that were written.
    """
    url, mirror = str(tmp_path / "ds"), str(tmp_path / "mirror")
    shutil.copytree(rich_dataset, url)
    shutil.copytree(rich_dataset, mirror)
    case = Victim(url, read(url))
    rows = parse_head(case.objects[key_of(case, "index")]).rows
    digest = shardio.open(case.url).digest
    do, how, lost = TABLE[damage]
    do(case)
    if mirrored:
        # No list was made for the latest version, which adds an index of keys: its digest says which it is.
        report = repaired(case.url, mirror=mirror, digest=digest)
        assert (read(case.url), report.lost) == (case.payloads, ())
        assert {each.source for each in report.repaired} == {"mirror"}
        return
    if not how:
        report = shardio.repair(case.url, dry_run=False, workers=1)
        assert (report.ok, report.version, report.repaired, report.lost) == (False, None, (), ())
        assert all(each.advice for each in report.unrepaired)
        return
    report = repaired(case.url)
    assert how in {f"{each.how} {each.what}" for each in report.repaired}
    assert is_part(read(case.url), case.payloads)
    assert len(read(case.url)) == len(case.payloads) - report.lost_records
    if lost == "some":
        assert report.lost_records > 0
    else:
        assert report.lost_records == (rows if lost == "a shard" else lost)
    assert bool(report.lost) == (report.lost_records > 0)


@EVERY_PLACE
@EVERY_KIND
def test_flipped_bits_of_shards_are_salvaged(compression, place, tmp_path):
    """Every record of other blocks survives, in order; what is lost is listed by its rows."""
    case = victim(compression, place, tmp_path)
    shards = case.of_kind(".tfrecord")
    for number, key in enumerate(shards):
        good = case.objects[key]
        head = parse_head(case.objects[key + ".shardidx"])
        bit = 8 * (len(good) * (number + 1) // (len(shards) + 1)) + number % 8
        case.put(key, flipped(good, bit))
        source = shardio.open(case.url, "all", decode=False).source
        first = int(source.stops[list(source.table.key).index(key)]) - head.rows
        block = next(k for k in range(head.blocks) if bit // 8 < head.block_stop[k])
        rows = range(*head.block_rows(block))
        report = repaired(case.url)
        lost = [row for each in report.lost for row in range(each.row, each.row_stop)]
        assert lost
        assert {*lost} <= {*rows}, "no record of another block"
        left = [record for k, record in enumerate(case.payloads) if k - first not in lost]
        assert read(case.url) == left
        assert report.lost_records == len(lost)
        assert all(each.where.endswith(key) for each in report.lost)
        restart(case)


LATER: dict[str, Callable[[str], object]] = {
    "nothing": lambda _: None,
    "an append": lambda url: append(url, b"new"),
    "a deletion": lambda url: shardio.delete(url, [len(read(url)) - 1]),
    "a deletion beside the loss": lambda url: shardio.delete(url, [0, 2]),
    "two deletions": lambda url: (shardio.delete(url, [1]), shardio.delete(url, [0, 5])),
    "a tag": lambda url: shardio.tag(url, "v1"),
    "another name of the split": lambda url: shardio.rename_split(url, "train", "seen"),
    "a restore": lambda url: (append(url, b"rolled back"), shardio.restore(url, 3)),
    "a compaction": lambda url: shardio.compact(url, workers=1),
    "a deletion and a compaction": lambda url: (shardio.delete(url, [0]), shardio.compact(url, workers=1)),
    "two compactions": lambda url: (
        shardio.compact(url, shard_bytes=1000, workers=1),
        shardio.delete(url, [3]),
        shardio.compact(url, compression="zstd", workers=1),
    ),
}


def append(url: str, record: bytes) -> None:
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write(record)


@EVERY_PLACE
@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_mirror_found_later_brings_lost_records_back(damage, later, place, tmp_path):
    """After a salvage, and after a shard was dropped, also where others commit meanwhile."""
    case = victim("none", place, tmp_path)
    mirror = copy_of(case, tmp_path)
    first, second = case.of_kind(".tfrecord")[:2]
    case.put(first, damaged_by(damage, case.objects[first]))
    case.put(second, damaged_by(damage, case.objects[second]))
    assert repaired(case.url).lost_records > 0
    before = {*read(case.url)}
    LATER[later](case.url)
    after = {*read(case.url)}
    report = repaired(case.url, mirror=mirror)
    assert {each.how for each in report.repaired} == {"recovered"}
    expected = [each for each in case.payloads if each not in before - after] + sorted(after - before)
    if "compaction" in later:  # what is lost comes back beside the shards that were merged
        assert sorted(read(case.url)) == sorted(expected)
    else:
        assert read(case.url) == expected


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_shards_lost_one_after_another_return_to_their_places(damage, tmp_path):
    """In any order, at both ends; and a shard that was salvaged twice."""
    case = victim("none", "local", tmp_path)
    mirror = copy_of(case, tmp_path)
    shards = list(shardio.open(case.url, "all", decode=False).source.table.key)
    for number in (len(shards) - 1, 0, 3, len(shards) - 2, 1):
        case.put(shards[number], damaged_by(damage, case.objects[shards[number]]))
        repaired(case.url)
    if damage == "flipped":
        again = shardio.open(case.url, "all", decode=False).source.table.key[0]
        data = bytearray(case.store.get(again, max_bytes=1 << 20))
        data[-3] ^= 1
        case.put(again, bytes(data))
        repaired(case.url)
    assert len(read(case.url)) < len(case.payloads)
    repaired(case.url, mirror=mirror)
    assert read(case.url) == case.payloads


@pytest.mark.parametrize("merged", [False, True])
def test_equal_records_come_back_as_often_as_they_were_there(merged, tmp_path):
    """Nothing tells equal records apart; their number is right whichever of them were deleted."""
    url = fresh("local", tmp_path)
    records = [{"letter": "ab"[k % 2]} for k in range(40)]
    with shardio.DatasetWriter(url, {"letter": "text"}, block_bytes=100) as out:
        for record in records:
            out.write(record)
    case = Victim(url, records)
    mirror = copy_of(case, tmp_path)
    (key,) = case.of_kind(".tfrecord")
    case.put(key, flipped(case.objects[key], 8 * 90))
    assert repaired(url).lost_records == 1
    for rows in ([0, 3], [1, 4, 5], [2]):
        for record in [shardio.open(url)[row] for row in rows]:
            records.remove(record)
        shardio.delete(url, rows)
    if merged:
        shardio.compact(url, workers=1)
    repaired(url, mirror=mirror)
    assert sorted(map(str, shardio.open(url))) == sorted(map(str, records))


def test_what_cannot_come_back_is_listed(tmp_path):
    """Where a salvaged shard is damaged, too, nothing tells which of its rows were deleted."""
    case = victim("none", "local", tmp_path)
    mirror = copy_of(case, tmp_path)
    key = case.of_kind(".tfrecord")[0]
    case.put(key, flipped(case.objects[key], 8 * 20))
    repaired(case.url)
    salvaged = shardio.open(case.url).source.table.key[0]
    shardio.delete(case.url, [0])
    case.put(salvaged, flipped(case.store.get(salvaged, max_bytes=1 << 20), 8 * 60))
    repaired(case.url)
    left = read(case.url)
    report = repaired(case.url, mirror=mirror)
    assert [key in note for note in report.notes] == [True]
    assert read(case.url) == left


@pytest.mark.parametrize("deleted", ["before", "after"])
def test_lost_records_come_back_though_deletions_are_lost_too(deleted, tmp_path):
    """The mirror has the list of deleted rows: one repair is enough, and a dry run says the same."""
    case = victim("none", "local", tmp_path)
    first = shardio.open(case.url, "all").source.table.key[0]
    intact = case.objects[first]
    gone = read(case.url)[:1]
    if deleted == "before":
        shardio.delete(case.url, [0], split="all")
    mirror = copy_of(case, tmp_path)
    case.put(first, flipped(intact, 8 * 60))
    assert repaired(case.url).lost_records > 0
    if deleted == "after":
        shardio.delete(case.url, [0], split="all")
    for info in case.store.list():
        if info.key.endswith(".rows"):
            connect(mirror).put_if_absent(info.key, case.store.get(info.key, max_bytes=1 << 20))
            case.store.delete(info.key)
    planned = shardio.repair(case.url, mirror=mirror)
    report = repaired(case.url, mirror=mirror)
    assert [(each.how, each.url) for each in planned.repaired] == [
        (each.how, each.url) for each in report.repaired
    ]
    assert read(case.url) == [each for each in case.payloads if each not in gone]


@pytest.mark.parametrize("seed", range(3))
def test_a_mirror_brings_back_what_a_random_history_lost(seed, tmp_path):
    """Against a model: appends and deletions change what comes back, damage and the rest do not."""
    case = victim("none", "local", tmp_path)
    mirror = copy_of(case, tmp_path)
    choose = random.Random(seed)
    expected = {*case.payloads}
    for step in range(10):
        deed = choose.choice(["append", "delete", "compact", "rename", "damage", "damage", "damage"])
        if deed == "append":
            append(case.url, b"new %d" % step)
            expected.add(b"new %d" % step)
        elif deed == "delete":
            there = read(case.url)
            rows = choose.sample(range(len(there)), 2)
            shardio.delete(case.url, rows, split="all")
            expected -= {there[row] for row in rows}
        elif deed == "compact":
            shardio.compact(case.url, shard_bytes=choose.choice([600, 4000]), workers=1)
        elif deed == "rename":
            shardio.rename_split(case.url, choose.choice([*shardio.open(case.url, "all").splits]), f"s{step}")
        else:
            backup = connect(mirror)
            for info in case.store.list():
                backup.put_if_absent(info.key, case.store.get(info.key, max_bytes=1 << 20))
            keys = list(shardio.open(case.url, "all").source.table.key)
            for key in choose.sample(keys, len(keys) // 3):
                kind = choose.choice(["gone", "flipped"])
                case.put(key, damaged_by(kind, case.store.get(key, max_bytes=1 << 20)))
            assert shardio.repair(case.url, dry_run=False, workers=1).ok
    repaired(case.url, mirror=mirror)
    assert {*read(case.url)} == expected
    assert len(read(case.url)) == len(expected)


class Line:
    """A shard "abcdefgh" and what becomes of it, beside a shard "z", with a model of what comes back.

    A letter comes back if the mirror has an intact shard with it from which the latest one was salvaged, and
    if it was not deleted.
    """

    def __init__(self, tmp_path: Path) -> None:
        self.url, self.mirror = tmp_path / "ds", tmp_path / "mirror"
        for letters in ("abcdefgh", "z"):
            with shardio.DatasetWriter(self.url, mode="append", block_bytes=60) as out:
                for letter in letters:
                    out.write(letter.encode() * 9)
        self.standing, self.gone, self.saved = {*"abcdefghz"}, set[str](), set[str]()
        self.independent = set[str]()  # saved letters that need no shard after the last compaction
        self.copied, self.deleted_in = set[str](), set[str]()  # names of shards

    def letters(self) -> list[str]:
        return [chr(record[0]) for record in read(str(self.url))]

    def shard_of(self, letter: str) -> str:
        """Return the name of the shard in which a letter stands."""
        source = shardio.open(self.url, "all").source
        number = np.searchsorted(source.stops, self.letters().index(letter), side="right")
        return source.table.key[number]

    def do(self, deed: str, letter: str = "") -> None:
        if deed == "copy":
            for path in [path for path in self.url.rglob("*") if path.is_file()]:
                target = self.mirror / path.relative_to(self.url)
                if not target.exists():  # what was damaged since stays as it was
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, target)
            self.copied |= {*shardio.open(self.url, "all").source.table.key}
            self.saved |= self.standing
        elif deed == "compact":
            before = {*shardio.open(self.url, "all").source.table.key}
            shardio.compact(self.url, workers=1)
            merged = {each for each in self.standing if self.shard_of(each) not in before}
            self.saved -= merged
            self.independent |= self.saved - self.standing if merged else set()
        elif letter in self.standing:
            self.change(deed, letter)

    def change(self, deed: str, letter: str) -> None:
        lost, key = {letter}, self.shard_of(letter)
        if deed in ("delete", "erase"):
            getattr(shardio, deed)(self.url, [self.letters().index(letter)])
            self.gone.add(letter)
            self.deleted_in.add(key)
            if deed == "erase":
                self.saved.clear()
        else:
            path = self.url / key
            content = path.read_bytes()
            if deed == "drop":
                lost = {each for each in self.standing if self.shard_of(each) == key}
                path.unlink()
            else:
                path.write_bytes(content.replace(letter.encode() * 9, letter.upper().encode() * 9))
            if key in self.deleted_in - self.copied:  # nothing tells which letters were deleted
                self.saved &= self.independent
            if lost == self.standing:  # nothing would be left, so it is not repaired
                path.write_bytes(content)
                return
            assert repaired(self.url).lost_records == len(lost)
        self.standing -= lost

    def check(self, deeds: object) -> None:
        """Repair with the mirror: what comes back is what the model says, each letter once."""
        expected = self.standing | (self.saved - self.gone)
        repaired(self.url, mirror=self.mirror)
        assert sorted(self.letters()) == sorted(expected), deeds
        if "compact" not in str(deeds):
            assert self.letters() == sorted(expected), deeds
        self.standing = expected
        self.independent -= expected


@pytest.mark.parametrize(
    "deeds",
    [
        "copy, lose c, lose e",
        "lose c, copy, lose e",
        "copy, lose c, copy, lose e",
        "copy, lose c, lose e, lose a",
        "lose c, copy, lose e, copy, lose a",
        "lose c, lose e, copy, lose a",
        "lose c, copy, lose e, lose a",
        "lose c, copy, lose e, repair, lose a",
        "lose c, copy, lose e, repair, copy, lose a, lose b",
        "copy, lose c, delete d, copy, lose e",
        "copy, lose c, lose e, delete d",
        "lose c, copy, lose e, delete d, copy, lose a",
        "lose c, delete d, copy, lose e, delete f, lose a",
        "copy, lose c, delete d, copy, lose e, delete f, copy, lose a",
        "copy, lose c, drop a",
        "lose c, copy, drop a",
        "copy, lose c, delete d, copy, drop a",
        "copy, drop a, compact",
        "copy, lose c, compact, copy, lose e",
        "copy, lose c, compact, lose e",
        "copy, lose c, copy, lose e, compact, copy, lose a",
        "lose c, copy, lose e, compact, copy, lose a, lose b",
        "copy, lose c, delete d, compact, copy, lose e, delete f, compact",
        "copy, lose c, lose e, erase d",
        "copy, lose c, erase d, copy, lose e, lose a",
    ],
)
def test_what_salvages_of_salvages_lost_comes_back(deeds, tmp_path):
    line = Line(tmp_path)
    for deed in deeds.split(", "):
        if deed == "repair":
            line.check(deeds)
        else:
            line.do(*deed.split())
    line.check(deeds)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(12))
def test_what_any_salvages_lost_comes_back(seed, tmp_path):
    choose, line, deeds = random.Random(seed), Line(tmp_path), ["copy"]
    line.do("copy")
    for _ in range(9):
        deed = choose.choice(["copy", "lose", "lose", "lose", "delete", "compact", "drop", "repair"])
        letter = choose.choice(sorted(line.standing - {"z"}) or ["z"])
        deeds.append(f"{deed} {letter}")
        if deed == "repair":
            line.check(deeds)
        else:
            line.do(deed, letter)
    line.check(deeds)


@pytest.mark.parametrize("copied", [True, False])
def test_a_list_that_is_gone_does_not_keep_other_repairs_back(copied, tmp_path):
    """A dry run, and a repair that leaves the list damaged, say that what was lost is looked up later."""
    case = victim("none", "local", tmp_path)
    mirror = copy_of(case, tmp_path)
    shard = case.of_kind(".tfrecord")[0]
    case.put(shard, None)
    repaired(case.url)
    shardio.compact(case.url, workers=1)
    lists = {ref.key for ref in Catalog(connect(case.url)).load(3).manifest.lists}
    current = {ref.key for ref in Catalog(connect(case.url)).load().manifest.lists}
    for key in lists - current:
        if copied:
            connect(mirror).put_if_absent(key, case.store.get(key, max_bytes=1 << 20))
        case.put(key, None)
    dry = shardio.repair(case.url, mirror=mirror, workers=1)
    assert any("earlier repairs" in note for note in dry.notes)
    report = shardio.repair(case.url, mirror=mirror, dry_run=False, workers=1)
    assert report.ok == copied
    assert (sorted(read(case.url)) == sorted(case.payloads)) == copied


def test_a_recovery_that_was_killed_is_finished_by_the_next(tmp_path):
    """Bytes that it put back under their own names do not hide that no version lists them."""
    case = victim("none", "local", tmp_path)
    mirror = copy_of(case, tmp_path)
    key = case.of_kind(".tfrecord")[0]
    case.put(key, None)
    repaired(case.url)
    case.restore(key)
    report = repaired(case.url, mirror=mirror)
    assert [each.how for each in report.repaired] == ["recovered"]
    assert read(case.url) == case.payloads


def test_what_ends_recovery_lists_the_lost_records_that_no_mirror_brings_back_after_it(tmp_path):
    case = victim("none", "local", tmp_path)
    key = case.of_kind(".tfrecord")[0]
    case.put(key, flipped(case.objects[key], 8 * 20))
    lost = repaired(case.url).lost_records
    shardio.delete(case.url, [0])
    last = shardio.log(case.url)[0].number
    assert shardio.gc(case.url).lost_for_good == {}
    for expired in range(last - 2, last):
        assert shardio.gc(case.url, expire=[expired]).lost_for_good == {key: lost}
    for dry_run in (True, False):
        assert shardio.erase(case.url, [4], dry_run=dry_run).lost_for_good == {key: lost}
    assert shardio.erase(case.url, [4]).lost_for_good == {}
    assert shardio.gc(case.url).lost_for_good == {}


def test_a_mirror_brings_back_nothing_that_was_erased_or_replaced(tmp_path):
    deeds = (lambda url: shardio.erase(url, [5]), overwritten, restored)
    for number, deed in enumerate(deeds):
        case = victim("none", "local", tmp_path)
        mirror = copy_of(case, tmp_path)
        key = case.of_kind(".tfrecord")[0]
        case.put(key, None)
        repaired(case.url)
        deed(case.url)
        left = read(case.url)
        assert repaired(case.url, mirror=mirror).repaired == (), number
        assert read(case.url) == left


def restored(url: str) -> None:
    append(url, b"new")
    overwritten(url)
    shardio.restore(url, 5)


def overwritten(url: str) -> None:
    with shardio.DatasetWriter(url, mode="overwrite") as out:
        out.write(b"new")


@EVERY_KIND
def test_salvage_brings_nothing_deleted_back(compression, tmp_path):
    """Deleted rows are left behind; the others keep their order."""
    case = victim(compression, "local", tmp_path)
    shardio.delete(case.url, [0, 1, 17, 99])
    left = read(case.url)
    key = case.of_kind(".tfrecord")[0]
    case.put(key, case.objects[key][:-3])
    report = repaired(case.url)
    after = read(case.url)
    assert report.lost_records == len(left) - len(after) > 0
    assert is_part(after, left)
    assert after[:5] == left[:5]


def repair_meanwhile(url: str, deed: Callable[[], object]) -> None:
    """Repair, and do something else between the look at the shards and the commit."""
    ran: list[object] = []

    def late(verb: str, key: str) -> str:
        if verb == "put_if_absent" and key.endswith(".manifest") and not ran:
            ran.append(key)
            deed()
        return ""

    with faulty(late):
        shardio.repair(url, dry_run=False, workers=1)


def damaged(place: str, tmp_path: Path) -> Victim:
    """Return a dataset with one flipped bit in its first shard."""
    case = victim("none", place, tmp_path)
    key = case.of_kind(".tfrecord")[0]
    case.put(key, flipped(case.objects[key], 400))
    return case


@EVERY_PLACE
@pytest.mark.parametrize("deed", ["append", "delete", "overwrite"])
def test_a_change_while_a_shard_is_repaired(deed, place, tmp_path):
    """Appended records stay, what others took out is not brought back, a refused repair leaves nothing."""
    case = damaged(place, tmp_path)
    if deed == "append":
        repair_meanwhile(case.url, lambda: append(case.url, b"meanwhile"))
        assert (shardio.verify(case.url).ok, shardio.open(case.url).version) == (True, 4)
        assert read(case.url)[-1] == b"meanwhile"
        assert is_part(read(case.url), [*case.payloads, b"meanwhile"])
        return
    change = overwritten if deed == "overwrite" else lambda url: shardio.delete(url, [0])
    with pytest.raises(CommitConflictError):
        repair_meanwhile(case.url, lambda: change(case.url))
    assert shardio.gc(case.url).unclaimed == {}
    report = repaired(case.url)
    if deed == "delete":
        assert report.version == 4
        assert case.payloads[0] not in read(case.url)
    else:  # the damaged shard is no longer part of the dataset
        assert (report.repaired, shardio.open(case.url).version, read(case.url)) == ((), 3, [b"new"])


@pytest.mark.sampled(14)
@EVERY_PLACE
@EVERY_KIND
@pytest.mark.parametrize("damage", ["gone", "flipped", "cut", "longer", "empty"])
def test_everything_comes_back_from_a_mirror(damage, compression, place, tmp_path):
    """By digest: every object in turn, then all of a kind."""
    case = victim(compression, place, tmp_path)
    mirror = copy_of(case, tmp_path)
    kinds = [".tfrecord", ".shardidx", ".list", ".manifest"]
    for end in kinds:
        keys = case.of_kind(end)
        for part in ([keys[0]], [keys[-1]], keys):
            for key in part:
                case.put(key, damaged_by(damage, case.objects[key]))
            if end == ".manifest" and damage == "gone" and len(part) == 2:
                options = {"digest": shardio.open(mirror).digest}
            else:
                options = {}
            report = repaired(case.url, mirror=mirror, **options)
            assert {each.source for each in report.repaired} == {"mirror"}
            assert (read(case.url), report.lost) == (case.payloads, ())
            restart(case)


def damaged_by(damage: str, data: bytes) -> bytes | None:
    return {
        "gone": None,
        "flipped": flipped(data, 8 * (len(data) // 2)),
        "cut": data[: len(data) // 2],
        "longer": data + b"x",
        "empty": b"",
    }[damage]


def test_a_mirror_that_is_damaged_too(tmp_path):
    """A repair MUST compare every byte with the digests that name it before it stores it: an index with the
    length and SHA-256 of its head and the checksums in it, a shard with size and CRC-32C, all else with its
    SHA-256.
    """
    case = victim("none", "local", tmp_path)
    mirror = copy_of(case, tmp_path)
    key = case.of_kind(".tfrecord")[0]
    Path(mirror, key).write_bytes(flipped(case.objects[key], 77))
    case.put(key, None)
    report = repaired(case.url, mirror=mirror)
    assert [(each.how, each.what) for each in report.repaired] == [("dropped", "shard")]
    assert is_part(read(case.url), case.payloads)


def test_a_split_that_is_gone_is_named(tmp_path):
    with shardio.DatasetWriter(tmp_path / "ds", schema={"n": "int64"}) as out:
        for n in range(20):
            out.write({"n": n}, split="val" if n % 10 else "train")
    [lost] = (tmp_path / "ds" / "data").glob("train-*.tfrecord")
    lost.unlink()
    for dry_run in (True, False):
        report = shardio.repair(tmp_path / "ds", dry_run=dry_run)
        assert (report.before, report.after) == ({"train": 2, "val": 18}, {"train": 0, "val": 18})
        assert report.notes == (
            "split 'train' is gone, because none of its shards is left; earlier versions name it",
        )
    assert list(shardio.open(tmp_path / "ds").splits) == ["val"]


def test_bad_input(tmp_path):
    case = victim("none", "local", tmp_path)
    with pytest.raises(NotFoundError) as caught:
        shardio.repair(tmp_path / "nothing")
    assert "`shardio adopt --salvage`" in str(caught.value.advice)
    with pytest.raises(NotFoundError) as caught:
        shardio.repair(case.url, mirror=tmp_path / "nothing")
    assert caught.value.advice == "name a copy of the whole dataset as mirror"
    other = fresh("local", tmp_path)
    written(other)
    with pytest.raises(FormatError) as caught:
        shardio.repair(case.url, mirror=other)
    assert caught.value.advice == "name a copy of this dataset as mirror"
    assert shardio.repair(case.url, mirror=copy_of(case, tmp_path)).ok
    with pytest.raises(ValueError, match="is the dataset itself"):
        shardio.repair(case.url, mirror=case.url)
    with refused(TypeError, "workers"):
        shardio.repair(case.url, workers="2")


def test_a_mirror_that_went_another_way(tmp_path):
    """A copy that was written to since has manifests of the same numbers, and they are not ours."""
    case = victim("none", "local", tmp_path)
    mirror = copy_of(case, tmp_path)
    for url, record in ((case.url, b"ours"), (mirror, b"theirs")):
        with shardio.DatasetWriter(url, mode="append") as out:
            out.write(record)
    digest = shardio.open(mirror).digest
    case.store.delete(naming.manifest_key(3))
    report = shardio.repair(case.url, mirror=mirror, dry_run=False)
    assert not report.ok
    assert digest in str(report.unrepaired[0].advice)
    with pytest.raises(FormatError):
        read(case.url)
    # A digest says that this is the one.
    repaired(case.url, mirror=mirror, digest=digest)
    assert read(case.url) == [*case.payloads, b"theirs"]


@pytest.mark.parametrize("made", ["lists", "sessions"])
def test_lists_are_made_again_where_a_digest_proves_them(made, tmp_path):
    url = fresh("local", tmp_path)
    for k in range(66 if made == "sessions" else 3):
        with shardio.DatasetWriter(url, mode="append", session=f"day{k}") as out:
            out.write(b"%d" % k)
    records = read(url)
    manifest = Catalog(connect(url)).load().manifest
    refs = manifest.session_lists if made == "sessions" else manifest.lists
    assert refs
    for ref in refs:
        Path(url, ref.key).unlink()
    report = repaired(url)
    assert {(each.how, each.what, each.source) for each in report.repaired} == {
        ("restored", "list", "left over")
    }
    assert read(url) == records


def test_a_single_shard_is_salvaged_by_adoption(tmp_path):
    """What the advice says of a shard by itself works."""
    path = tmp_path / "x.tfrecord"
    with shardio.ShardWriter(path) as out:
        for k in range(9):
            out.write(b"%d" % k)
    Path(f"{path}.shardidx").unlink()
    path.write_bytes(flipped(path.read_bytes(), 8 * 12))
    with pytest.raises(NotFoundError):
        shardio.repair(path)
    assert main(["index", str(path), "--salvage", "--quiet"]) == 0
    assert read(str(tmp_path)) == [b"%d" % k for k in range(1, 9)]


def test_lists_without_a_copy_stay_lost_and_say_so(tmp_path):
    """A list of deleted rows is not made up; an earlier version can be opened, or a copy be named."""
    case = victim("none", "local", tmp_path)
    shardio.delete(case.url, [0])
    mirror = copy_of(case, tmp_path)
    older = {ref.key for ref in Catalog(connect(case.url)).load(2).manifest.lists}
    (ref,) = [i for i in Catalog(connect(case.url)).load().manifest.lists if i.key not in older]
    Path(case.url, ref.key).unlink()
    report = shardio.repair(case.url, dry_run=False)
    advice = "name a copy of the dataset with mirror=, or open an earlier version"
    assert [each.advice for each in report.unrepaired] == [advice]
    assert len(shardio.open(case.url, version=2)) == 100
    Path(mirror, ref.key).rename(tmp_path / "list")
    shutil.copy(Path(mirror, min(older)), Path(mirror, ref.key))  # a list of another version
    report = shardio.repair(case.url, dry_run=False, mirror=mirror)
    assert [each.advice for each in report.unrepaired] == [
        "the mirror does not have these bytes; name another copy of the dataset"
    ]
    (tmp_path / "list").rename(Path(mirror, ref.key))
    repaired(case.url, mirror=mirror)
    assert len(read(case.url)) == 99


@pytest.mark.slow
def test_a_manifest_of_the_mirror_that_is_another(tmp_path):
    """A manifest in the middle is taken only by the digest in its child."""
    case = victim("none", "local", tmp_path)
    mirror = copy_of(case, tmp_path)
    other = copy_of(case, tmp_path)
    for url in (mirror, other):
        Path(url, naming.manifest_key(2)).unlink()
        Path(url, naming.HINT_KEY).unlink()
        shardio.tag(url, f"x{url[-4:]}")
    case.put(naming.manifest_key(1), None)
    repaired(case.url, mirror=mirror)
    shardio.tag(case.url, "one")
    case.put(naming.manifest_key(2), None)
    report = shardio.repair(case.url, mirror=mirror, dry_run=False)
    (left,) = report.unrepaired
    assert left.advice == "the mirror's manifest of this version is another one"
    assert len(shardio.open(case.url)) == 100
    # One that is whole, of this dataset, and not the one that the next was built on.
    case.put(naming.manifest_key(2), Path(other, naming.manifest_key(2)).read_bytes())
    (left,) = shardio.repair(case.url, mirror=mirror).unrepaired
    assert left.advice == "the mirror's manifest of this version is another one"


@pytest.mark.slow
def test_a_folder_that_is_not_mounted(tmp_path):
    """Where every shard is gone none is given up, though a mirror has one that was lost before."""
    case = victim("none", "local", tmp_path)
    mirror = copy_of(case, tmp_path)
    first, *others = case.of_kind(".tfrecord")
    case.put(first, None)
    repaired(case.url)
    for key in others:
        Path(mirror, key).unlink()
    Path(case.url, "data").rename(tmp_path / "data")
    report = shardio.repair(case.url, mirror=mirror, dry_run=False)
    assert (report.ok, report.version, report.lost) == (False, None, ())
    assert {(each.how, each.url) for each in report.repaired} == {
        ("restored", case.store.url_of(key)) for key in (first, f"{first}.shardidx")
    }
    shutil.rmtree(Path(case.url, "data"))
    (tmp_path / "data").rename(Path(case.url, "data"))
    Path(case.url, "data").rename(tmp_path / "data")
    report = shardio.repair(case.url, dry_run=False)
    assert (report.ok, report.version, report.repaired, report.lost) == (False, None, (), ())
    assert "check that the data is where it was" in str(report.unrepaired[-1].advice)
    (tmp_path / "data").rename(Path(case.url, "data"))
    assert repaired(case.url).repaired == ()


def test_a_place_that_cannot_be_written(tmp_path, monkeypatch):
    case = victim("none", "local", tmp_path)
    key = case.of_kind(".shardidx")[0]
    case.put(key, None)
    copy = copy_of(case, tmp_path)
    monkeypatch.setattr("shardio.storage.LocalStore.read_only_reason", property(lambda _: "a test"))
    assert len(shardio.repair(case.url).repaired) == 1
    with pytest.raises(StorageError) as caught:
        shardio.repair(case.url, dry_run=False)
    assert caught.value.advice == "repair the dataset where it can be written, or a copy of it"
    monkeypatch.undo()
    repaired(copy)


@pytest.mark.parametrize("place", PLACES)
def test_adopted_shards_are_left_alone(place, tmp_path):
    """Shards of others are never written; their indexes come from a mirror, or as the advice says."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    for name in "ab":
        with shardio.ShardWriter(folder / f"{name}.tfrecord") as out:
            for k in range(30):
                out.write(b"%s %d" % (name.encode(), k))
        (folder / f"{name}.tfrecord.shardidx").unlink()
    url = fresh(place, tmp_path)
    assert shardio_indexer.adopt(folder, into=url).ok
    options: dict[str, Any] = {"allow_roots": {str(folder): {}}}
    records = list(shardio.open(url, decode=False, **options))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    case = Victim(url, records)
    mirror = copy_of(case, tmp_path)
    index = case.of_kind(".shardidx")[0]
    case.put(index, None)
    address = shardio.Address(url, **options)
    report = shardio.repair(address, dry_run=False)
    assert not report.ok
    assert "`shardio adopt URL --update`" in str(report.unrepaired[0].advice)
    assert shardio.repair(address, dry_run=False, mirror=mirror).ok
    assert list(shardio.open(url, decode=False, **options)) == records
    case.put(index, None)
    assert shardio_indexer.adopt(folder, into=url, update=True).ok
    assert list(shardio.open(url, decode=False, **options)) == records
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    path = folder / "a.tfrecord"
    path.write_bytes(flipped(before["a.tfrecord"], 8 * 500))
    with pytest.raises(ShardioError) as caught:
        list(shardio.open(url, decode=False, **options))
    # Readers and verify do not advise what repair does not do.
    found = shardio.verify(address).findings[0]
    assert "`shardio adopt URL --update`" in str(found.advice)
    assert "shardio repair" not in f"{caught.value.advice} {found.advice}"
    report = shardio.repair(address, dry_run=False, mirror=mirror)
    assert (report.ok, report.version) == (False, None)
    assert "shardio does not own this shard" in str(report.unrepaired[0].advice)
    assert path.read_bytes() == flipped(before["a.tfrecord"], 8 * 500)
    path.write_bytes(before["a.tfrecord"])
    assert shardio_indexer.adopt(folder, into=url, update=True).ok
    assert shardio.repair(address).ok


class Broken(Executor):
    """An executor whose workers are gone."""

    def submit(self, *_arguments: object, **_options: object) -> Future[Any]:
        raise BrokenExecutor("no worker is left")


@pytest.mark.slow
def test_processes(tmp_path):
    """Many shards are looked at in processes; a pool that breaks is an error, and what it did is kept."""
    url = fresh("local", tmp_path)
    with shardio.DatasetWriter(url, shard_bytes=200, block_bytes=100) as out:
        for k in range(2000):
            out.write(b"record %d" % k)
    case = Victim(url, [b"record %d" % k for k in range(2000)])
    for key in case.of_kind(".shardidx")[::3]:
        case.put(key, None)
    with pytest.raises(StorageError) as caught:
        shardio.repair(url, dry_run=False, executor=Broken())
    assert caught.value.advice == "it may have been out of memory; run it again"
    states: list[Any] = []
    report = shardio.repair(url, dry_run=False, workers=2, progress=states.append)
    assert report.ok
    assert len(report.repaired) == len(case.of_kind(".shardidx")[::3])
    assert states[-1].done == states[-1].total > 0
    assert read(url) == case.payloads
    assert shardio.verify(url).ok


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.slow
def test_on_s3(mirrored, s3, tmp_path):
    case = victim("gzip", "s3", tmp_path)
    mirror = copy_of(case, tmp_path) if mirrored else None
    shards = case.of_kind(".tfrecord")
    case.put(shards[0] + ".shardidx", None)
    case.put(shards[1] + ".shardidx", b"damaged")
    case.put(shards[2], flipped(case.objects[shards[2]], 999))
    if mirrored:
        case.put(naming.manifest_key(2), b"damaged")
        case.put(case.of_kind(".list")[0], None)
    # The list that is gone may be the one that proves which manifest of the mirror is the latest.
    digest = shardio.open(mirror).digest if mirrored else None
    report = repaired(case.url, mirror=mirror, digest=digest)
    if mirrored:
        assert (read(case.url), report.lost) == (case.payloads, ())
    else:
        assert is_part(read(case.url), case.payloads)
        assert len(read(case.url)) == 100 - report.lost_records


@settings(max_examples=max(20, settings().max_examples // 10))
@given(data=st.data())
@pytest.mark.slow
def test_random_damage(data, tmp_path_factory):
    """Whatever happens to some objects: what repair leaves is part of what was written, in order."""
    tmp_path = tmp_path_factory.mktemp("random")
    case = victim(data.draw(st.sampled_from(COMPRESSIONS)), "local", tmp_path)
    mirror = copy_of(case, tmp_path) if data.draw(st.booleans()) else None
    # Names are random, and sizes with them: so objects are drawn by number, and places by their share.
    keys = [key for end in (".tfrecord", ".shardidx", ".list", ".manifest") for key in case.of_kind(end)]
    numbers = st.integers(0, 199)
    for number in data.draw(st.lists(numbers, min_size=1, max_size=4)):
        key = keys[number % len(keys)]
        good = case.objects[key]
        way = data.draw(st.sampled_from(["flip", "cut", "gone", "zeros", "swap", "noise"]))
        place = data.draw(st.integers(0, 999)) * len(good) // 1000
        if way == "flip":
            bad: bytes | None = flipped(good, 8 * place + place % 8)
        elif way == "cut":
            bad = good[:place]
        elif way == "gone":
            bad = None
        elif way == "zeros":
            bad = good[:place] + bytes(min(50, len(good) - place)) + good[place + 50 :]
        elif way == "swap":
            bad = case.objects[keys[data.draw(numbers) % len(keys)]]
        else:
            bad = good[:place] + random.Random(place).randbytes(20) + good[place + 20 :]
        case.put(key, bad)
    report = shardio.repair(case.url, mirror=mirror, dry_run=False, workers=1)
    if report.ok:
        assert shardio.verify(case.url).ok
    with contextlib.suppress(ShardioError):
        left = read(case.url)
        assert is_part(left, case.payloads)
        if report.ok and report.repaired:
            assert len(left) == 100 - report.lost_records
        if mirror is not None and report.ok:
            assert left == case.payloads


def test_a_mirror_that_does_not_answer(tmp_path):
    """An outage of the mirror is an error, and no reason to give a record up."""
    case = victim("none", "local", tmp_path)
    mirror = copy_of(case, tmp_path)
    keys = [case.of_kind(".tfrecord")[1], case.of_kind(".shardidx")[0]]
    for key in keys:
        case.put(key, None)

    def outage(verb: str, key: str) -> str:
        # That it is missing here is found out; what the mirror has of it is not.
        seen.append(key)
        return "before" if verb == "open" and key == keys[0] and seen.count(key) > 1 else ""

    seen: list[str] = []
    with faulty(outage), pytest.raises(StorageError):
        shardio.repair(case.url, mirror=mirror, dry_run=False, workers=1)
    assert shardio.open(case.url).version == 2
    repaired(case.url, mirror=mirror)
    assert read(case.url) == case.payloads


def test_a_shard_that_does_not_answer(tmp_path):
    """What cannot be looked at is neither whole nor lost: it is listed, and stays as it is."""
    case = victim("none", "local", tmp_path)
    shard = case.of_kind(".tfrecord")[1]
    with faulty(lambda _, key: "before" if key == shard else ""):
        report = shardio.repair(case.url, dry_run=False, workers=1)
    assert [(each.kind, each.shard) for each in report.unrepaired] == [("unreadable", shard)]
    assert (report.repaired, report.lost) == ((), ())
    assert not report.ok
    assert read(case.url) == case.payloads


def test_the_command(tmp_path, capsys):
    """A dry run unless told; exit code 1 while there is damage; one JSON document."""
    case = victim("none", "local", tmp_path)
    key = case.of_kind(".tfrecord")[1]
    case.put(key, flipped(case.objects[key], 500))
    assert main(["repair", case.url, "-q"]) == 1
    said = capsys.readouterr().out
    assert "salvaged: shard" in said
    assert "nothing was changed; --yes does it" in said
    assert main(["repair", case.url, "--yes", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["version"], report["lost_records"]) == (True, 3, 1)
    assert report["lost"][0]["row_stop"] - report["lost"][0]["row"] == 1
    assert main(["verify", case.url, "-q"]) == 0
    assert main(["repair", case.url, "-q"]) == 0
    assert "there was nothing to do" in capsys.readouterr().out
