"""Data roots: shards that are elsewhere are read where the caller allows it, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardio
from shardio.catalog import Catalog
from shardio.errors import StorageError
from shardio.metadata import ListRef, Manifest, ShardEntry, ShardTable, naming, pack_list, seal_manifest
from shardio.storage import connect
from tests.promises.places import GOLDEN, copied, payloads
from tests.suites.errors import refused


@pytest.fixture
def elsewhere(tmp_path) -> tuple[str, str]:
    """A dataset whose index is with it, and whose shard is under another root."""
    source = copied(GOLDEN / "three", "local", tmp_path)
    catalog = Catalog(connect(source))
    (entry,) = catalog.table(catalog.load())
    root = tmp_path / "ds"
    store = connect(root)
    store.put_if_absent(entry.usual_index_key, Path(source, entry.usual_index_key).read_bytes())
    Path(source, entry.usual_index_key).unlink()
    table = ShardTable.from_entries([ShardEntry(**{**vars(entry), "root": 1, "etag": "etag"})])
    data, sha256 = pack_list(table)
    store.put_if_absent("_shardio/lists/a.list", data)
    manifest = Manifest(
        dataset_uuid=bytes(16),
        version=1,
        parent_version=0,
        parent_sha256=b"",
        write_id=bytes(16),
        roots={1: source},
        lists=(ListRef("_shardio/lists/a.list", len(data), sha256, 1),),
        splits=tuple(table.totals().values()),
    )
    store.put_if_absent(naming.manifest_key(1), seal_manifest(manifest)[0])
    return str(root), source


def test_a_root_is_read_only_where_allowed(elsewhere, monkeypatch):
    """A data root that the caller did not allow MUST NOT be touched; it is compared as text, and the caller's
    URL is opened.
    """
    url, root = elsewhere
    touched: list[str] = []

    def note(place: str, **options):
        touched.append(place)
        return connect(place, **options)

    monkeypatch.setattr("shardio.reader._source.connect", note)
    for allowed in (
        None,
        {},
        {root + "x": {}},
        {str(Path(root).parent): {}},
        {root + "/../" + Path(root).name: {}},
    ):
        with pytest.raises(StorageError, match="that place is not allowed") as caught:
            shardio.open(url, allow_roots=allowed)
        assert caught.value.found == root
        assert f"allow_roots={{{root!r}: {{}}}}" in str(caught.value.advice)
    assert root not in touched
    assert list(shardio.open(url, allow_roots={root: {}})) == payloads("three", 1, "train")
    assert list(shardio.open(url, allow_roots={root + "/": {}})) == payloads("three", 1, "train")
    assert root in touched


def test_an_adopted_shard_that_changed_is_stale(elsewhere):
    url, root = elsewhere
    (shard,) = Path(root, "data").iterdir()
    shard.write_bytes(shard.read_bytes() + b"more")
    with pytest.raises(shardio.errors.StaleIndexError) as caught:
        list(shardio.open(url, allow_roots={root: {}}))
    assert caught.value.url == str(shard)
    assert "shardio adopt" in str(caught.value.advice)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["/data", "s3://b"], "{'/data': {}, 's3://b': {}}"),
        ("/data", "{'/data': {}}"),
        ([], "'s3://bucket/': {}"),
        (3, "found int"),
        ([("s3://b", {"secret": "hush"})], "found list; write {'s3://bucket/': {}}"),
        ({"/data": "hush"}, "found '/data': str"),
        ({3: {"secret": "hush"}}, "found 3: dict"),
    ],
)
def test_roots_that_are_no_mapping(tmp_path, given, says) -> None:
    """The error says what to write, and no value of a storage option, which may be a secret."""
    for call in (shardio.open, shardio.Address):
        with refused(TypeError, "allow_roots", says) as caught:
            call(str(tmp_path), allow_roots=given)
        assert "hush" not in str(caught.value)
