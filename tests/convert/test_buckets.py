"""Sources and targets in a bucket give what they give on local disk."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardio
from shardio.errors import CommitConflictError
from shardio.storage import connect
from tests.convert.conftest import FOREIGN, picture
from tests.servers import s3

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bucket(moto_endpoint) -> dict[str, object]:
    s3.make_bucket(moto_endpoint, "bucket")
    return s3.options_for(moto_endpoint)


def put(folder: Path, url: str, options: dict[str, object]) -> str:
    store = connect(url, storage_options=options)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.put_if_absent(path.relative_to(folder).as_posix(), path.read_bytes())
    return url


def image_folder(root: Path) -> Path:
    for number in range(6):
        path = root / ("heron", "wren")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    return root


@pytest.mark.sampled(4)
@pytest.mark.parametrize("folder", ["mds/zstd", "codewithgpu", "webdataset", "tfrecord-with-index", "images"])
def test_a_source_in_a_bucket(convert, bucket, tmp_path, folder: str) -> None:
    place = image_folder(tmp_path / "images") if folder == "images" else FOREIGN / folder
    here = convert(place)
    kind = convert.report.kind
    there = convert(put(place, f"s3://bucket/{folder}", bucket), source_options=bucket)
    assert repr(there) == repr(here)
    assert convert.report.kind == kind


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["tfrecord", "webdataset", "jsonl", "parquet", "mds"])
def test_there_and_back_through_a_bucket(convert, bucket, tmp_path, kind: str) -> None:
    """A dataset in a bucket, exported within it, converted back: the same values; never over others."""
    url, target = f"s3://bucket/birds-{kind}", f"s3://bucket/birds-as-{kind}"
    with shardio.DatasetWriter(url, schema={"n": "int64", "name": "text"}, storage_options=bucket) as out:
        for number in range(50):
            out.write({"n": number, "name": f"bird {number}"})
    report = shardio.export_dataset(
        url,
        target,
        kind=kind,
        shard_bytes=20_000 if kind == "webdataset" else 600,
        storage_options=bucket,
        target_options=bucket,
    )
    there = connect(target, storage_options=bucket)
    assert sorted(info.key for info in there.list()) == sorted(report.files)
    back = convert(target, source_options=bucket)
    assert [int(value["n"] if "n" in value else value["n.cls"]) for value in back] == list(range(50))
    with pytest.raises(CommitConflictError):
        shardio.export_dataset(url, target, kind=kind, storage_options=bucket, target_options=bucket)
