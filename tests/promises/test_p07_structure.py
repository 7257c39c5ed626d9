"""P7: no record or shard is silently dropped, doubled or swapped, though every checksum is right.

One table: ways to put other bytes in the place of an object x compressions x places x ways to read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import shardio
from shardio.catalog import Catalog
from shardio.errors import FormatError, ShardioError
from shardio.kernels import crc32c
from shardio.metadata import IndexBuilder, parse_head
from shardio.storage import connect
from shardio.v1 import manifest_pb2
from tests.format.plain import frame
from tests.metadata.crafted import sealed
from tests.promises.damage import WAYS, Victim, found_out
from tests.promises.places import GOLDEN, PLACES, copied, fresh, payloads
from tests.suites.errors import refused

# Other bytes under some keys, None for no object.
Change = dict[str, bytes | None]


def victim_of(name: str, place: str, tmp_path: Path) -> Victim:
    case = Victim(copied(GOLDEN / name, place, tmp_path), payloads(name, 2, "all"))
    assert found_out(case.url, "iteration") is None
    return case


def check_refused(case: Victim, change: Change) -> None:
    for key, data in change.items():
        case.put(key, data)
    for way in WAYS:
        error = found_out(case.url, way)
        assert isinstance(error, ShardioError), f"{[*change]}: {way} noticed nothing"
        assert error.url is not None, f"{[*change]}: {error}"
    for key in change:
        case.put(key, case.objects.get(key))


def shards_swapped_with_their_indexes(case: Victim) -> Iterator[Change]:
    for a, b in itertools.combinations(case.of_kind(".tfrecord"), 2):
        yield {to + end: case.objects[of + end] for to, of in ((a, b), (b, a)) for end in ("", ".shardidx")}


def blocks_swapped_missing_and_doubled(case: Victim) -> Iterator[Change]:
    for key in case.of_kind(".tfrecord"):
        head = parse_head(case.objects[key + ".shardidx"])
        blocks = [case.objects[key][slice(*head.block_bounds(k))] for k in range(head.blocks)]
        for k in range(len(blocks)):
            yield {key: b"".join(blocks[:k] + blocks[k + 1 :])}
            yield {key: b"".join([*blocks[:k], blocks[k], *blocks[k:]])}
        for a, b in itertools.combinations(range(len(blocks)), 2):
            swapped = [*blocks]
            swapped[a], swapped[b] = blocks[b], blocks[a]
            yield {key: b"".join(swapped)}


def objects_of_another_dataset(case: Victim) -> Iterator[Change]:
    stranger = Victim(str(GOLDEN / "three"), [])
    lists = [ref.key for ref in Catalog(connect(case.url)).load(2).manifest.lists]
    assert lists
    for end, keys in (
        (".tfrecord", case.of_kind(".tfrecord")),
        (".shardidx", case.of_kind(".shardidx")),
        (".list", lists),
    ):
        yield from ({key: stranger.objects[stranger.of_kind(end)[0]]} for key in keys)


def indexes_that_hide_the_last_block(case: Victim) -> Iterator[Change]:
    for key in case.of_kind(".tfrecord"):
        yield {
            key + ".shardidx": index_with(case, key, parse_head(case.objects[key + ".shardidx"]).blocks - 1)
        }


def manifests_under_anothers_name(case: Victim) -> Iterator[Change]:
    """Of a version that was rolled back, or advanced."""
    first, second = case.of_kind(".manifest")
    yield {second.replace("2.manifest", "3.manifest"): case.objects[second]}
    yield {second: case.objects[first]}


def index_with(case: Victim, key: str, count: int, blocks: list[bytes] | None = None) -> bytes:
    """Return an index of the first blocks of a shard, or of others in their place."""
    data = case.objects[key + ".shardidx"]
    head = parse_head(data)
    builder = IndexBuilder(uuid=head.uuid, compression=head.compression, writer=head.writer)
    for k in range(count):
        block = blocks[k] if blocks else case.objects[key][slice(*head.block_bounds(k))]
        builder.add_block(
            stored_bytes=len(block),
            decoded_bytes=int(head.block_decoded_bytes[k]),
            crc32c=crc32c(block),
            frame_stop=np.frombuffer(data[slice(*head.frame_stop_bounds(k))], "<u4"),
        )
    # The one sum over the whole object is not compared when blocks are read.
    builder.crc32c = head.crc32c
    return builder.finish().data


@pytest.mark.sampled(2)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["none", "zstd", "gzip"])
@pytest.mark.parametrize(
    "changes",
    [
        shards_swapped_with_their_indexes,
        blocks_swapped_missing_and_doubled,
        objects_of_another_dataset,
        indexes_that_hide_the_last_block,
        manifests_under_anothers_name,
    ],
)
def test_what_is_in_anothers_place_is_refused(
    changes: Callable[[Victim], Iterator[Change]], name, place, tmp_path
):
    """An index MUST have the head that the list names, and counts and kinds MUST be those of the list."""
    case = victim_of(name, place, tmp_path)
    tried = [check_refused(case, change) for change in changes(case)]
    assert len(tried) > 1


@pytest.mark.parametrize("place", PLACES)
def test_records_in_anothers_place(place, tmp_path):
    """P7: a record swapped, doubled or left out keeps TFRecord's own checksums, and is found all the same."""
    case = victim_of("none", place, tmp_path)
    key = case.of_kind(".tfrecord")[-1]
    url = f"{case.url}/{key}"
    records = list(shardio.open_shard(url))
    assert len(set(records)) > 3
    assert b"".join(map(frame, records)) == case.objects[key]
    one, two, *rest = records
    for wrong in (
        [two, one, *rest],
        [one, two, *records[1:]],
        records[1:],
        records[:-1],
        [*records, rest[-1]],
        [],
    ):
        check_refused(case, {key: b"".join(map(frame, wrong))})
        case.put(key, b"".join(map(frame, wrong)))
        with pytest.raises(ShardioError):
            list(shardio.open_shard(url))
    # Shard and index were changed so that all their checksums fit; the list of shards knows better.
    forged = [record[::-1] if len(record) > 1 else record for record in records]
    assert forged != records
    head = parse_head(case.objects[key + ".shardidx"])
    blocks = [b"".join(map(frame, forged[slice(*head.block_rows(k))])) for k in range(head.blocks)]
    change: Change = {key: b"".join(blocks), key + ".shardidx": index_with(case, key, head.blocks, blocks)}
    for each, data in change.items():
        case.put(each, data)
    assert list(shardio.open_shard(url)) == forged, "by itself the forged shard is right"
    check_refused(case, change)


