"""Adoption where shards usually are: in buckets, the caller's own and those of others, and on web servers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import shardio
import shardio_indexer
from shardio.storage import connect
from tests.indexer.shards import members, tar, tfrecord
from tests.servers import s3
from tests.servers.web import folder_server
from tests.suites.errors import refused

FOREIGN = Path(__file__).parent.parent / "golden" / "foreign"
PAYLOADS = [bytes([65 + i]) * (40 + i) for i in range(20)]


@pytest.fixture
def bucket(moto_endpoint) -> str:
    return f"s3://{s3.make_bucket(moto_endpoint)}/birds"


def fill(url: str, options: dict) -> None:
    store = connect(url, storage_options=options)
    store.put_if_absent("train-0 of 2.tfrecord", tfrecord(PAYLOADS[:10]))
    store.put_if_absent(
        "été/train-1.tfrecord.gz", members([tfrecord(PAYLOADS[10:15]), tfrecord(PAYLOADS[15:])], "gzip")
    )
    store.put_if_absent("val.tar", tar([("a.txt", b"1"), ("b.txt", b"2")]))


def opened(line: str, **names):
    """Run the line that the report gives, with its `...` filled in."""
    return eval(line.partition(" = ")[2], {"shardio": shardio, **names})


def test_in_place(moto_endpoint, bucket) -> None:
    options = s3.options_for(moto_endpoint)
    fill(bucket, options)
    before = {info.key: (info.size, info.etag) for info in connect(bucket, storage_options=options).list()}
    report = shardio_indexer.adopt(
        bucket, split={"train": "*train*", "val": "*"}, schema=False, storage_options=options, workers=1
    )
    assert report.ok, report
    assert report.splits == {"train": 20, "val": 2}
    after = {info.key: (info.size, info.etag) for info in connect(bucket, storage_options=options).list()}
    assert {key: after[key] for key in before} == before
    assert "'secret': ..." in report.opens
    ds = shardio.open(bucket, split="train", storage_options=options)
    assert list(ds) == PAYLOADS
    assert ds.read([19, 0, 7]) == [PAYLOADS[19], PAYLOADS[0], PAYLOADS[7]]
    assert shardio.open(bucket, split="val", storage_options=options)[1] == {"__key__": "b", "txt": b"2"}
    assert shardio.verify(shardio.Address(bucket, storage_options=options)).ok


def test_a_public_bucket_that_may_not_be_written(moto_endpoint, read_only_endpoint, bucket, tmp_path) -> None:
    """The dataset is elsewhere, its manifest names the bucket, and a reader must allow it."""
    fill(bucket, s3.options_for(moto_endpoint))
    anon = {"anon": True, "endpoint_url": read_only_endpoint, "client_kwargs": {"region_name": "us-east-1"}}
    report = shardio_indexer.adopt(
        f"{bucket}/**/*train*", into=tmp_path / "mine", storage_options=anon, workers=1
    )
    assert report.ok, report
    assert list(opened(report.opens)) == PAYLOADS
    with pytest.raises(shardio.errors.StorageError):
        shardio.open(tmp_path / "mine")
    ds = shardio.open(tmp_path / "mine", allow_roots={bucket: anon})
    batches = list(shardio.stream(ds, global_batch=5, shuffle=True, seed=1))
    assert sorted(one for batch in batches for one in batch["payload"]) == sorted(PAYLOADS)
    assert shardio.verify(shardio.Address(tmp_path / "mine", allow_roots={bucket: anon})).ok


def test_without_write_access_the_users_cache_takes_the_dataset(
    moto_endpoint, read_only_endpoint, bucket, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    fill(bucket, s3.options_for(moto_endpoint))
    anon = {"anon": True, "endpoint_url": read_only_endpoint, "client_kwargs": {"region_name": "us-east-1"}}
    report = shardio_indexer.adopt(f"{bucket}/train*", storage_options=anon, workers=1)
    assert report.ok, report
    assert Path(report.url).is_relative_to(tmp_path)
    assert any("cannot be written" in note and "AccessDenied" in note for note in report.notes)
    assert list(opened(report.opens)) == PAYLOADS[:10]
    again = shardio_indexer.adopt(f"{bucket}/train*", storage_options=anon, workers=1)
    assert (again.version, again.adopted, again.known) == (1, 0, 1)


def test_web_servers_by_a_list_of_urls(tmp_path) -> None:
    folder = tmp_path / "www"
    shutil.copytree(FOREIGN / "webdataset", folder / "a b")
    with folder_server(folder) as url:
        names = sorted(path.name for path in (folder / "a b").glob("*.tar"))
        listing = tmp_path / "urls.txt"
        listing.write_text("# shards\n" + "".join(f"{url}/a%20b/{name}\n\n" for name in names))
        report = shardio_indexer.adopt(f"@{listing}", into=tmp_path / "mine", workers=1)
        assert report.ok, report
        assert list(opened(report.opens)) == list(shardio.open(_local(folder / "a b")))
        other = url.replace("http://", "HTTP://")
        again = shardio_indexer.adopt(
            [f"{other}/a b/{names[0]}", f"{url}/%61%20b/{names[1]}"], into=tmp_path / "mine", workers=1
        )
        assert (again.version, again.adopted) == (1, 0), "the same files by other addresses"
        with pytest.raises(ValueError, match="cannot be listed"):
            shardio_indexer.adopt(f"{url}/*.tar", into=tmp_path / "other")
        missing = shardio_indexer.adopt(
            [f"@{listing}", f"{url}/nowhere.tar"], into=tmp_path / "mine", workers=1
        )
        assert (missing.ok, missing.known, len(missing.refused)) == (False, 3, 1)


def _local(folder: Path) -> Path:
    shardio_indexer.adopt(folder)
    return folder


def test_a_bucket_that_may_not_be_listed(tmp_path) -> None:
    """The files may be read: by name, or by a list of URLs, as the error says."""
    from aiohttp import web

    from tests.servers.web import serving

    files = tmp_path / "files"
    files.mkdir()
    names = [f"x{number}.tar" for number in range(10)]  # more than are asked for one by one elsewhere
    for name in names:
        (files / name).write_bytes(tar([("a.txt", b"1")]))

    async def answer(request: web.Request) -> web.StreamResponse:
        path = files / request.path.rpartition("/")[2]
        if path.is_file():
            return web.FileResponse(path)
        body = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        return web.Response(status=403, text=body, content_type="application/xml")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    with serving(app) as url:
        options = {"anon": True, "endpoint_url": url}
        with pytest.raises(shardio.errors.StorageError) as caught:
            shardio_indexer.adopt("s3://mine/*.tar", into=tmp_path / "a", storage_options=options)
        assert "@list.txt" in str(caught.value.advice)
        (tmp_path / "list.txt").write_text("".join(f"s3://mine/{name}\n" for name in names))
        for number, given in enumerate(["s3://mine/x0.tar", f"@{tmp_path}/list.txt"]):
            into = tmp_path / f"into{number}"
            assert shardio_indexer.adopt(given, into=into, storage_options=options, workers=1).ok
            ds = shardio.open(into, allow_roots={"s3://mine": options})
            assert list(ds) == [{"__key__": "a", "txt": "1"}] * (1, 10)[number]


def test_two_roots_with_shards_of_one_name(moto_endpoint, bucket, tmp_path) -> None:
    """Shards of one name in two places are two shards."""
    options = s3.options_for(moto_endpoint)
    connect(bucket, storage_options=options).put_if_absent("x.tfrecord", tfrecord(PAYLOADS[:3]))
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "x.tfrecord").write_bytes(tfrecord(PAYLOADS[3:5]))
    urls = [f"{bucket}/x.tfrecord", str(tmp_path / "here" / "x.tfrecord")]
    with refused(ValueError, "into="):
        shardio_indexer.adopt(urls, storage_options=options)
    report = shardio_indexer.adopt(urls, into=tmp_path / "mine", storage_options=options, workers=1)
    assert report.ok, report
    roots = {bucket: options, str(tmp_path / "here"): {}}
    assert list(shardio.open(tmp_path / "mine", allow_roots=roots)) == PAYLOADS[:5]
