"""Garbage collection in a bucket: unfinished uploads in parts are left to the bucket's own rule."""

from __future__ import annotations

import pytest

import shardio
from shardio.errors import StorageError
from shardio.storage import RemoteStore
from tests.servers import s3

pytestmark = pytest.mark.slow


@pytest.fixture
def place(moto_endpoint):
    url, options = f"s3://{s3.make_bucket(moto_endpoint)}/ds", s3.options_for(moto_endpoint)
    with shardio.DatasetWriter(url, storage_options=options) as out:
        out.write(b"wren")
    return url, {"storage_options": options}


def test_the_rule_of_the_bucket_is_named(place):
    url, options = place
    (note,) = shardio.gc(shardio.Address(url, **options)).unlisted
    assert "lifecycle rule" in note


def test_a_place_whose_temporaries_cannot_be_listed_may_be_cleaned_up(place, monkeypatch):
    """What could not be looked at is reported, and everything else is done."""
    url, options = place
    with shardio.DatasetWriter(url, mode="overwrite", **options) as out:
        out.write(b"robin")

    def refuse(_store):
        raise StorageError("the service refuses the request", found="501 NotImplemented")

    monkeypatch.setattr(RemoteStore, "list_temporaries", refuse)
    report = shardio.gc(shardio.Address(url, **options), expire=[1], dry_run=False)
    assert report.deleted > 1
    assert any("could not be listed" in note and "501" in note for note in report.unlisted)
