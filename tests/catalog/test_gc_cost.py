"""What garbage collection costs grows with the objects, and no faster."""

from __future__ import annotations

import pytest

import shardio
from shardio.catalog import Catalog
from shardio.metadata import naming


@pytest.mark.slow
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
    name = naming.DataKey("train", naming.session_id("append7"), 0, "k3v7q2mh", 7)
    left = tmp_path / "d" / name.key()
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
