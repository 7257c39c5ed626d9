"""Indexes of keys: every hit is the record that has the key, whatever is in them."""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import shardio
from shardio import Feature
from shardio.catalog import Catalog, commit_change
from shardio.errors import FormatError, NotFoundError
from shardio.metadata import ShardTable, naming
from shardio.storage import connect
from tests.lifecycle.overtaken import before_commit, collect_before_commit
from tests.servers import s3 as servers_s3
from tests.suites.errors import refused

SCHEMA = {"id": "text", "n": "int64"}


def write(url, numbers, *, mode="create", schema=SCHEMA, key="id", make=lambda n: f"key {n}", **options):
    with shardio.DatasetWriter(
        url, schema=schema, mode=mode, shard_bytes=512, block_bytes=256, **options
    ) as out:
        for n in numbers:
            out.write({key: make(n), "n": n})


def build(url, feature="id", **options):
    return shardio.build_keys(url, feature, workers=1, **options)


def objects(url):
    return sorted(info.key for info in connect(url).list(naming.KEYS))


@pytest.fixture
def url(tmp_path):
    url = str(tmp_path / "birds")
    write(url, range(100))
    return url


@pytest.mark.parametrize("compression", [None, "zstd", "gzip"])
def test_every_key_leads_to_its_record(tmp_path, compression):
    url = str(tmp_path / "birds")
    write(url, range(100), compression=compression)
    report = build(url)
    ds = shardio.open(url)
    assert (report.keys, report.shards, report.read, report.runs) == (100, ds.num_shards, ds.num_shards, 1)
    assert ds.num_shards > 2
    assert len(objects(url)) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(100):
            assert ds.find(f"key {n}") == n
        assert ds.find([f"key {n}" for n in range(99, -1, -1)]).tolist() == list(range(99, -1, -1))
        assert ds.find([]).tolist() == []
        assert ds.find(["key 5", "key 5", "none"], default=-1).tolist() == [5, 5, -1]
        assert ds.find_all("key 7").tolist() == [7]
        assert [found.tolist() for found in ds.find_all(["key 7", "x", "key 7"])] == [[7], [], [7]]
        assert ds.find_all("none").tolist() == []
        with refused(NotFoundError, "'none'", "default="):
            ds.find("none")
        with refused(NotFoundError, "'x'"):
            ds.find(["key 1", "x"])


@pytest.mark.parametrize(
    ("kind", "make", "absent"),
    [
        ("int64", lambda n: (-1) ** n * n, [2**70, -(2**70), 1000]),
        ("uint8", lambda n: n + 150, [-1, 256, 3]),
        ("uint64", lambda n: 2**64 - 1 - n, [-1, 2**64, 0]),
        ("bytes", lambda n: bytes([n, 0, n]), [b"", b"\0"]),
        ("text", lambda n: "ü" * n, ["u", "ü" * 200]),
    ],
)
def test_keys_of_every_type(tmp_path, kind, make, absent):
    url = str(tmp_path / "birds")
    write(url, range(100), schema={"id": kind, "n": "int64"}, make=make)
    build(url)
    ds = shardio.open(url)
    assert ds.find([make(n) for n in range(100)]).tolist() == list(range(100))
    assert ds.find(absent, default=-1).tolist() == [-1] * len(absent)
    if kind.startswith(("int", "uint")):
        assert ds.find(np.array([make(3)], kind)).tolist() == [3]


def test_keys_of_another_type_are_refused(url):
    build(url)
    ds = shardio.open(url)
    for wrong in (7, b"key 7", None, 1.5, ["key 1", 7], [True]):
        with pytest.raises(TypeError):
            ds.find(wrong)
    with pytest.raises(TypeError):
        ds.find_all([7])


