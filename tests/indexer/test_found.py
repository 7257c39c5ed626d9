"""What a search takes for a shard, what it leaves out, and what is gone: all of it is counted and listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardio
import shardio_indexer
from shardio.sources import format_of_name
from shardio.storage import connect
from tests.indexer.shards import main, tar, tfrecord
from tests.servers import s3

SHARDS = [
    "a.tfrecord",
    "a.tfrecords",
    "a.tfrec",
    "a.TFRecord.gz",
    "a.tfrecord-00000-of-00002",
    "tfrecord",
    "a-tfrecord-00001-of-00010",
    "mnist-train.tfrecord-00000-of-00001.gz",
    "part-r-00001.tfrecord",
    "a.tfrecord.00007",
    "tfrecord_train-00000-of-00004",
    "a.record",
    "a.recordio",
    "train.tfrecord_0",
    "data_tfrecord-1-of-2",
    "a.tar.gz",
]
OTHERS = [
    "a.tfrecord.idx",
    "a.tfrecord.md5",
    "a.tfrecord.json",
    "a.tfrecord.crc",
    "tfrecord_info.json",
    "a.tfrecord.sha256",
    "make_tfrecords.py",
    "tfrecords.md",
    "a.tfrecord.bak",
    "notes",
    "model-00000-of-00002.safetensors",
    "x.ckpt.data-00000-of-00001",
    "_SUCCESS",
]


@pytest.mark.parametrize("name", SHARDS)
def test_names_of_shards(name) -> None:
    assert format_of_name(name) in ("tfrecord", "tar")


@pytest.mark.parametrize("name", OTHERS)
def test_names_that_say_nothing(name) -> None:
    assert format_of_name(name) is None


def test_what_is_no_shard_is_listed(tmp_path) -> None:
    """A folder takes its shards; everything else is counted and listed, and is not a failure."""
    wanted = {f"{name}": tfrecord([name.encode()]) for name in SHARDS if not name.endswith("gz")}
    for name, data in wanted.items():
        (tmp_path / name).write_bytes(data)
    for name in (*OTHERS, ".hidden.tfrecord", "text.txt"):
        (tmp_path / name).write_bytes(b"something else")
    report = shardio_indexer.adopt(tmp_path, split="train")
    assert (report.ok, report.adopted) == (True, len(wanted))
    assert sorted(report.ignored) == sorted(
        f"{tmp_path}/{name}" for name in (*OTHERS, ".hidden.tfrecord", "text.txt")
    )
    assert report.to_dict()["ignored"] == list(report.ignored)


def test_indexes_for_dali_are_not_taken_for_shards(tmp_path, capsys) -> None:
    (tmp_path / "x.tfrecord").write_bytes(tfrecord([b"a"]))
    (tmp_path / "x.tfrecord.md5").write_bytes(b"0" * 32)
    assert main([str(tmp_path)]) == 0
    assert main([str(tmp_path), "--export", "dali"]) == 0
    assert main([str(tmp_path)]) == 0
    err = capsys.readouterr().err
    assert "2 files of another kind or split ignored" in err
    assert "x.tfrecord.idx" in err


@pytest.mark.parametrize("how", ["folder", "pattern", "names"])
@pytest.mark.parametrize("beside", [True, False])
def test_shards_that_are_gone_are_said_and_can_be_dropped(tmp_path, capsys, how, beside) -> None:
    """A shard of the dataset that is no longer there is exit code 1, until it is restored or dropped."""
    data = tmp_path / "data"
    data.mkdir()
    for n in range(3):
        (data / f"x{n}.tfrecord").write_bytes(tfrecord([b"%d" % n, b"y"]))
    (data / "other.tar").write_bytes(tar([("a.txt", b"1")]))
    into = ["--into", str(data if beside else tmp_path / "into")]
    place = data if beside else tmp_path / "into"
    options = {} if beside else {"allow_roots": {str(data): {}}}
    found = {
        "folder": [str(data), "--split", "train=*.tfrecord"],
        "pattern": [f"{data}/*.tfrecord"],
        "names": [f"{data}/x{n}.tfrecord" for n in range(3)],
    }[how]
    assert main([*found, *into]) == 0
    gone = (data / "x1.tfrecord").read_bytes()
    (data / "x1.tfrecord").unlink()
    for more in ([], ["--update"]):
        assert main([*found, *into, *more]) == 1
        out = capsys.readouterr().out
        assert f"{data}/x1.tfrecord" in out
        assert "--drop-missing" in out
        assert "refused" not in out
    assert not shardio.verify(shardio.Address(place, **options)).ok
    assert main([*found, *into, "--drop-missing", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["dropped"], report["missing"], report["version"]) == ([f"{data}/x1.tfrecord"], [], 2)
    assert report["splits"] == {"train": 4}
    assert list(shardio.open(place, **options)) == [b"0", b"y", b"2", b"y"]
    assert shardio.verify(shardio.Address(place, **options)).ok
    if how != "names":
        assert main([*found, *into]) == 0
    # Put back, it is a new shard.
    (data / "x1.tfrecord").write_bytes(gone)
    assert main([*found, *into]) == 0
    assert len(shardio.open(place, **options)) == 6


def test_what_was_not_looked_for_is_not_missing(tmp_path) -> None:
    """A shard adopted by name, or below another folder, is not gone because a search does not find it."""
    for name in ("a/x.tfrecord", "b/x.tfrecord", "a/words.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(tfrecord([b"a"]) if name.endswith("d") else b"a\n")
    names = [f"{tmp_path}/a/x.tfrecord", f"{tmp_path}/b/x.tfrecord", f"{tmp_path}/a/words.txt"]
    splits = {"text": "*.txt", "train": "*"}
    assert shardio_indexer.adopt(names, split=splits).ok
    (tmp_path / "b" / "x.tfrecord").unlink()
    into = tmp_path
    assert shardio_indexer.adopt(tmp_path / "a", into=into, split=splits, drop_missing=True).dropped == ()
    assert shardio_indexer.adopt(f"{tmp_path}/a/*", into=into, split=splits).missing == ()
    assert shardio_indexer.adopt(tmp_path, split=splits).missing == (f"{tmp_path}/b/x.tfrecord",)


@pytest.mark.parametrize(
    ("how", "beside"),
    [
        *((how, beside) for how in ("folder", "pattern", "names") for beside in (True, False)),
        ("folder that is gone", False),
    ],
)
def test_a_dataset_whose_shards_are_all_gone(tmp_path, capsys, how, beside) -> None:
    """Nothing is found, and the dataset says what is gone; it can be dropped, and others be adopted."""
    data = tmp_path / "data"
    data.mkdir()
    for n in range(2):
        (data / f"x{n}.tfrecord").write_bytes(tfrecord([b"%d" % n]))
    into = ["--into", str(data if beside else tmp_path / "into")]
    place = data if beside else tmp_path / "into"
    options = {} if beside else {"allow_roots": {str(data): {}}}
    names = [f"{data}/x{n}.tfrecord" for n in range(2)]
    found = {"pattern": [f"{data}/*.tfrecord"], "names": names}.get(how, [str(data)])
    assert main([*found, *into, "--no-schema"]) == 0
    for name in names:
        Path(name).unlink()
    if how == "folder that is gone":
        data.rmdir()
    assert main([*found, *into]) == 1
    out = capsys.readouterr().out
    assert all(name in out for name in names)
    assert "--drop-missing" in out
    assert "refused" not in out
    assert main([f"{data}/y*.tfrecord", *into, "--drop-missing"]) == 3
    assert "the pattern matches nothing" in capsys.readouterr().err
    assert main([*found, *into, "--drop-missing", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["dropped"], report["missing"], report["records"]) == (names, [], 0)
    assert list(shardio.open(place, version=2, **options)) == []
    assert shardio.verify(shardio.Address(place, **options)).ok
    assert main([*found, *into, "--drop-missing"]) == 3
    data.mkdir(exist_ok=True)
    (data / "x0.tfrecord").write_bytes(tfrecord([b"new"]))
    assert main([*(names[:1] if how == "names" else found), *into, "--no-schema"]) == 0
    assert list(shardio.open(place, **options)) == [b"new"]


def test_an_empty_bucket_says_nothing_of_other_buckets(moto_endpoint, tmp_path) -> None:
    options = s3.options_for(moto_endpoint)
    full, empty = (s3.make_bucket(moto_endpoint) for _ in range(2))
    connect(f"s3://{full}", storage_options=options).put_if_absent("x.tfrecord", tfrecord([b"a"]))
    into = {"into": tmp_path / "into", "storage_options": options, "workers": 1}
    assert shardio_indexer.adopt(f"s3://{full}/x.tfrecord", **into).ok
    (tmp_path / "y.tfrecord").write_bytes(tfrecord([b"b"]))
    both = [str(tmp_path / "y.tfrecord"), f"s3://{empty}"]
    report = shardio_indexer.adopt(both, drop_missing=True, **into)
    assert report.dropped == report.missing == ()
    assert [refusal.url for refusal in report.refused] == [f"s3://{empty}"]
