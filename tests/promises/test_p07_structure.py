"""P7: no record or shard is silently dropped, doubled or swapped."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import shardio
from shardio.catalog import Catalog
from shardio.errors import FormatError, ShardioError
from shardio.kernels import crc32c
from shardio.metadata import IndexBuilder, parse_head
from shardio.storage import connect
from tests.format.plain import frame
from tests.promises.damage import WAYS, Victim, found_out
from tests.promises.places import GOLDEN, PLACES, copied, fresh, payloads
from tests.suites.errors import refused

CASES = [(name, place) for name in ("none", "zstd", "gzip") for place in PLACES]
EVERY_CASE = pytest.mark.parametrize(("name", "place"), CASES)


@pytest.fixture
def victim(name: str, place: str, tmp_path: Path) -> Victim:
    url = copied(GOLDEN / name, place, tmp_path)
    case = Victim(url, payloads(name, 2, "all"))
    assert found_out(url, "iteration") is None
    return case


def check_refused(case: Victim, what: str) -> None:
    for way in WAYS:
        error = found_out(case.url, way)
        assert isinstance(error, ShardioError), f"{what}: {way} noticed nothing"
        assert error.url is not None, f"{what}: {error}"


@EVERY_CASE
def test_shards_swapped_with_their_indexes(victim):
    """An index MUST have the head that the list names, and counts and kinds MUST be those of the list."""
    shards = victim.of_kind(".tfrecord")
    for a, b in itertools.combinations(shards, 2):
        for end in ("", ".shardidx"):
            victim.put(a + end, victim.objects[b + end])
            victim.put(b + end, victim.objects[a + end])
        check_refused(victim, f"swapped {a} and {b} with their indexes")
        victim.restore(a, b, a + ".shardidx", b + ".shardidx")


@pytest.mark.sampled(2)
@EVERY_CASE
def test_blocks_within_a_shard(victim):
    """P7: swapped, missing and doubled blocks."""
    tried = 0
    for key in victim.of_kind(".tfrecord"):
        good = victim.objects[key]
        head = parse_head(victim.objects[key + ".shardidx"])
        blocks = [good[slice(*head.block_bounds(k))] for k in range(head.blocks)]
        changed = [blocks[:k] + blocks[k + 1 :] for k in range(len(blocks))]
        changed += [[*blocks[:k], blocks[k], *blocks[k:]] for k in range(len(blocks))]
        for a, b in itertools.combinations(range(len(blocks)), 2):
            swapped = list(blocks)
            swapped[a], swapped[b] = blocks[b], blocks[a]
            changed.append(swapped)
        for parts in changed:
            victim.put(key, b"".join(parts))
            check_refused(victim, f"blocks of {key}")
            tried += 1
        victim.restore(key)
    assert tried > 10


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["none"])
def test_records_within_a_block(victim):
    """P7: a record swapped, doubled or left out keeps TFRecord's own checksums, and is found all the same."""
    key = victim.of_kind(".tfrecord")[-1]
    url = f"{victim.url}/{key}"
    records = list(shardio.open_shard(url))
    assert len(set(records)) > 3
    assert b"".join(map(frame, records)) == victim.objects[key]
    for wrong in (
        [records[1], records[0], *records[2:]],
        [*records[:2], *records[1:]],
        records[1:],
        records[:-1],
        [*records, records[-1]],
        [],
    ):
        victim.put(key, b"".join(map(frame, wrong)))
        check_refused(victim, "records of a shard")
        with pytest.raises(ShardioError):
            list(shardio.open_shard(url))


@EVERY_CASE
def test_another_datasets_metadata(victim, tmp_path):
    """A list, an index or a shard of another dataset is not taken for one's own, though its seal is right."""
    other = copied(GOLDEN / "three", "local", tmp_path)
    stranger = Victim(other, [])
    # Lists of earlier versions are read with these alone.
    latest = Catalog(connect(victim.url)).load(2).manifest
    lists = [ref.key for ref in latest.lists]
    assert lists
    for end, keys in (
        (".tfrecord", victim.of_kind(".tfrecord")),
        (".shardidx", victim.of_kind(".shardidx")),
        (".list", lists),
    ):
        for key in keys:
            victim.put(key, stranger.objects[stranger.of_kind(end)[0]])
            check_refused(victim, f"{key} of another dataset")
            victim.restore(key)
    for key in set(victim.of_kind(".list")) - set(lists):
        victim.put(key, stranger.objects[stranger.of_kind(".list")[0]])
        assert found_out(victim.url, "iteration") is None
        with refused(FormatError):
            shardio.open(victim.url, "all", version=1)
        victim.restore(key)