def test_features_that_are_no_keys_are_refused_by_name(tmp_path, url):
    other = str(tmp_path / "other")
    schema = {"x": "float32", "v": "int64[2]", "j": "json", "i": "jpeg", "b": "bool"}
    with shardio.DatasetWriter(other, schema=schema) as out:
        out.write({"x": 1.0, "v": [1, 2], "j": 1, "i": b"\xff\xd8\xff", "b": True})
    for name in schema:
        with pytest.raises(ValueError, match=f"'{name}' is .*; keys are text, bytes, int8"):
            build(other, name)
    with refused(ValueError, "'id'"):
        build(url, "idd")
    with pytest.raises(ValueError, match="keys are text"):
        build(url, "id_length")
    with pytest.raises(TypeError):
        build(url, ["id"])
    bare = str(tmp_path / "bare")
    with shardio.DatasetWriter(bare) as out:
        out.write(b"x")
    with pytest.raises(ValueError, match="needs a schema"):
        build(bare)
    with pytest.raises(NotFoundError):
        shardio.open(url).find("key 1")
    build(url)
    with refused(ValueError, "'n'"):
        shardio.open(url).find(3, feature="n")


def test_indexes_of_several_features(url):
    build(url)
    build(url, "n")
    ds = shardio.open(url)
    with refused(ValueError, "feature="):
        ds.find("key 3")
    assert ds.find("key 3", feature="id") == ds.find(3, feature="n") == 3


def test_an_empty_dataset(tmp_path):
    url = str(tmp_path / "empty")
    write(url, [])
    report = build(url)
    assert (report.keys, report.runs, report.version) == (0, 0, 2)
    assert shardio.open(url).find("x", default=-1) == -1
    write(url, range(3), mode="append")
    with pytest.warns(UserWarning, match="1 shards with 3 records are in no index"):
        assert shardio.open(url).find("key 2") == 2


def test_parts_and_splits_find_positions_of_their_own(tmp_path):
    url = str(tmp_path / "birds")
    with shardio.DatasetWriter(url, schema=SCHEMA, shard_bytes=512, block_bytes=256) as out:
        for n in range(60):
            out.write({"id": f"key {n}", "n": n}, split="train" if n % 3 else "val")
    build(url)
    val = shardio.open(url, split="val")
    train = shardio.open(url, split="train", decode=False)
    assert val.find("key 33") == 11
    assert train.find("key 33", default=-1) == -1
    assert train.find("key 34") == [n for n in range(60) if n % 3].index(34)
    both = shardio.open(url, split="all", features=["n"])
    for part in (
        both[5:50],
        both[50:5:-3],
        both.select([50, 3, 3, 20]),
        both.filter(lambda c: c["n"] % 2 == 0),
    ):
        held = [value["n"] for value in part]
        for n in range(60):
            expected = held.index(n) if n in held else -1
            assert part.find(f"key {n}", default=-1) == expected


def test_duplicates_are_reported_and_refused_and_all_are_found(tmp_path):
    url = str(tmp_path / "birds")
    write(url, range(90), make=lambda n: f"key {n % 80}")
    report = build(url)
    assert report.duplicate_records == 20
    assert len(report.duplicates) == 10
    ds = shardio.open(url)
    for each in report.duplicates:
        n = int(each.key.split()[1])
        assert each.records == 2
        places = [ds.locate(n), ds.locate(n + 80)]
        assert sorted(each.places) == sorted((place.shard, place.row) for place in places)
    with refused(ValueError, "'key 3'", "find_all"):
        ds.find("key 3")
    assert ds.find_all("key 3").tolist() == [3, 83]
    assert ds[:80].find("key 3") == 3
    assert ds.find("key 70") == 70
    assert report.to_dict()["duplicates"][0]["records"] == 2


@pytest.mark.slow  # it writes and reads a million records
def test_a_feature_that_most_records_share_is_no_key(tmp_path):
    """At most 2^20 entries of a run MUST have one hash, so that a lookup reads few pages."""
    url = str(tmp_path / "birds")
    with shardio.DatasetWriter(url, schema={"id": "int64"}) as out:
        out.write_batch({"id": np.zeros((1 << 20) + 1, np.int64)})
    with refused(ValueError, "'id'"):
        build(url)
    assert shardio.open(url).version == 1


