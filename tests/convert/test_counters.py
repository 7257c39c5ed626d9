"""The numbers of reports of conversion and export: each is of what happened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import shardio


def write(path: Path, *lines: str) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path.stat().st_size


def test_every_number_of_a_conversion(tmp_path) -> None:
    source = tmp_path / "in"
    train = write(source / "train-0.jsonl", '{"n": 1}', '{"n": 2}', "not JSON", '{"n": "text"}')
    train += write(source / "train-1.jsonl", '{"n": 3}')
    val = write(source / "val-0.jsonl", '{"n": 4}', '{"n": 5}')
    write(source / "_old.jsonl", '{"n": 9}')
    write(source / "README.md", "words")
    options = {"on_error": "skip", "schema": {"n": "int64"}, "workers": 1}

    report = shardio.convert_dataset(source, tmp_path / "dry", dry_run=True, **options)
    assert (report.records, report.version, report.digest, report.dry_run) == ({}, None, None, True)
    assert report.source_bytes == {"train": train, "val": val}
    assert not (tmp_path / "dry").exists()

    report = shardio.convert_dataset(source, tmp_path / "out", **options)
    assert (report.source, report.kind, report.url) == (str(source), "jsonl", str(tmp_path / "out"))
    assert (report.records, report.version, report.dry_run) == ({"train": 3, "val": 2}, 1, False)
    assert report.source_bytes == {"train": train, "val": val}
    assert sorted(report.ignored) == ["README.md", "_old.jsonl"]
    first = source / "train-0.jsonl"
    assert [bad.where for bad in report.skipped] == [f"{first} byte 18", f"{first} byte 27"]
    ds = shardio.open(tmp_path / "out", "all")
    assert (report.digest, report.records) == (ds.digest, dict(ds.splits))

    # An append counts what it added.
    report = shardio.convert_dataset(source / "val-0.jsonl", tmp_path / "out", mode="append", **options)
    assert (report.records, report.version, report.source_bytes) == ({"val": 2}, 2, {"val": val})
    assert dict(shardio.open(tmp_path / "out", "all").splits) == {"train": 3, "val": 4}


@pytest.mark.parametrize("shares", [{"a": 0.25, "b": 0.75}, {"a": 1.0, "b": 0.0}])
def test_fractions_divide_what_there_is(tmp_path, shares) -> None:
    size = write(tmp_path / "in.jsonl", *(f'{{"n": {n}}}' for n in range(1000)))
    report = shardio.convert_dataset(tmp_path / "in.jsonl", tmp_path / "out", split=shares, workers=1)
    assert report.source_bytes == {name: round(share * size) for name, share in shares.items()}
    assert sum(report.records.values()) == 1000
    for name, share in shares.items():
        assert abs(report.records.get(name, 0) - 1000 * share) < 60
    found = sorted(int(value["n"]) for value in shardio.open(tmp_path / "out", "all"))
    assert found == list(range(1000))


def test_every_number_of_an_export(tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path / "ds", {"jpg": "bytes", "__key__": "text"}) as out:
        for split, count in (("train", 5), ("val", 2)):
            for n in range(count):
                # A key with a dot in its last part is no name of a sample.
                out.write({"jpg": b"x", "__key__": "a.b" if n == 1 else f"{n}"}, split=split)
    options = {"kind": "webdataset", "on_error": "skip"}
    report = shardio.export_dataset(tmp_path / "ds", tmp_path / "dry", dry_run=True, **options)
    assert (report.records, report.files, report.dry_run) == ({"train": 5, "val": 2}, [], True)
    report = shardio.export_dataset(tmp_path / "ds", tmp_path / "out", **options)
    assert (report.records, report.dry_run, report.version) == ({"train": 4, "val": 1}, False, 1)
    assert report.files == ["train-000000.tar", "val-000000.tar"]
    assert [bad.where for bad in report.skipped] == [f"{tmp_path}/ds {split} 1" for split in ("train", "val")]
    report = shardio.export_dataset(tmp_path / "ds", tmp_path / "one", split="val", **options)
    assert (report.records, len(report.skipped)) == ({"val": 1}, 1)


def test_every_number_of_packing(tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path / "ds", {"tokens": "int32[?]"}) as out:
        for split, lengths in (("train", (3, 4, 9, 0, 8)), ("val", (2,))):
            for length in lengths:
                out.write({"tokens": np.arange(length)}, split=split)
    report = shardio.pack_dataset(tmp_path / "ds", tmp_path / "rows", 8, on_error="skip")
    train, val = report.splits["train"], report.splits["val"]
    assert (train.records, train.tokens, train.records_skipped, train.records_cut) == (3, 15, 2, 0)
    assert (val.records, val.tokens, val.rows, val.records_skipped) == (1, 2, 1, 0)
    assert (
        report.records
        == {"train": train.rows, "val": 1}
        == dict(shardio.open(tmp_path / "rows", "all").splits)
    )
