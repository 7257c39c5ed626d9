"""info, head, get, log: what people and programs are told about datasets and shards."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

import shardio
from shardio import codecs, kernels
from shardio.storage import BlockCache, CacheOptions
from tests.cli.conftest import Run, facts_in, jpeg, shard_of


def test_info_of_a_dataset(run: Run, birds: Path) -> None:
    ended = run("info", birds)
    assert ended.code == 0
    for words in (
        str(birds),
        "records          30",
        "zstd",
        '{"source": "made"}',
        "float32[3]",
        "sha256:",
    ):
        assert words in ended.out
    facts = run("info", birds, "--json").document
    assert facts["kind"] == "dataset"
    assert facts["splits"]["train"]["records"] == 20
    assert facts["compression"] == ["zstd"]
    assert [row["name"] for row in facts["schema"]] == ["image", "label", "name", "vector"]
    assert facts["digest"] == shardio.open(birds, "all").digest


def test_info_of_a_version(run: Run, birds: Path) -> None:
    with shardio.DatasetWriter(birds, mode="append") as out:
        out.write({"image": jpeg(1, 1), "label": 0, "name": "", "vector": [0, 0, 0]}, split="train")
    assert run("info", birds, "--json").document["version"] == 2
    assert facts_in(run("info", birds, "--version", 1).out) >= {("version", "1"), ("latest version", "2")}
    assert run("info", birds, "--version", 3).code == 3


def test_info_of_a_dataset_without_records(run: Run, tmp_path: Path) -> None:
    with shardio.DatasetWriter(tmp_path / "ds"):
        pass
    assert "no schema: records are bytes" in run("info", tmp_path / "ds").out
    assert run("head", tmp_path / "ds").code == 0


def test_info_of_a_shard(run: Run, plain: Path) -> None:
    shard = shard_of(plain)
    facts = run("info", shard, "--json").document
    assert (facts["kind"], facts["records"], facts["framing"]) == ("shard", 10, "tfrecord")
    assert "records" in run("info", shard).out
    shard.with_name(shard.name + ".shardidx").unlink()
    assert "it can only be read in order" in run("info", shard).out
    assert run("info", shard, "--version", 1).code == 2


def test_info_of_the_system(run: Run) -> None:
    facts = run("info", "--system", "--json").document
    assert facts["shardio"] == shardio.__version__
    assert facts["jpeg_decoder"] in ("simplejpeg", "Pillow")
    assert facts["numpy"]
    assert shardio.__version__ in run("info", "--system").out


def test_the_cache(run: Run, tmp_path: Path) -> None:
    cache = BlockCache(CacheOptions(tmp_path, max_bytes=1 << 20))
    cache.put("a block", b"x" * 1000)
    facts = run("info", "--cache", tmp_path, "--json").document
    assert facts["blocks"] == 1
    assert facts["cached_bytes"] >= 1000
    assert ("blocks", "1") in facts_in(run("cache", "clear", tmp_path).out)
    assert run("info", "--cache", tmp_path, "--json").document["blocks"] == 0
    assert run("cache", "clear", tmp_path, "--json").document["blocks"] == 0


def test_head_shows_every_split(run: Run, birds: Path) -> None:
    ended = run("head", birds, "-n", 2)
    assert ended.code == 0
    assert "test: 10 records" in ended.out
    assert "train: 20 records" in ended.out
    assert "image   JPEG 20x10, " in ended.out
    assert '"bird 0"' in ended.out
    assert "float32[3]  0 1 2" in ended.out
    records = run("head", birds, "-n", 2, "--json").document["records"]
    assert [(record["split"], record["position"]) for record in records] == [
        ("test", 0),
        ("test", 1),
        ("train", 0),
        ("train", 1),
    ]
    value = records[2]["value"]
    assert value["label"] == 0
    assert value["vector"] == [0.0, 1.0, 2.0]
    assert base64.b64decode(value["image"]["$base64"]) == jpeg(20, 10)


def test_head_of_one_split_and_some_features(run: Run, birds: Path) -> None:
    records = run("head", birds, "-n", 1, "--split", "test", "--features", "label,name", "--json").document
    assert records["records"] == [{"split": "test", "position": 0, "value": {"label": 2, "name": "bird 2"}}]
    assert run("head", birds, "--split", "nothing").code == 2
    assert len(run("head", birds, "-n", 0, "--json").document["records"]) == 0


def test_get(run: Run, birds: Path) -> None:
    ended = run("get", birds, 3, -1, "--split", "train")
    assert ended.code == 0
    assert "[3]  row 3 of" in ended.out
    assert "[19]" in ended.out
    document = run("get", birds, 3, 3, -1, "--split", "train", "--json").document
    assert [record["position"] for record in document["records"]] == [3, 3, 19]
    place = shardio.open(birds, "train").locate(3)
    assert {
        key: document["records"][0][key] for key in ("url", "shard", "row", "start", "stop")
    } == place._asdict()


def test_get_wants_one_split_and_positions_within(run: Run, birds: Path) -> None:
    ended = run("get", birds, 3)
    assert ended.code == 2
    assert "choose one with --split: test, train" in ended.err
    ended = run("get", birds, 20, "--split", "train")
    assert ended.code == 2
    assert "record 20 is out of range: there are 20" in ended.err


def test_get_raw_gives_the_address_and_the_bytes_in_the_file(run: Run, plain: Path) -> None:
    ended = run("get", plain, 7, "--raw")
    place = shardio.open(plain).locate(7)
    assert f"bytes [{place.start}, {place.stop}) of the object" in ended.out
    assert place.url in ended.out
    assert place.shard in ended.out
    assert f"{place.start + 12:08x}  72 65 63 6f 72 64 20 37" in ended.out
    assert "|record 7|" in ended.out
    document = run("get", plain, 7, "--raw", "--json").document
    assert base64.b64decode(document["records"][0]["value"]["$base64"]) == b"record 7"


def test_get_raw_cuts_long_records_unless_told(run: Run, tmp_path: Path) -> None:
    with shardio.DatasetWriter(tmp_path / "ds", compression="gzip") as out:
        out.write(bytes(1000))
    ended = run("get", tmp_path / "ds", 0, "--raw")
    assert "... 488 more bytes (--all shows them)" in ended.out
    assert "of its decoded block" in ended.out
    assert len(run("get", tmp_path / "ds", 0, "--raw", "--all").out.splitlines()) > 62


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A file that others wrote: Examples, without an index."""
    path = tmp_path / "x.tfrecord"
    records = [codecs.encode_example({"label": number, "name": f"n{number}"}) for number in range(6)]
    path.write_bytes(kernels.encode_frames(records)[0])
    return path