@pytest.mark.parametrize("place", PLACES)
def test_a_list_of_another_version(place, tmp_path):
    """Its seal is right, it names the same shards and adds up to the same; but other rows are deleted."""
    url = fresh(place, tmp_path)
    with shardio.DatasetWriter(url) as out:
        for number in range(4):
            out.write(b"%d" % number)
    catalog, keys = Catalog(connect(url)), []
    for number in (0, 1):
        version = shardio.delete(url, [number]).version
        keys += [ref.key for ref in catalog.load(version).manifest.lists]
        shardio.restore(url, 1)
    shardio.restore(url, version)
    case = Victim(url, [b"0", b"2", b"3"])
    assert found_out(url, "iteration") is None
    case.put(keys[1], case.objects[keys[0]])
    check_refused(case, "the list of version 2")


@EVERY_CASE
def test_a_whole_index_forged(victim):
    """An index that fits its shard but hides the last record is refused: the list of shards knows better."""
    for key in victim.of_kind(".tfrecord"):
        old = parse_head(victim.objects[key + ".shardidx"])
        builder = IndexBuilder(uuid=old.uuid, compression=old.compression, writer=old.writer)
        frames = victim.objects[key + ".shardidx"]
        for block in range(old.blocks - 1):
            start, stop = old.frame_stop_bounds(block)
            a, b = old.block_bounds(block)
            builder.add_block(
                stored_bytes=b - a,
                decoded_bytes=int(old.block_decoded_bytes[block]),
                crc32c=int(old.block_crc32c[block]),
                frame_stop=np.frombuffer(frames[start:stop], "<u4"),
            )
        victim.put(key + ".shardidx", builder.finish().data)
        check_refused(victim, "a forged index")
        victim.restore(key + ".shardidx")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["none"])
def test_an_index_mended_to_fit_another_record(victim):
    """Shard and index were changed so that all their checksums fit; the list of shards knows better."""
    key = victim.of_kind(".tfrecord")[-1]
    shard = f"{victim.url}/{key}"
    records = list(shardio.open_shard(shard))
    forged = [record[::-1] if len(record) > 1 else record for record in records]
    assert forged != records
    old = parse_head(victim.objects[key + ".shardidx"])
    builder = IndexBuilder(uuid=old.uuid, writer=old.writer)
    data = b""
    for block in range(old.blocks):
        part = b"".join(map(frame, forged[slice(*old.block_rows(block))]))
        start, stop = old.frame_stop_bounds(block)
        builder.add_block(
            stored_bytes=len(part),
            decoded_bytes=len(part),
            crc32c=crc32c(part),
            frame_stop=np.frombuffer(victim.objects[key + ".shardidx"][start:stop], "<u4"),
        )
        data += part
    # The one sum over the whole object is not compared when blocks are read.
    builder.crc32c = old.crc32c
    victim.put(key, data)
    victim.put(key + ".shardidx", builder.finish().data)
    assert list(shardio.open_shard(shard)) == forged, "by itself the forged shard is right"
    check_refused(victim, "a repaired index")


@EVERY_CASE
def test_a_manifest_under_anothers_name(victim):
    """A rolled-back or advanced version is refused: the number is sealed in."""
    first, second = victim.of_kind(".manifest")
    third = second.replace("2.manifest", "3.manifest")
    victim.put(third, victim.objects[second])
    with pytest.raises(ShardioError):
        Catalog(connect(victim.url)).fetch(3)
    check_refused(victim, "version 2 as version 3")
    victim.put(third, None)
    victim.put(second, victim.objects[first])
    check_refused(victim, "version 1 as version 2")


def test_a_version_that_was_lost_is_noticed_where_its_digest_is_pinned(tmp_path):
    """The newest manifest gone is noticed by the hint; with the hint gone too it is an older dataset, and
    that must be sure, pins.
    """
    url = copied(GOLDEN / "none", "local", tmp_path)
    digest = shardio.open(url, "all").digest
    case = Victim(url, [])
    case.put(case.of_kind(".manifest")[1], None)
    with pytest.raises(ShardioError):
        shardio.open(url, "all")
    case.put("_shardio/latest", None)
    assert shardio.open(url, "all").version == 1
    with refused(ShardioError, "digest="):
        shardio.open(url, "all", digest=digest)