def test_colliding_hashes_never_give_a_wrong_record(url, monkeypatch):
    """A record MUST be returned only if its own key is the one that was asked for: hashes may collide."""

    class FewHashes:
        def __init__(self, data, **_):
            self._data = data

        def digest(self):
            return bytes([sum(self._data) % 5]) + bytes(7)

    monkeypatch.setattr(hashlib, "blake2b", FewHashes)
    report = build(url)
    assert report.duplicate_records == 100
    assert report.duplicates == ()  # none of them has the same key as another
    ds = shardio.open(url)
    assert ds.find([f"key {n}" for n in range(100)]).tolist() == list(range(100))
    assert ds.find("none", default=-1) == -1


def test_optional_keys_and_defaults(tmp_path):
    url = str(tmp_path / "birds")
    schema = {"id": Feature("int64", optional=True), "n": "int64", "d": Feature("text", default="none")}
    with shardio.DatasetWriter(url, schema=schema) as out:
        for n in range(20):
            out.write({"n": n, **({"id": n, "d": str(n)} if n % 2 else {})})
    assert build(url).keys == 10
    build(url, "d")
    ds = shardio.open(url)
    assert ds.find([3, 4], feature="id", default=-1).tolist() == [3, -1]
    assert ds.find_all("none", feature="d").tolist() == list(range(0, 20, 2))


def test_new_shards_are_read_until_the_index_has_them(url):
    """A key that is in no run MUST NOT be reported as absent before the shards that no run holds were looked
    through.
    """
    build(url)
    write(url, range(100, 130), mode="append")
    ds = shardio.open(url)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ds.find("key 3") == 3  # found without them
    with pytest.warns(UserWarning, match=r"shards with 30 records are in no index of keys 'id'"):
        assert ds.find(["key 3", "key 129"]).tolist() == [3, 129]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ds.find("key 111") == 111  # read once
    report = build(url)
    assert report.read == ds.num_shards - shardio.open(url, version=1).num_shards
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = shardio.open(url)
        assert again.find([f"key {n}" for n in range(130)]).tolist() == list(range(130))
        assert again.find("x", default=-1) == -1
    same = build(url)
    assert (same.read, same.version) == (0, report.version)


def test_runs_are_merged_so_that_they_stay_few(url):
    build(url)
    for n in range(100, 130):
        write(url, [n], mode="append")
        report = build(url)
        assert report.read == 1
        assert report.runs <= 3
    assert report.keys == 130
    ds = shardio.open(url)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ds.find([f"key {n}" for n in range(130)]).tolist() == list(range(130))
    gone = shardio.gc(url, keep=1, dry_run=False)
    assert gone.deleted
    assert shardio.verify(url).ok
    assert shardio.open(url).find([f"key {n}" for n in range(130)]).tolist() == list(range(130))


def replace_entries(url, change):
    """Commit what `change` makes of the list of shards."""
    catalog = Catalog(connect(url))
    seen = catalog.load()

    def follow(base, lists):
        table = ShardTable.from_entries(change(list(catalog.table(base))))
        return replace(
            base.manifest,
            lists=lists.extend(catalog, (), table, merge=False),
            splits=tuple(total for _, total in sorted(table.totals().items())),
            deletions=any(table.deletion_key),
        )

    commit_change(catalog, follow, operation="test", seen=seen)


def test_shards_that_are_gone_or_moved_lead_to_no_wrong_record(url):
    """An entry whose shard is no longer part of the version MUST be ignored."""
    build(url)
    replace_entries(url, lambda entries: entries[:0:-1])  # one is gone, the others in another order
    ds = shardio.open(url)
    numbers = [value["n"] for value in ds]
    assert 0 < len(numbers) < 100
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(100):
            assert ds.find(f"key {n}", default=-1) == (numbers.index(n) if n in numbers else -1)
    replace_entries(url, lambda entries: entries[:2])
    report = build(url)
    assert report.keys == len(shardio.open(url))


