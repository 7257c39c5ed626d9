"""Which files count: one rule for names, and the lists of folders, for adopt and convert."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardio
from shardio.errors import FormatError, NotFoundError, ShardioError
from tests.indexer.shards import tar, tfrecord
from tests.suites.errors import refused

EXAMPLE = shardio.codecs.encode_example({"n": 1})
SHARD = tfrecord([EXAMPLE])
LINE = b'{"n": 1}\n'
COMPRESSED = gzip.compress(LINE)


def put(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def table(path: Path, values: list[int]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": values}), path)
    return path


def convert(source: object, out: Path, **options):
    report = shardio.convert_dataset(source, out, workers=1, **options)
    return dict(report.records), report


def adopt(source: object, out: Path, **options):
    report = shardio.adopt(source, into=out, workers=1, **options)
    return dict(report.splits), report


TAKES = pytest.mark.parametrize("take", [convert, adopt])

NO_DATA = [
    "_temporary/0/task_1/part-00000",
    "_delta_index/x",
    ".cache/x",
    "__MACOSX/x",
    "@eaDir/x",
    "_x",
    ".x",
    "x.tmp/y",
    "run.incomplete/y",
]
NO_DATA_ENDINGS = [
    *(".tmp", ".tmp.1234", ".gstmp", "~", ".bak", ".old", ".partial", ".crdownload", ".lock"),
    "._COPYING_",
]


@TAKES
@pytest.mark.parametrize("ending", [".tfrecord", ".jsonl"])
def test_names_that_are_not_data(tmp_path, monkeypatch, take, ending) -> None:
    """Hidden, temporary and backup names are listed and not taken; a folder `_key=value` is one of keys."""
    data, kind = (SHARD, "tfrecord") if ending == ".tfrecord" else (LINE, "jsonl")
    folder = tmp_path / "data"
    put(folder / f"a{ending}", data)
    put(folder / f"_part=1/b{ending}", data)
    for name in NO_DATA:
        put(folder / f"{name}{ending}", data)
    for bad in NO_DATA_ENDINGS:
        put(folder / f"a{ending}{bad}", data)
    put(folder / "events.out.tfevents.1700000000.host.1.0", tfrecord([b"event"]))
    put(folder / "README.md", "words")
    put(folder / "labels.csv", "id,label\n1,cat\n")
    splits, report = take(folder, tmp_path / "out")
    assert splits == {"train": 2}
    assert len(report.ignored) == len(NO_DATA) + len(NO_DATA_ENDINGS) + 3
    # What is named is meant.
    name = f"a{ending}.bak"
    options = {"kind": kind} if take is convert else {"scan": shardio_scan(kind)}
    assert take(folder / name, tmp_path / "named", **options)[0] == {"train": 1}
    # A pattern that spells a hidden name means it, also below the current folder.
    monkeypatch.chdir(folder)
    for place, pattern in (("pattern", f"{folder}/_x*"), ("relative", "_x*")):
        assert take(pattern, tmp_path / place, **options)[0] == {"train": 1}


def shardio_scan(kind: str):
    import shardio_indexer

    return shardio_indexer.ScanOptions(format=kind)


@TAKES
@pytest.mark.parametrize(
    "name",
    ["part-r-00000", "part-r-00000.gz", "train-00000-of-00001", "data.00001", "records"],
)
def test_tfrecord_without_an_ending(tmp_path, take, name) -> None:
    put(tmp_path / "data" / name, gzip.compress(SHARD) if name.endswith(".gz") else SHARD)
    for other in ("README", "LICENSE", "notes", "labels.csv", "_SUCCESS"):
        put(tmp_path / "data" / other, "path,label\nsome words that are not records,1\n")
    splits, report = take(tmp_path / "data", tmp_path / "out")
    assert splits == {"train": 1}
    assert sorted(Path(each).name for each in report.ignored) == sorted(
        ["README", "LICENSE", "notes", "labels.csv", "_SUCCESS"]
    )


@TAKES
@pytest.mark.parametrize(
    "ending",
    [
        *("jsonl", "ndjson", "jsonlines", "json.gz", "jsonl.gz", "jsonlines.gz", "ndjson.gzip"),
        *("jsonl.zst", "jsonl.zstd", "json.zst"),
    ],
)
def test_endings_of_json_lines(tmp_path, take, ending) -> None:
    import zstandard

    data = LINE
    if "gz" in ending:
        data = gzip.compress(LINE)
    elif "zst" in ending:
        data = zstandard.compress(LINE)
    put(tmp_path / "data" / f"c4-train.00000-of-01024.{ending}", data)
    splits, report = take(tmp_path / "data", tmp_path / "out")
    assert splits == {"train": 1}
    assert any("00001-of-01024" in note for note in report.notes)


@TAKES
@pytest.mark.parametrize("copy", ["a.jsonl.gz", "a (1).jsonl", "a - Copy.jsonl", "a (copy).jsonl"])
def test_a_file_beside_its_copy_is_noted(tmp_path, take, copy) -> None:
    put(tmp_path / "data" / "a.jsonl", LINE)
    put(tmp_path / "data" / copy, COMPRESSED if copy.endswith(".gz") else LINE)
    _, report = take(tmp_path / "data", tmp_path / "out")
    (note,) = [note for note in report.notes if "is beside it and may be its copy" in note]
    assert copy in note


@TAKES
@pytest.mark.parametrize("tail", [b"\0", b"\0" * 70_000, b"\0" * 512 + COMPRESSED])
def test_zeros_behind_gzip_are_padding(tmp_path, take, tail) -> None:
    """Tapes and block devices leave them; gzip and Python read such files."""
    put(tmp_path / "data" / "a.jsonl.gz", COMPRESSED + tail)
    rows = gzip.decompress(COMPRESSED + tail).count(b"\n")
    assert take(tmp_path / "data", tmp_path / "out")[0] == {"train": rows}
    ds = shardio.open(tmp_path / "out", allow_roots={str(tmp_path / "data"): {}})
    assert [int(value["n"]) for value in ds] == [1] * rows
    put(tmp_path / "bad" / "a.jsonl.gz", COMPRESSED + b"\0junk")
    if take is convert:
        with pytest.raises(FormatError):
            take(tmp_path / "bad", tmp_path / "refused")


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_tables_without_rows(tmp_path, ending) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    schema = pa.schema({"n": pa.int64()})
    if ending == "parquet":
        with pq.ParquetWriter(folder / "a.parquet", schema):
            pass
    else:
        with pa.ipc.new_file(folder / "a.arrow", schema):
            pass
    splits, report = convert(folder, tmp_path / "alone")
    assert (splits, list(report.schema)) == ({}, ["n"])
    table(folder / "b.parquet", [1, 2])
    put(folder / f"c.{ending}", b"")
    splits, report = convert(folder, tmp_path / "out")
    assert splits == {"train": 2}
    assert any(f"c.{ending}: empty" in note for note in report.notes)


# Lists of their own.


def delta(folder: Path, *versions: list[dict]) -> None:
    head = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": {"id": "x"}}]
    for number, actions in enumerate(versions):
        lines = "\n".join(map(json.dumps, [*(head if not number else []), *actions]))
        put(folder / "_delta_log" / f"{number:020}.json", lines)


def add(name: str, **more) -> dict:
    return {"add": {"path": name, "partitionValues": {}, **more}}


def values(url: Path) -> list[int]:
    return sorted(int(value["n"]) for value in shardio.open(url, "all"))


def test_a_delta_table_is_what_its_log_says(tmp_path) -> None:
    folder = tmp_path / "above" / "t"
    table(folder / "a.parquet", [1, 2, 3])
    table(folder / "b c.parquet", [1, 3])
    table(folder / "_change_data" / "cdc.parquet", [2])
    delta(folder, [add("a.parquet")], [{"remove": {"path": "a.parquet"}}, add("b%20c.parquet")])
    for number, source in enumerate((folder, tmp_path / "above")):
        _, report = convert(source, tmp_path / f"out{number}")
        assert values(tmp_path / f"out{number}") == [1, 3]
    assert any("a.parquet: _delta_log/ does not name them" in note for note in report.notes)
    for number, pattern in enumerate(("*", "[ab]*")):
        convert(f"{folder}/{pattern}.parquet", tmp_path / f"pattern{number}")
        assert values(tmp_path / f"pattern{number}") == [1, 3]
    # A checkpoint stands for all commits up to it.
    (folder / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(FormatError):
        convert(folder, tmp_path / "torn")
    rows = [{"add": {"path": "b%20c.parquet", "size": 1}}, {"remove": {"path": "a.parquet"}}]
    pq.write_table(pa.Table.from_pylist(rows), folder / "_delta_log" / f"{1:020}.checkpoint.parquet")
    convert(folder, tmp_path / "checkpoint")
    assert values(tmp_path / "checkpoint") == [1, 3]
    (folder / "b c.parquet").unlink()
    with pytest.raises(FormatError):
        convert(folder, tmp_path / "gone")
    # One partition alone is a part of the table.
    table(tmp_path / "p" / "year=1" / "a.parquet", [1])
    delta(tmp_path / "p", [{"add": {"path": "year=1/a.parquet", "partitionValues": {"year": "1"}}}])
    with pytest.raises(FormatError):
        convert(tmp_path / "p" / "year=1", tmp_path / "part")
    convert(tmp_path / "p", tmp_path / "parts")
    assert [int(value["year"]) for value in shardio.open(tmp_path / "parts")] == [1]


@pytest.mark.parametrize(
    "actions",
    [
        [add("a.parquet", deletionVector={"storageType": "u"})],
        [{"protocol": {"minReaderVersion": 3, "readerFeatures": ["deletionVectors"]}}, add("a.parquet")],
        [{"metaData": {"configuration": {"delta.columnMapping.mode": "name"}}}, add("a.parquet")],
        [add("s3://elsewhere/a.parquet")],
        [{"add": {"path": "a.parquet", "partitionValues": {"year": "2020"}}}],
    ],
    ids=["deletion vector", "feature", "column mapping", "clone", "partition"],
)
def test_a_delta_table_that_needs_its_own_reader_is_refused(tmp_path, actions) -> None:
    table(tmp_path / "t" / "a.parquet", [1])
    delta(tmp_path / "t", actions)
    with pytest.raises(FormatError) as caught:
        convert(tmp_path / "t", tmp_path / "out")
    assert "DeltaTable" in caught.value.advice


@TAKES
@pytest.mark.parametrize(
    "marker",
    [
        "_spark_metadata/0",
        ".hoodie/hoodie.properties",
        "metadata/00000-x.metadata.json",
    ],
)
def test_tables_whose_metadata_say_which_files_count_are_refused(tmp_path, take, marker) -> None:
    """Also a table below the folder, a pattern, and one partition alone; a file that is named is meant."""
    put(tmp_path / "t" / "year=1" / "a.jsonl", LINE)
    put(tmp_path / "t" / "b.jsonl", LINE)
    put(tmp_path / "t" / marker, "")
    for place in ("t", "", "t/*.jsonl", "t/b*", "t/year=1"):
        with pytest.raises(FormatError) as caught:
            take(f"{tmp_path}/{place}", tmp_path / "out")
        assert caught.value.advice
    assert take(tmp_path / "t" / "b.jsonl", tmp_path / "named")[0] == {"train": 1}


def test_saved_datasets_are_what_their_state_says(tmp_path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    made = datasets.DatasetDict(
        {name: datasets.Dataset.from_dict({"n": [1, 2]}) for name in ("de", "train_small", "train")}
    )
    made.save_to_disk(tmp_path / "dd")
    again = datasets.load_from_disk(tmp_path / "dd")["de"]
    again.map(lambda row: {"n": row["n"] * 100})
    assert len(list((tmp_path / "dd" / "de").glob("cache-*.arrow"))) == 1
    assert convert(tmp_path / "dd", tmp_path / "out")[0] == {"de": 2, "train": 2, "train_small": 2}
    assert convert(tmp_path / "dd" / "de", tmp_path / "one")[0] == {"train": 2}
    assert values(tmp_path / "one") == [1, 2]
    state = tmp_path / "dd" / "de" / "state.json"
    indices = {"_indices_files": [{"filename": "x.arrow"}]}
    state.write_text(json.dumps({**json.loads(state.read_text()), **indices}))
    with pytest.raises(FormatError):
        convert(tmp_path / "dd", tmp_path / "indices")


CARD = """---
configs:
- config_name: default
  data_files:
  - split: small
    path: data/small-*
  - split: de
    path: ["data/de-*"]