def test_a_file_without_an_index(run: Run, examples: Path) -> None:
    ended = run("head", examples, "-n", 2)
    assert ended.code == 0
    assert ended.err.startswith("note: ")
    assert "has no index" in ended.err
    assert "label  int64[1]  1" in ended.out
    assert run("head", examples, "-n", 2, "-q").err == ""
    records = run("get", examples, 4, 1, 4, "--json").document["records"]
    assert [record["value"]["label"] for record in records] == [[4], [1], [4]]
    assert run("get", examples, 6).code == 2
    assert run("get", examples, -1).code == 2
    assert "|" in run("get", examples, 1, "--raw").out


def test_records_without_a_schema_are_shown_as_what_they_are(run: Run, examples: Path, plain: Path) -> None:
    value = run("head", examples, "-n", 1, "--as", "bytes", "--json").document["records"][0]["value"]
    assert "$base64" in value
    assert run("head", plain, "-n", 1, "--json").document["records"][0]["value"] == "record 0"
    assert run("head", plain, "-n", 1, "--as", "bytes", "--json").document["records"][0]["value"] == {
        "$base64": base64.b64encode(b"record 0").decode()
    }
    assert run("head", plain, "-n", 1, "--as", "text", "--json").document["records"][0]["value"] == "record 0"
    assert run("head", plain, "-n", 1, "--as", "example").code == 1


def test_a_shard_has_no_split_or_version(run: Run, plain: Path) -> None:
    assert run("head", shard_of(plain)).code == 0
    assert run("head", shard_of(plain), "--split", "train").code == 2
    assert run("get", shard_of(plain), 2, "--json").document["records"][0]["value"] == "record 2"


def test_log(run: Run, plain: Path) -> None:
    with shardio.DatasetWriter(plain, mode="append", session="second") as out:
        out.write(b"more")
    ended = run("log", plain)
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert lines[0].split()[0] == "version"
    assert [line.split()[0] for line in lines[1:]] == ["2", "1"]
    versions = run("log", plain, "--json").document["versions"]
    assert [version["operation"] for version in versions] == ["append", "create"]
    assert versions[0]["sessions"] == ["second"]
    assert versions[0]["splits"]["train"]["records"] == 11
    assert len(run("log", plain, "-n", 1, "--json").document["versions"]) == 1
    assert run("log", plain / "data").code == 3


def test_storage_options_and_memory(run: Run) -> None:
    with shardio.DatasetWriter("memory://cli-test") as out:
        out.write(b"here")
    assert run("info", "memory://cli-test").code == 0
    assert run("verify", "memory://cli-test").code == 0
    document = run("get", "memory://cli-test", 0, "--json").document
    assert document["records"][0]["value"] == "here"
