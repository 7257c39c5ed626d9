"""What pages ask of a bucket: counted in front of the server, so that no page grows dear unseen."""

from __future__ import annotations

import pytest

import shardio
from shardio.view import Pages
from tests.servers import s3
from tests.servers.faults import fault_server
from tests.servers.proxy import Proxy, proxy
from tests.view import made
from tests.view.first_paint import SHARDS, large


def requests_of(relay: Proxy, act) -> list[str]:
    relay.exchanges.clear()
    act()
    return [f"{each.method} {each.path}" for each in relay.exchanges]


def test_the_first_paint_asks_seven_times_of_any_number_of_records():
    """Hint, manifest, and the next; the list of shards; the head of an index, a part of it, a block."""
    with large(10_000) as (url, options, relay):
        pages = Pages(url, storage_options=options)
        assert len(requests_of(relay, pages.summary)) <= 4
        assert len(requests_of(relay, lambda: pages.records(split="train", count=5))) <= 3
        assert len(requests_of(relay, lambda: pages.shards(split="train"))) <= 1
        assert pages.shards()["records"] == SHARDS * 10_000
        # What follows is as cheap: neighbours are in blocks, and a record's bytes in the part of the index.
        assert len(requests_of(relay, lambda: pages.records(split="train", start=5, count=20))) <= 2
        assert len(requests_of(relay, lambda: pages.record(split="train", position=7000))) <= 3
        # A page that is loaded again looks for a new version.
        assert len(requests_of(relay, pages.versions)) <= 3
        assert len(requests_of(relay, pages.summary)) <= 3


def test_images_of_a_page_are_asked_for_once():
    """The page has read their records; each image by itself would read its block again."""
    with s3.moto() as endpoint, proxy(endpoint) as relay:
        url = f"s3://{s3.make_bucket(endpoint)}/images"
        with shardio.DatasetWriter(url, {"image": "jpeg"}, storage_options=s3.options_for(endpoint)) as out:
            for _ in range(20):
                out.write({"image": made.picture()})
        pages = Pages(url, storage_options=s3.options_for(relay.url))
        records = pages.records()["records"]
        assert len(records) == 20
        asked = requests_of(
            relay, lambda: [pages.media(position=each["position"], path=["image"]) for each in records]
        )
        assert asked == []


@pytest.mark.slow
def test_a_sample_asks_64_shards_whatever_there_is(tmp_path):
    with shardio.DatasetWriter(tmp_path / "many", {"n": "int64"}, shard_bytes=800, block_bytes=800) as out:
        for n in range(30_000):
            out.write({"n": n})
    with fault_server() as server:
        server.load(tmp_path / "many", "/bucket/many")
        pages = Pages("s3://bucket/many", storage_options=s3.options_for(server.url))
        assert pages.shards()["shards"] > 500
        server.log.clear()
        (numbers,) = (each for each in pages.statistics(sample=256)["features"] if each["name"] == "n")
        asked = [request.path for request, _ in server.log]
        touched = {path.removesuffix(".shardidx") for path in asked}
        assert len(touched) <= 2 * 64  # runs may cross from one shard to the next
        assert len(asked) <= 4 * len(touched)
        counts = numbers["histogram"]["counts"]
        assert max(counts) == min(counts) == 8, "an even number looks even"
