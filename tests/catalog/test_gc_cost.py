"""What garbage collection costs grows with the objects, and no faster."""

from __future__ import annotations

import shardio
from shardio.catalog import Catalog
from shardio.catalog._gc import _Removals


class Counted(set[str]):
    """A set that counts how often it is copied into a union."""

    unions = 0

    def __or__(self, other):
        Counted.unions += 1
        return set(self) | other


def test_what_is_named_is_put_together_once(tmp_path, monkeypatch):
    with shardio.DatasetWriter(tmp_path / "d", schema={"n": "int64"}, shards=30) as out:
        out.write_many({"n": n} for n in range(30))
    (tmp_path / "d" / "data" / "train-left-00000-20b0268ae6a3749e-00007.tfrecord").write_bytes(b"left")
    found = _Removals._live_and_dead

    def counted(removals):
        live, dead = found(removals)
        return Counted(live), dead

    monkeypatch.setattr(_Removals, "_live_and_dead", counted)
    report = shardio.gc(tmp_path / "d")
    assert report.unclaimed == {"left": 4}
    assert Counted.unions <= 2  # it was one for each object


def test_what_was_collected_is_not_read_again(tmp_path, monkeypatch):
    for mode, count in (("create", 1), ("append", 29)):
        for n in range(count):
            with shardio.DatasetWriter(
                tmp_path / "d", schema={"n": "int64"}, mode=mode, session=f"{mode}{n}"
            ) as out:
                out.write({"n": n})
    shardio.gc(tmp_path / "d", keep=3, dry_run=False)
    with shardio.DatasetWriter(tmp_path / "d", mode="append") as out:
        out.write({"n": 30})
    left = tmp_path / "d" / "data" / "train-append7-00000-20b0268ae6a3749e-00007.tfrecord"
    left.write_bytes(b"left")
    read: set[int] = set()
    one = Catalog._read

    def noted(catalog, number):
        read.add(number)
        return one(catalog, number)

    monkeypatch.setattr(Catalog, "_read", noted)
    report = shardio.gc(tmp_path / "d")
    assert [info.key for info in report.doomed] == [f"data/{left.name}"], "it is of a session that was merged"
    assert report.expired_versions == tuple(range(1, 28))
    assert read == {28, 29, 30, 31, 32, 33}