def test_runs_that_are_cut_longer_or_gone_are_named(url):
    build(url)
    (run,) = objects(url)
    path = Path(url, run)
    content = path.read_bytes()
    keys = [f"key {n}" for n in range(100)]
    middle = content[:99] + bytes([content[99] ^ 1]) + content[100:]
    for wrong in (content[:-9], content[:10], b"", middle):
        path.write_bytes(wrong)
        with pytest.raises(shardio.ShardioError):
            shardio.open(url).find(keys)
        assert [finding.kind for finding in shardio.verify(url).findings] == ["keys"]
    path.write_bytes(content + b"x")
    assert [finding.kind for finding in shardio.verify(url).findings] == ["keys"]
    connect(url).delete(run)
    with pytest.raises(NotFoundError):
        shardio.open(url).find(keys)
    assert [finding.kind for finding in shardio.verify(url).findings] == ["missing"]


def test_a_run_that_claims_more_than_there_is_costs_no_request(url):
    """The size that the manifest names MUST be the one that follows from the numbers of shards and
    entries.
    """
    build(url)
    catalog = Catalog(connect(url))
    seen = catalog.load()
    (index,) = seen.manifest.keys
    for change in ({"size": 1 << 45}, {"entries": 1 << 40}, {"shards": 1 << 40}, {"entries": 1, "size": 1}):
        runs = (replace(index.runs[0], **change),)

        def follow(base, lists, runs=runs):
            del lists
            return replace(base.manifest, keys=(replace(index, runs=runs),))

        commit_change(catalog, follow, operation="test", seen=catalog.load())
        with pytest.raises(FormatError):
            shardio.open(url).find("key 3")
        assert [finding.kind for finding in shardio.verify(url).findings] == ["keys"]


def test_gc_keeps_indexes_of_live_versions_and_removes_orphans(url):
    build(url)
    old = objects(url)
    assert shardio.gc(url).doomed == ()
    build(url, rebuild=True)
    assert shardio.gc(url).doomed == ()
    orphan = f"{naming.KEYS}{'0' * 32}.run"
    connect(url).put_if_absent(orphan, b"left by a killed build")
    report = shardio.gc(url, expire=[1, 2], dry_run=False)
    assert {orphan, *old} <= {info.key for info in report.doomed}
    assert shardio.open(url).find("key 3") == 3
    assert shardio.verify(url).ok


def test_a_build_that_gc_overtook_is_made_again(url, monkeypatch):
    ran = collect_before_commit(url, monkeypatch)
    build(url)
    assert ran[0].doomed
    assert shardio.verify(url).ok
    assert shardio.open(url).find("key 3") == 3


def test_a_killed_build_publishes_nothing(url, monkeypatch):
    def killed():
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        before_commit(killed, patched)
        with pytest.raises(KeyboardInterrupt):
            build(url)
    assert shardio.open(url).version == 1
    assert shardio.gc(url, dry_run=False).doomed
    assert objects(url) == []
    build(url)
    assert shardio.open(url).find("key 3") == 3


def test_of_two_builds_at_once_both_end_with_one_index(url, monkeypatch):
    ran = before_commit(lambda: build(url), monkeypatch)
    assert build(url).version == ran[0].version
    assert shardio.open(url).find("key 3") == 3
    assert build(url).read == 0


def test_an_append_keeps_the_index_and_an_overwrite_does_not(url):
    build(url)
    write(url, range(100, 101), mode="append")
    assert shardio.open(url).find("key 3") == 3
    write(url, range(5), mode="overwrite")
    with pytest.raises(NotFoundError):
        shardio.open(url).find("key 3")


def test_a_dry_run_changes_nothing(url):
    report = build(url, dry_run=True)
    assert (report.read, report.dry_run, report.keys) == (report.shards, True, 0)
    assert objects(url) == []


