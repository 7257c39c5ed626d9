"""Which version is the latest, and which one a caller gets."""

from __future__ import annotations

import itertools
import pickle

import pytest

import shardio
from shardio.catalog import Catalog
from shardio.errors import FormatError, NotFoundError, ShardioError
from shardio.format import Limits
from shardio.metadata import naming
from shardio.storage import connect
from tests.promises.places import PLACES, fresh
from tests.promises.stores import Counting, FaultyStore
from tests.suites.errors import refused

EVERY_PLACE = pytest.mark.parametrize("place", PLACES)


@pytest.fixture(params=PLACES)
def url(request, tmp_path) -> str:
    """A dataset of three versions: 1, 2 and 3 records."""
    url = fresh(request.param, tmp_path)
    for number in range(3):
        with shardio.DatasetWriter(url, mode="append") as out:
            out.write(b"%d" % number)
    return url


def latest_of(url: str) -> tuple[int, list[tuple[str, str]]]:
    counting = Counting()
    version = Catalog(FaultyStore(connect(url), counting)).latest()
    assert version is not None
    return version.number, counting.calls


def test_the_hint_saves_a_listing(url):
    number, calls = latest_of(url)
    assert number == 3
    assert [verb for verb, _ in calls] == ["get", "get", "get"], (
        "hint, manifest, and the next one that is absent"
    )


@pytest.mark.parametrize(
    "hint",
    [
        b"",
        b"0",
        b"2",
        b"1",
        b" 2\n",
        b"-1",
        b"9" * 25,
        b"9" * 64,
        b"9" * 65,
        b"two",
        b"\xff\xfe",
        b"3x",
        None,
    ],
)
def test_the_hint_is_never_trusted(url, hint):
    """The hint MUST NOT be trusted: an older one is followed upward, what is not a number is ignored."""
    store = connect(url)
    if hint is None:
        store.delete(naming.HINT_KEY)
    else:
        store.overwrite(naming.HINT_KEY, hint)
    assert latest_of(url)[0] == 3
    assert list(shardio.open(url)) == [b"0", b"1", b"2"]
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write(b"more")
    assert out.version == 4
    assert store.get(naming.HINT_KEY, max_bytes=9) == b"4"


@pytest.mark.parametrize("reply", [b"0", b"", b"three"])
def test_a_hint_that_arrives_damaged_is_asked_for_again(url, reply, monkeypatch):
    """Where objects cannot be listed it is all that says that there is a dataset."""
    store = connect(url)
    get, replies = store.get, [reply]

    def get_damaged(key, **options):
        return replies.pop() if replies and key == naming.HINT_KEY else get(key, **options)

    monkeypatch.setattr(store, "get", get_damaged)
    assert Catalog(store).hinted() == 3
    assert not replies


@pytest.mark.parametrize("lost", [(3,), (2, 3), (1, 2, 3)])
def test_a_hint_beyond_every_manifest_means_that_manifests_are_gone(url, lost):
    """A hint that names a version beyond every manifest MUST be an error: it is written after a commit."""
    store = connect(url)
    for number in lost:
        store.delete(naming.manifest_key(number))
    left = 3 - len(lost)
    for call in (shardio.open, shardio.log, lambda url: shardio.DatasetWriter(url, mode="append")):
        with pytest.raises(FormatError) as caught:
            call(url)
        assert caught.value.url == store.url_of(naming.manifest_key(3))
        assert "removing _shardio/latest gives up what is lost" in caught.value.advice
    if left:
        # What the advice says works.
        assert len(shardio.open(url, version=left)) == left
        store.delete(naming.HINT_KEY)
        assert shardio.open(url).version == left


def test_a_manifest_that_cannot_be_read_is_not_skipped(url):
    """A manifest that cannot be read MUST be an error and MUST NOT be skipped."""
    store = connect(url)
    key = naming.manifest_key(3)
    data = store.get(key, max_bytes=10_000)
    for damaged in (b"", b"garbage", data[:-1], data[:50] + bytes([data[50] ^ 1]) + data[51:]):
        store.delete(key)
        store.put_if_absent(key, damaged)
        for hint in (b"3", b"1", None):
            if hint is None:
                store.delete(naming.HINT_KEY)
            else:
                store.overwrite(naming.HINT_KEY, hint)
            with pytest.raises(FormatError) as caught:
                shardio.open(url)
            assert caught.value.url == store.url_of(key)
            with pytest.raises(FormatError):
                shardio.DatasetWriter(url, mode="append")
    assert store.get(key, max_bytes=10_000) == damaged, "nothing was repaired or removed"


def test_names_that_look_like_manifests_are_not(url):
    store = connect(url)
    store.delete(naming.HINT_KEY)
    for key in ("9.manifest", "00000000000000000009.manifest.bak", "0000000000000000000x.manifest", "zzz"):
        store.put_if_absent(f"_shardio/manifests/{key}", b"garbage")
    assert latest_of(url)[0] == 3


def test_versions_are_opened_by_number(url):
    for number in (1, 2, 3):
        ds = shardio.open(url, version=number)
        assert (ds.version, len(ds)) == (number, number)
    for number in (0, -1, 4, 10**20, 10**30):
        with pytest.raises(NotFoundError, match=f"there is no version {number}") as caught:
            shardio.open(url, version=number)
        assert caught.value.advice == "the latest is version 3"