@pytest.mark.parametrize("place", PLACES)
def test_a_list_of_another_version(place, tmp_path):
    """Its seal is right, it names the same shards and adds up to the same; but other rows are deleted."""
    url = fresh(place, tmp_path)
    with shardio.DatasetWriter(url) as out:
        out.write_many(b"%d" % number for number in range(4))
    catalog, keys = Catalog(connect(url)), []
    for number in (0, 1):
        version = shardio.delete(url, [number]).version
        keys += [ref.key for ref in catalog.load(version).manifest.lists]
        shardio.restore(url, 1)
    shardio.restore(url, version)
    case = Victim(url, [b"0", b"2", b"3"])
    assert found_out(url, "iteration") is None
    check_refused(case, {keys[1]: case.objects[keys[0]]})


def test_a_manifest_whose_totals_are_not_those_of_its_lists(tmp_path):
    case = victim_of("none", "local", tmp_path)
    key = case.of_kind(".manifest")[1]
    message = manifest_pb2.Manifest.FromString(case.objects[key][16:-44])
    message.splits[0].stored_bytes += 1
    check_refused(case, {key: sealed(message)})


@pytest.mark.parametrize("place", PLACES)
def test_a_receipt_under_the_name_of_another_task(place, tmp_path):
    url = fresh(place, tmp_path)
    for task in range(2):
        with shardio.DatasetWriter(url, session="run", task=task, commit=False) as out:
            out.write(b"%d" % task)
    store = connect(url)
    first, second = [each.key for each in store.list("_shardio/sessions/run/")]
    data = store.get(first, max_bytes=1 << 20)
    store.delete(second)
    store.put_if_absent(second, data)
    with pytest.raises(FormatError) as caught:
        shardio.commit(url, session="run", tasks=2)
    assert caught.value.url == store.url_of(second)


@pytest.mark.parametrize("place", PLACES)
def test_a_list_that_earlier_versions_alone_need(place, tmp_path):
    """The latest version is read as ever, and the earlier one is refused."""
    case = victim_of("none", place, tmp_path)
    lists = {ref.key for ref in Catalog(connect(case.url)).load(2).manifest.lists}
    stranger = Victim(str(GOLDEN / "three"), [])
    (key,) = {*case.of_kind(".list")} - lists
    case.put(key, stranger.objects[stranger.of_kind(".list")[0]])
    assert found_out(case.url, "iteration") is None
    with pytest.raises(FormatError):
        shardio.open(case.url, "all", version=1)


def test_a_version_that_was_lost_is_noticed_where_its_digest_is_pinned(tmp_path):
    """The newest manifest gone is noticed by the hint; with the hint gone too it is an older dataset, and
    that must be sure, pins.
    """
    case = victim_of("none", "local", tmp_path)
    digest = shardio.open(case.url, "all").digest
    case.put(case.of_kind(".manifest")[1], None)
    with pytest.raises(ShardioError):
        shardio.open(case.url, "all")
    case.put("_shardio/latest", None)
    assert shardio.open(case.url, "all").version == 1
    with refused(ShardioError, "digest="):
        shardio.open(case.url, "all", digest=digest)