def test_a_lookup_in_a_bucket_reads_three_ranges(running_server, tmp_path):
    """A page of the index, the ends of the frames of the record's block, and the block; the server counts."""
    server = running_server
    server.objects.clear()
    with shardio.DatasetWriter(tmp_path / "birds", schema=SCHEMA, block_bytes=2000) as out:
        # So many that the ends of frames do not come with the head of the shard's index.
        for n in range(17_000):
            out.write({"id": f"key {n}", "n": n})
    build(str(tmp_path / "birds"))
    server.load(tmp_path / "birds", "/bucket/birds")
    server.plan = lambda _: None
    for engine in ("fsspec", "obstore"):
        ds = shardio.open(
            "s3://bucket/birds", storage_options=servers_s3.options_for(server.url), engine=engine
        )
        server.log.clear()
        assert ds.find("key 4242") == 4242
        cold = [request.path for request, _ in server.log]
        # Once each: the head of the run, the head of the shard's index.
        assert len(cold) == 5, cold
        for key, position in (("key 4243", 4243), ("key 9999", 9999)):
            server.log.clear()
            assert ds.find(key) == position
            assert len(server.log) == 3
        server.log.clear()
        assert ds.find("none", default=-1) == -1
        assert len(server.log) == 1  # no record is read


@pytest.mark.slow
def test_builds_in_processes(tmp_path):
    url = str(tmp_path / "birds")
    write(url, range(300))
    seen = []
    shardio.build_keys(url, "id", workers=2, progress=seen.append)
    report = shardio.build_table(url, ["n"], workers=2, progress=seen.append)
    assert report.built > 3
    assert [state.unit for state in seen if state.done == state.total > 0] == ["B"] * 2
    ds = shardio.open(url)
    assert ds.find("key 299") == 299
    assert len(ds.filter("n >= 290")) == 10


@given(st.lists(st.text(max_size=3), max_size=60), st.lists(st.text(max_size=3), max_size=10), st.randoms())
@settings(max_examples=max(12, settings().max_examples // 10))
def test_find_is_what_a_dict_says(tmp_path_factory, keys, asked, random):
    url = str(tmp_path_factory.mktemp("dict") / "birds")
    cut = random.randint(0, len(keys))
    write(url, range(cut), make=lambda n: keys[n])
    build(url)
    write(url, range(cut, len(keys)), make=lambda n: keys[n], mode="append")
    if random.random() < 0.7:
        build(url)
    model: dict[str, list[int]] = {}
    for position, key in enumerate(keys):
        model.setdefault(key, []).append(position)
    ds = shardio.open(url)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for key in [*asked, *model]:
            assert ds.find_all(key).tolist() == model.get(key, [])
            if len(model.get(key, [])) < 2:
                assert ds.find(key, default=-1) == next(iter(model.get(key, [])), -1)


GOLDEN = Path(__file__).parents[1] / "golden" / "sidecars"


@pytest.mark.parametrize("place", ["local", "memory"])
def test_golden_tables_and_keys_stay_readable(place):
    """P19: what was written stays readable, whichever pyarrow wrote it and reads it."""
    facts = json.loads((GOLDEN / "expected.json").read_text())
    url = str(GOLDEN / "birds")
    if place == "memory":
        url = "memory://golden-sidecars"
        store = connect(url)
        for path in sorted((GOLDEN / "birds").rglob("*")):
            if path.is_file() and path.name != "latest":
                store.put_if_absent(str(path.relative_to(GOLDEN / "birds")), path.read_bytes())
    assert shardio.verify(url).ok
    ds = shardio.open(url, digest=facts["digest"])
    birds = facts["birds"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ds.find([f"bird-{n}" for n in birds[:-1]], feature="id").tolist() == list(
            range(len(birds) - 1)
        )
        assert ds.find([-n for n in birds[:-1]], feature="number").tolist() == list(range(len(birds) - 1))
        old = ds[:-1].to_arrow(["number", "caption", "tags_length", "kind", "caption_length"])
    with pytest.warns(UserWarning, match="in no index"):
        assert ds.find(["bird-40", "bird-3"], feature="id", default=-1).tolist() == [len(birds) - 1, -1]
    assert old.to_pylist() == [
        {
            "number": -n,
            "caption": "ü" * n if n % 3 else None,
            "tags_length": n % 4,
            "kind": n if n % 3 else 7,
            "caption_length": n if n % 3 else None,
        }
        for n in birds[:-1]
    ]
    assert len(ds.table_files()) == ds.num_shards - 1