def test_a_digest_pins(url):
    """A reader MUST refuse a version whose digest is not the one that the caller pins."""
    ds = shardio.open(url, version=2)
    assert ds.digest.startswith("sha256:")
    assert len(shardio.open(url, version=2, digest=ds.digest)) == 2
    assert len(shardio.open(url, version=2, digest=ds.digest.upper().replace("SHA256", "sha256"))) == 2
    for options in (
        {"digest": ds.digest},
        {"version": 3, "digest": ds.digest},
        {"digest": "sha256:00"},
        {"digest": ""},
    ):
        with refused(FormatError, "digest="):
            shardio.open(url, **options)


def test_a_reader_stays_with_its_version(url):
    """A reader MUST stay with the version that it resolved."""
    ds = shardio.open(url)
    with shardio.DatasetWriter(url, mode="overwrite") as out:
        out.write(b"new")
    assert (ds.version, list(ds)) == (3, [b"0", b"1", b"2"])
    assert list(ds[1:]) == [b"1", b"2"]
    assert list(shardio.open(url)) == [b"new"]


def test_the_log_up_to_a_version(url):
    """A version that is not there is refused: the latest must not take its place."""
    shardio.tag(url, "second", version=2)
    for name in (2, "second"):
        assert [version.number for version in shardio.log(url, version=name)] == [2, 1]
    for missing in (0, 6, "third"):
        with refused(NotFoundError, f"no version {missing}"):
            shardio.log(url, version=missing)


def test_the_log_holds_everything(url):
    with shardio.DatasetWriter(url, mode="overwrite") as out:
        out.write(b"new")
    assert [version.number for version in shardio.log(url)] == [4, 3, 2, 1], "the latest first"
    for n in (1, 3, 4, 10**20):
        assert shardio.log(url, n) == shardio.log(url)[:n]
    with refused(ValueError, "n="):
        shardio.log(url, 0)
    versions = shardio.log(url)[::-1]
    assert [version.operation for version in versions] == ["append", "append", "append", "overwrite"]
    assert [(version.records, version.num_shards) for version in versions] == [(1, 1), (2, 2), (3, 3), (1, 1)]
    for before, after in itertools.pairwise(versions):
        assert after.manifest.parent_sha256 == before.sha256
        assert after.manifest.dataset_uuid == before.manifest.dataset_uuid
    assert versions[-1].digest == shardio.open(url).digest
    times = [version.manifest.created_ms for version in versions]
    assert all(time > 1_600_000_000_000 for time in times)


def test_a_version_lost_from_the_middle_is_an_error(url):
    connect(url).delete(naming.manifest_key(2))
    connect(url).overwrite(naming.HINT_KEY, b"3")
    assert shardio.open(url).version == 3
    with pytest.raises(FormatError):
        shardio.log(url)


@EVERY_PLACE
def test_where_there_is_no_dataset(place, tmp_path):
    url = fresh(place, tmp_path)
    for call in (shardio.open, shardio.log, shardio.gc):
        with pytest.raises(NotFoundError):
            call(url)


def test_limits_hold_for_manifests_and_lists(url):
    catalog = Catalog(connect(url), limits=Limits(manifest=50))
    with pytest.raises(FormatError):
        catalog.latest()
    few = Catalog(connect(url), limits=Limits(shards=2))
    with pytest.raises(ShardioError):
        few.latest()


def test_totals_and_lists_agree(tmp_path, monkeypatch):
    """The totals of the splits MUST be those of the lists, and every list MUST be the one that the manifest
    names.
    """
    monkeypatch.setattr("shardio.catalog._lists._RATIO", 0)  # so that lists stay apart
    url = fresh("memory", tmp_path)
    for number in range(3):
        with shardio.DatasetWriter(url, mode="append") as out:
            out.write(b"%d" % number)
    catalog = Catalog(connect(url))
    version = catalog.load()
    store = connect(url)
    refs = version.manifest.lists
    data = [store.get(ref.key, max_bytes=10_000) for ref in refs]
    store.delete(refs[0].key)
    with pytest.raises(FormatError):
        catalog.table(version)
    store.put_if_absent(refs[0].key, data[1])
    with pytest.raises(FormatError):
        catalog.table(version)
    with pytest.raises(FormatError):
        shardio.open(url)


def test_a_version_is_shown_in_a_line(tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path / "d") as out:
        out.write(b"wren", split="train")
    version = shardio.log(tmp_path / "d")[0]
    assert repr(version) == f"<shardio.Version 1 by create: train 1; {version.digest[:19]}>"


def test_a_version_lists_its_shards_as_columns(url):
    options = {"schema": {"n": "int64"}, "shard_bytes": 1 << 16, "compression": "gzip", "mode": "overwrite"}
    with shardio.DatasetWriter(url, **options) as out:
        for n in range(5000):
            out.write({"n": n}, split="train")
        out.write({"n": 1}, split="val")
    shardio.delete(url, positions=[0, 1], split="train")
    version = shardio.log(url)[0]
    shards = version.shards()
    ds = shardio.open(url, "all", decode=False)
    assert {len(column) for column in shards.values()} == {version.num_shards}
    assert shards["records"].sum() == len(ds) == version.records
    assert shards["deleted"].tolist()[0] == 2
    assert shards["stored_bytes"].sum() == ds.num_bytes
    assert {*shards["compression"]} == {"gzip"}
    assert [*dict.fromkeys(shards["split"])] == ["train", "val"]
    assert ds.locate(0).shard == shards["shard"][0]
    facts = version.facts()
    assert [feature["name"] for feature in facts["schema"]] == ["n"]
    assert facts.items() >= {**version.to_dict(), "splits": facts["splits"]}.items()
    # Credentials do not travel in a pickle, and what is left says where to ask.
    copy = pickle.loads(pickle.dumps(version))
    assert copy == version
    with pytest.raises(NotFoundError):
        copy.shards()
