"""Garbage collection and what killed writers leave in a bucket: unfinished uploads in parts."""

from __future__ import annotations

import boto3
import pytest

import shardio
from shardio.errors import StorageError
from shardio.storage import RemoteStore, upload_of
from tests.servers import s3

NAME = "data/train-{session}-00000-20b0268ae6a3749e-0000{k}.tfrecord"


@pytest.fixture
def place():
    with s3.moto() as endpoint:
        bucket, options = s3.make_bucket(endpoint), s3.options_for(endpoint)
        keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
        url = f"s3://{bucket}/ds"
        with shardio.DatasetWriter(url, session="merged", storage_options=options) as out:
            out.write(b"wren")

        def begin(session: str, k: int = 7) -> str:
            key = "ds/" + NAME.format(session=session, k=k)
            return client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]

        def left() -> set[str]:
            found = client.list_multipart_uploads(Bucket=bucket).get("Uploads", ())
            return {upload["UploadId"] for upload in found}

        yield url, {"storage_options": options}, begin, left
        client.close()


@pytest.mark.slow
def test_uploads_of_killed_writers_go_with_their_session(place):
    """P20: an upload is its session's: it goes when that is merged or given up, and not before."""
    url, options, begin, left = place
    merged, given_up, at_work = begin("merged"), begin("given=up"), begin("auto.0123456789abcdef")
    dry = shardio.gc(url, **options)
    assert [upload_of(info).id for info in dry.uploads] == [merged]
    assert set(dry.unclaimed) == {"given-up", "auto.0123456789abcdef"}
    assert left() == {merged, given_up, at_work}
    assert shardio.gc(url, dry_run=False, **options).version is None
    assert left() == {given_up, at_work}
    report = shardio.gc(url, abandon=["given-up"], dry_run=False, **options)
    assert [upload_of(info).id for info in report.uploads] == [given_up]
    assert [upload_of(info).id for info in report.temporaries] == [at_work]
    assert left() == {at_work}


def test_a_service_that_does_not_list_uploads_may_be_cleaned_up(place, monkeypatch):
    """What could not be looked at is said, and everything else is done."""
    url, options, _, _ = place
    with shardio.DatasetWriter(url, mode="overwrite", **options) as out:
        out.write(b"robin")

    def refuse(_store):
        raise StorageError("the service refuses the request", found="501 NotImplemented")

    monkeypatch.setattr(RemoteStore, "list_temporaries", refuse)
    report = shardio.gc(url, expire=[1], dry_run=False, **options)
    assert report.deleted > 1
    (note,) = report.unlisted
    assert "could not be asked" in note
    assert "501 NotImplemented" in note