---
# Words
"""


@TAKES
def test_the_card_of_a_repository(tmp_path, take) -> None:
    for name in ("data/small-0.jsonl", "data/de-0.jsonl", "other/x.jsonl"):
        put(tmp_path / "r" / name, LINE)
    put(tmp_path / "r" / "README.md", CARD)
    splits, report = take(tmp_path / "r", tmp_path / "out")
    assert splits == {"small": 1, "de": 1}
    assert any("other/x.jsonl: README.md does not name them" in note for note in report.notes)
    put(tmp_path / "r" / "README.md", CARD.replace("---\n#", "- config_name: en\n  data_dir: other\n---\n#"))
    with pytest.raises(FormatError) as caught:
        take(tmp_path / "r", tmp_path / "several")
    assert "default, en" in str(caught.value)
    assert take(tmp_path / "r" / "other", tmp_path / "one")[0] == {"train": 1}
    infos = json.dumps({name: {"splits": {}} for name in ("en", "de")})
    put(tmp_path / "infos" / "dataset_infos.json", infos)
    put(tmp_path / "infos" / "en" / "a.jsonl", LINE)
    with pytest.raises(FormatError):
        take(tmp_path / "infos", tmp_path / "several")
    put(tmp_path / "r" / "README.md", "---\nlicense: mit\n---\nwords")
    assert sum(take(tmp_path / "r" / "data", tmp_path / "all")[0].values()) == 2


@TAKES
def test_the_splits_of_energon(tmp_path, take) -> None:
    for number in range(4):
        put(tmp_path / "e" / f"shard_{number}.tar", tar([("a.txt", b"1")]))
    parts = "  train: ['shard_{0..1}.tar']\n  hard: [shard_2.tar, shard_3.tar]\n"
    text = f"exclude: [shard_3.tar]\nsplit_parts:\n{parts}"
    put(tmp_path / "e" / ".nv-meta" / "split.yaml", text)
    assert take(tmp_path / "e", tmp_path / "out")[0] == {"train": 2, "hard": 1}
    put(tmp_path / "e" / ".nv-meta" / "split.yaml", text.replace("shard_3.tar]", "shard_3.tar/a]", 1))
    with pytest.raises(FormatError):
        take(tmp_path / "e", tmp_path / "samples")


# MDS.


def mds(folder: Path, samples: int, **export) -> None:
    with shardio.DatasetWriter(folder.parent / f"{folder.name}-ds", schema={"n": "int64"}) as out:
        for n in range(samples):
            out.write({"n": n})
    shardio.export_dataset(
        folder.parent / f"{folder.name}-ds", folder.parent / "mds-out", kind="mds", **export
    )
    (folder.parent / "mds-out" / "train").rename(folder)
    (folder.parent / "mds-out").rmdir()


def test_merged_indexes_of_mds_name_each_shard_once(tmp_path) -> None:
    shards = []
    for name in ("part.0", "part.1"):
        mds(tmp_path / "m" / name, 3)
        for shard in json.loads((tmp_path / "m" / name / "index.json").read_text())["shards"]:
            shard["raw_data"]["basename"] = f"{name}/{shard['raw_data']['basename']}"
            shards.append(shard)
    for leftover in (tmp_path / "m").glob("*-ds"):
        leftover.rename(tmp_path / leftover.name)
    index = put(tmp_path / "m" / "index.json", json.dumps({"version": 2, "shards": shards}))
    assert convert(tmp_path / "m", tmp_path / "out")[0] == {"train": 6}
    assert values(tmp_path / "out") == [0, 0, 1, 1, 2, 2]
    # One of a failed run, that the merged one does not know.
    index.write_text(json.dumps({"version": 2, "shards": shards[:1]}))
    with pytest.raises(FormatError):
        convert(tmp_path / "m", tmp_path / "more")
    (tmp_path / "m" / "part.0" / "index.json").unlink()
    (tmp_path / "m" / "part.1" / "index.json").unlink()
    assert convert(tmp_path / "m", tmp_path / "merged alone")[0] == {"train": 3}


def test_a_cache_of_mds(tmp_path) -> None:
    """It holds decompressed shards, and those that were read so far."""
    mds(tmp_path / "m", 40, compression="zstd", shard_bytes=200)
    index = json.loads((tmp_path / "m" / "index.json").read_text())
    import zstandard

    stored = sorted((tmp_path / "m").glob("*.zstd"))
    for path in stored:
        path.with_suffix("").write_bytes(zstandard.decompress(path.read_bytes()))
        path.unlink()
    assert len(index["shards"]) == len(stored) > 2
    assert convert(tmp_path / "m", tmp_path / "out")[0] == {"train": 40}
    stored[1].with_suffix("").unlink()
    with pytest.raises(FormatError) as caught:
        convert(tmp_path / "m", tmp_path / "refused")
    assert caught.value.url is not None
    splits, report = convert(tmp_path / "m", tmp_path / "rest", on_error="skip")
    assert splits == {"train": 40 - index["shards"][1]["samples"]}
    assert [bad.where for bad in report.skipped] == [f"{stored[1]}"]


# Links.


@TAKES
def test_links_out_of_a_folder_are_not_followed(tmp_path, take) -> None:
    put(tmp_path / "home" / "secret.jsonl", b'{"n": 2}\n')
    put(tmp_path / "src" / "a.jsonl", LINE)
    put(tmp_path / "src" / "deep" / "b.jsonl", LINE)
    (tmp_path / "src" / "c.jsonl").symlink_to(tmp_path / "home" / "secret.jsonl")
    (tmp_path / "src" / "sub").symlink_to(tmp_path / "home")
    (tmp_path / "src" / "inner").symlink_to(tmp_path / "src" / "deep")
    for number, source in enumerate((tmp_path / "src", f"{tmp_path}/src/**")):
        splits, report = take(source, tmp_path / f"out{number}")
        assert splits == {"train": 2}
        assert any("2 files such as" in note and "follow_links=True" in note for note in report.notes)
        assert sum("c.jsonl" in name or "secret" in name for name in report.ignored) == 2
    links = {"follow_links": True}
    asked = links if take is adopt else {"options": links}
    assert take(tmp_path / "src", tmp_path / "asked", **asked)[0] == {"train": 3}
    if take is adopt:
        # What was taken on request is not gone because it is not asked for again.
        _, report = take(tmp_path / "src", tmp_path / "asked")
        assert (report.missing, report.known) == ((), 2)
    # What is named is meant, and so is a folder that is a link itself.
    assert take(tmp_path / "src" / "c.jsonl", tmp_path / "named")[0] == {"train": 1}
    assert take(tmp_path / "src" / "sub", tmp_path / "folder")[0] == {"train": 1}
    # The Hub's cache is made of links.
    repo = tmp_path / "datasets--x"
    put(repo / "blobs" / "0123", LINE)
    (repo / "snapshots" / "rev").mkdir(parents=True)
    (repo / "snapshots" / "rev" / "a.jsonl").symlink_to(repo / "blobs" / "0123")
    assert take(repo / "snapshots" / "rev", tmp_path / "hub")[0] == {"train": 1}


@TAKES
def test_a_folder_of_links_alone_says_what_to_do(tmp_path, take) -> None:
    put(tmp_path / "home" / "a.jsonl", LINE)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.jsonl").symlink_to(tmp_path / "home" / "a.jsonl")
    with refused((NotFoundError, ValueError), "follow_links"):
        take(tmp_path / "src", tmp_path / "out")


@TAKES
def test_a_remote_list_names_files_of_its_own_store(tmp_path, take) -> None:
    store = shardio.storage.connect(f"memory://{tmp_path.name}")
    store.put_if_absent("d/a.jsonl", LINE)
    url = f"memory://{tmp_path.name}/d/names.txt"
    store.put_if_absent("d/names.txt", f"a.jsonl\n# memory\n{url[:-9]}a.jsonl\n".encode())
    assert take(f"@{url}", tmp_path / "out")[0] == {"train": 1}
    put(tmp_path / "home.jsonl", LINE)
    for number, line in enumerate(
        (f"{tmp_path}/home.jsonl", "../x", f"file://{tmp_path}/home.jsonl", "s3://b/x")
    ):
        store.put_if_absent(f"d/bad{number}.txt", line.encode())
        with pytest.raises(ValueError, match="not in the store of the list"):
            take(f"@{url[:-9]}bad{number}.txt", tmp_path / f"bad{number}")


def test_errors_are_those_of_shardio(tmp_path) -> None:
    """Lists that are damaged are refused with their place."""
    log = "_delta_log/00000000000000000000.json"
    cases = [
        ("_splits.json", "[]"),
        *((log, text) for text in ("{", '{"add": "x"}', '{"remove": [1]}', "[" * 100_000)),
        (log, '{"metaData": {"configuration": 3}}'),
        ("_delta_log/00000000000000000000.checkpoint.parquet", "PAR1"),
        ("_splits.json", "[" * 100_000),
        ("dataset_dict.json", '{"splits": 3}'),
        ("state.json", '{"_data_files": 3}'),
        ("state.json", '{"_data_files": [{"filename": 3}]}'),
        (".nv-meta/split.yaml", "a: ["),
        (".nv-meta/split.yaml", "split_parts: {a: ['{0..9999999}']}"),
        (".nv-meta/split.yaml", "[" * 100_000),
    ]
    for number, (name, text) in enumerate(cases):
        put(tmp_path / f"{number}" / name, text)
        put(tmp_path / f"{number}" / "a.jsonl", LINE)
        with pytest.raises(ShardioError) as caught:
            convert(tmp_path / f"{number}", tmp_path / "out")
        assert caught.value.url == str(tmp_path / f"{number}")


# Splits.


def photo(path: Path) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3), (200, 90, 9)).save(path)


@pytest.mark.parametrize(
    ("files", "splits", "classes"),
    [
        (["images/train/1.png", "images/val/2.png"], {"train": 1, "val": 1}, None),
        (["a/b/train2017/1.png", "a/b/val2017/2.png"], {"train": 1, "val": 1}, None),
        (["d/train/cat/1.png", "d/test/dog/2.png"], {"train": 1, "test": 1}, ("cat", "dog")),
        (["cat/train/1.png", "dog/2.png"], {"train": 2}, ("cat", "dog")),
        (["images/cat/1.png", "images/dog/2.png"], {"train": 2}, ("images",)),
    ],
    ids=["yolo", "coco", "classes within", "below classes", "no splits"],
)
def test_splits_of_images_below_folders_that_all_share(tmp_path, files, splits, classes) -> None:
    for name in files:
        photo(tmp_path / "in" / name)
    found, report = convert(tmp_path / "in", tmp_path / "out")
    assert found == splits
    assert (report.schema["label"].classes if "label" in report.schema else None) == classes
    if splits == {"train": 2}:
        assert any("named like splits" in note or "only class" in note for note in report.notes)


ODD = [
    ["de", "fr"],
    ["train", "hard"],
    ["train", "train_small"],
    ["validation_matched", "validation_mismatched"],
    ["val", "validation"],
    ["train", "train2017"],
    ["only"],
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "tfrecord", "webdataset", "mds"])
@pytest.mark.parametrize("names", ODD, ids="-".join)
def test_an_export_tells_its_splits(tmp_path, kind, names) -> None:
    with shardio.DatasetWriter(tmp_path / "ds", {"x": "int64"}, splits=names) as out:
        for count, name in enumerate(names, 1):
            for n in range(count):
                out.write({"x": n}, split=name)
    wanted = {name: count for count, name in enumerate(names, 1)}
    report = shardio.export_dataset(tmp_path / "ds", tmp_path / "out", kind=kind)
    assert sorted(report.files) == sorted(
        path.relative_to(tmp_path / "out").as_posix()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    )
    assert convert(tmp_path / "out", tmp_path / "back")[0] == wanted
    if kind in ("jsonl", "tfrecord", "webdataset"):
        assert adopt(tmp_path / "out", tmp_path / "adopted")[0] == wanted
    # What the caller says takes precedence.
    assert convert(tmp_path / "out", tmp_path / "said", split="all_of_them")[0] == {
        "all_of_them": sum(wanted.values())
    }


def test_an_export_of_images_tells_its_splits(tmp_path) -> None:
    photo(tmp_path / "a.png")
    image = (tmp_path / "a.png").read_bytes()
    schema = {"image": "png", "label": shardio.Feature("int64", classes=("cat", "dog"))}
    with shardio.DatasetWriter(tmp_path / "ds", schema) as out:
        for split in ("de", "fr"):
            for label in ("cat", "dog"):
                out.write({"image": image, "label": label}, split=split)
    shardio.export_dataset(tmp_path / "ds", tmp_path / "out", kind="images")
    splits, report = convert(tmp_path / "out", tmp_path / "back")
    assert splits == {"de": 2, "fr": 2}
    assert report.schema["label"].classes == ("cat", "dog")


@TAKES
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "tfrecord", "tar", "images", "mds", "text"])
@pytest.mark.parametrize("told", [True, False])
def test_a_source_is_listed_once(tmp_path, take, kind, told, monkeypatch) -> None:
    """What the kind is told by is what is read: a bucket of millions of objects is listed once."""
    folder = tmp_path / "in"
    files = {
        "jsonl": LINE,
        "csv": "n\n1\n",
        "tfrecord": SHARD,
        "tar": tar([("a.txt", b"1")]),
        "text": "words",
    }
    if kind == "images":
        photo(folder / "a.png")
    elif kind == "mds":
        mds(folder, 3)
    elif kind == "parquet":
        table(folder / "a.parquet", [1])
    else:
        put(folder / f"a.{'txt' if kind == 'text' else kind}", files[kind])
    if take is adopt and (kind not in ("jsonl", "tfrecord", "tar", "mds") or not told):
        return
    listed = []
    real = shardio.storage.LocalStore.list

    def count(store, prefix="", *, linked=False):
        if store.url == str(folder) and not prefix:
            listed.append(prefix)
        return real(store, prefix, linked=linked)

    monkeypatch.setattr(shardio.storage.LocalStore, "list", count)
    options = {"kind": {"tar": "webdataset"}.get(kind, kind)} if told and take is convert else {}
    assert sum(take(folder, tmp_path / "out", **options)[0].values()) > 0
    assert listed == [""]


@TAKES
@pytest.mark.parametrize("kind", ["mds", "parquet"])
def test_a_description_is_read_once(tmp_path, take, kind, monkeypatch) -> None:
    """What tells the kind is handed on: an index or a footer is not fetched again to read by it."""
    folder = tmp_path / "in"
    if kind == "mds":
        mds(folder, 3)
    elif take is adopt:
        return
    else:
        table(folder / "part-0", [1])
    asked = []
    for verb in ("get", "open"):
        real = getattr(shardio.storage.LocalStore, verb)

        def count(store, key, *args, real=real, **options):
            asked.append(key)
            return real(store, key, *args, **options)

        monkeypatch.setattr(shardio.storage.LocalStore, verb, count)
    assert sum(take(folder, tmp_path / "out")[0].values()) > 0
    # Without an ending a file is opened for its first bytes, for its footer, and for its rows.
    assert asked.count("index.json" if kind == "mds" else "part-0") == (1 if kind == "mds" else 3)


JSON_FILES = {
    "array": (b'[\n {"n": 1},\n {"n": 2}]', [1, 2]),
    "lines": (b'{"n": 1}\n{"n": 2}\n', None),
    "document": (b'{\n "n": 1\n}', None),
}


@pytest.mark.parametrize("beside", ["README.md", "notes.txt", "table.csv"])
@pytest.mark.parametrize("name", JSON_FILES)
def test_json_beside_other_files(tmp_path, name, beside) -> None:
    """An array is data where only a README is beside it; text and tables take precedence over JSON."""
    data, numbers = JSON_FILES[name]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_bytes(data)
    (tmp_path / "in" / beside).write_text("x\n1\n")
    if beside != "README.md":
        report = shardio.convert_dataset(tmp_path / "in", tmp_path / "out")
        assert [each.rpartition("/")[2] for each in report.ignored] == ["a.json"]
    elif numbers is None:
        with pytest.raises(FormatError) as caught:
            shardio.convert_dataset(tmp_path / "in", tmp_path / "out")
        assert caught.value.url.endswith("a.json")
        assert "--kind datasets" in caught.value.advice
    else:
        shardio.convert_dataset(tmp_path / "in", tmp_path / "out")
        assert [value["n"] for value in shardio.open(tmp_path / "out", "all")] == numbers
