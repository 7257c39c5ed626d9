"""What spans lists: totals, roots, schema numbers, repeats; each rule broken once with every seal right."""

from __future__ import annotations

import hashlib

import pytest

from shardio.catalog import Catalog
from shardio.errors import FormatError
from shardio.metadata import naming
from shardio.storage import connect
from shardio.v1 import manifest_pb2 as pb
from tests.metadata.crafted import list_of, manifest_message, sealed
from tests.promises.places import fresh

TOTALS = pb.SplitTotals(name="train", rows=20, shards=2, stored_bytes=320, decoded_bytes=320)


def table_of(tmp_path, *lists, **fields):
    url = fresh("memory", tmp_path)
    store = connect(url)
    refs = []
    for number, data in enumerate(lists or (list_of(),)):
        key = f"_shardio/lists/{number}.list"
        store.put_if_absent(key, data)
        refs.append(pb.ListRef(key=key, bytes=len(data), sha256=hashlib.sha256(data).digest(), shards=2))
    facts = {"lists": refs, "splits": [TOTALS], **fields}
    store.put_if_absent(naming.manifest_key(1), sealed(manifest_message(**facts)))
    catalog = Catalog(store)
    return catalog.table(catalog.load())


def test_the_crafted_dataset_is_right(tmp_path):
    assert len(table_of(tmp_path)) == 2


@pytest.mark.parametrize("field", ["rows", "shards", "stored_bytes", "decoded_bytes"])
def test_totals(field, tmp_path):
    """The totals of the splits MUST be those of the lists, and every list MUST be the one that the manifest
    names.
    """
    wrong = pb.SplitTotals()
    wrong.CopyFrom(TOTALS)
    setattr(wrong, field, getattr(wrong, field) + 1)
    for splits in ([wrong], [], [TOTALS, pb.SplitTotals(name="x")]):
        with pytest.raises(FormatError):
            table_of(tmp_path, splits=splits)


def test_a_shard_twice(tmp_path):
    """A shard MUST NOT stand in a version twice."""
    double = pb.SplitTotals(name="train", rows=40, shards=4, stored_bytes=640, decoded_bytes=640)
    with pytest.raises(FormatError):
        table_of(tmp_path, list_of(), list_of(), splits=[double])


def test_roots(tmp_path):
    with pytest.raises(FormatError):
        table_of(tmp_path, list_of(root=[0, 1]))


def test_schema_numbers(tmp_path):
    with pytest.raises(FormatError):
        table_of(tmp_path, list_of(schema=[0, 1]))


def test_deletions_are_announced(tmp_path):
    gone = {"deleted_rows": [0, 1], "deletion_key": ["", "data/d"]}
    fewer = pb.SplitTotals(name="train", rows=19, shards=2, stored_bytes=320, decoded_bytes=320)
    with pytest.raises(FormatError):
        table_of(tmp_path, list_of(**gone), splits=[fewer])
    table_of(tmp_path, list_of(**gone), splits=[fewer], critical_features=["deletions"])
