"""`verify(decode=True)`: records that match their checksums, and still give no value."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import shardio
import shardio_indexer
from shardio import codecs
from shardio.cli import main
from tests.indexer.shards import tar, tfrecord
from tests.pictures import picture

WHOLE = picture(3, "JPEG", (64, 64))
CUT = WHOLE[: len(WHOLE) // 2]


def wrong(url: Path) -> list[tuple[int | None, int | None]]:
    report = shardio.verify(url, decode=True)
    assert {finding.kind for finding in report.findings} <= {"value"}
    assert report.undecodable_records == sum(each.row_stop - each.row for each in report.findings)
    assert report.good_records == report.records
    return [(finding.row, finding.row_stop) for finding in report.findings]


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("encoding", ["example", "tensors"])
def test_images_that_do_not_decode(tmp_path, encoding, compression) -> None:
    url = tmp_path / "ds"
    schema = {
        "image": "jpeg",
        "n": "int64",
        "more": "image[?]",
        "none": shardio.Feature("png", optional=True),
    }
    options = {"encoding": encoding, "compression": compression, "block_bytes": 2000}
    with shardio.DatasetWriter(url, schema, **options) as out:
        for n in range(20):
            more = [picture(n)] * (n % 3) + [CUT] * (n == 17)
            out.write({"image": CUT if n in (3, 4, 9) else WHOLE, "n": n, "more": more})
    assert shardio.verify(url).ok
    assert shardio.verify(url).undecodable_records is None
    rows = wrong(url)
    assert [row for first, stop in rows for row in range(first, stop)] == [3, 4, 9, 17]
    shardio.delete(url, [3, 4, 9, 17])
    assert shardio.verify(url, decode=True).ok


def test_neighbours_with_one_trouble_are_one_finding(tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path / "ds", {"image": "jpeg"}) as out:
        for n in range(300):
            out.write({"image": CUT if 10 <= n < 290 else WHOLE})
    found = wrong(tmp_path / "ds")
    assert [row for first, stop in found for row in range(first, stop)] == list(range(10, 290))
    assert len(found) <= 3  # one in each block
    skipping = shardio.open(tmp_path / "ds", decode="image", on_error="skip")
    with pytest.warns(UserWarning, match="skipped"):
        assert len(list(skipping)) == 20


def test_tensors_that_do_not_decode(tmp_path) -> None:
    """Where adoption did not look."""
    values = [codecs.serialize_tensor(np.arange(n % 7)) for n in range(3000)]
    values[1502], values[1504] = b"\xff", codecs.serialize_tensor(np.ones(3))
    (tmp_path / "a.tfrecord").write_bytes(tfrecord([codecs.encode_example({"x": each}) for each in values]))
    shardio_indexer.adopt(tmp_path, schema={"x": "tensor:int64"})
    assert shardio.verify(tmp_path).ok
    assert wrong(tmp_path) == [(1502, 1503), (1504, 1505)]


def test_defaults_are_no_findings(tmp_path) -> None:
    schema = {"image": shardio.Feature("jpeg", default=b""), "label": "int64"}
    with shardio.DatasetWriter(tmp_path / "ds", schema) as out:
        out.write({"image": b"", "label": 1})
        out.write({"label": 2})
    assert wrong(tmp_path / "ds") == []


def test_steps_of_a_sequence(tmp_path) -> None:
    schema = {"context": {"id": "int64"}, "feature_lists": {"frame": "jpeg"}}
    with shardio.DatasetWriter(tmp_path / "ds", schema, encoding="sequence_example") as out:
        for n in range(4):
            out.write({"context": {"id": n}, "feature_lists": {"frame": [WHOLE, CUT if n == 2 else WHOLE]}})
    assert wrong(tmp_path / "ds") == [(2, 3)]


def test_records_of_others(tmp_path, capsys) -> None:
    """Files that are not images, or of another format than the schema says."""
    values = [{"image": WHOLE, "n": n} for n in range(6)]
    values[1]["image"], values[2]["image"], values[4]["image"] = b"hello", CUT, picture(1)
    (tmp_path / "a.tfrecord").write_bytes(tfrecord([codecs.encode_example(value) for value in values]))
    shardio_indexer.adopt(tmp_path, schema={"image": "jpeg", "n": "int64"})
    assert wrong(tmp_path) == [(1, 2), (2, 3), (4, 5)]
    capsys.readouterr()
    assert main(["verify", str(tmp_path)]) == 0
    assert main(["verify", str(tmp_path), "--decode"]) == 1
    shown = capsys.readouterr().out
    assert "feature 'image' holds something else" in shown
    assert "6 of 6 records are good, 3 records cannot be decoded" in shown
    assert main(["verify", str(tmp_path), "--decode", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["undecodable_records"] == 3


def test_samples_of_tar_files(tmp_path) -> None:
    members = [(f"{n}.jpg", CUT if n == 2 else WHOLE) for n in range(4)]
    (tmp_path / "a.tar").write_bytes(tar(members))
    shardio_indexer.adopt(tmp_path, schema={"jpg": "jpeg"})
    assert wrong(tmp_path) == [(2, 3)]


def test_lines(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"n": n}) + "\r\n" for n in range(5)))
    shardio_indexer.adopt(tmp_path, schema={"n": "int64"})
    assert wrong(tmp_path) == []


def test_arrays_and_bytes(tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path / "a", {"x": "float32[3]"}, encoding="array") as out:
        out.write(np.zeros(3, np.float32))
    with shardio.DatasetWriter(tmp_path / "b") as out:
        out.write(b"x")
    assert wrong(tmp_path / "a") == wrong(tmp_path / "b") == []
    (shard,) = (tmp_path / "b").rglob("*.tfrecord")
    with pytest.raises(ValueError, match="single shard"):
        shardio.verify(shard, decode=True)
