"""Datasets by the chains of fsspec that docs/object-stores.md names, against a real web server."""

from __future__ import annotations

import shutil

import pytest

import shardio
from shardio.errors import StorageError
from tests.servers.web import folder_server


@pytest.fixture(scope="module")
def places(served):
    shutil.make_archive(str(served / "birds"), "zip", served, "made")
    shutil.make_archive(str(served / "root"), "zip", served / "made")
    with folder_server(served) as url:
        yield served, url


# fsspec's block cache leaves the file open that it maps.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize(
    "chain",
    [
        "zip://made::{folder}/birds.zip",
        "zip://made::file://{folder}/birds.zip",
        "zip://::{folder}/root.zip",
        "zip://made::{web}/birds.zip",
        "zip://made::simplecache::{web}/birds.zip",
        "simplecache::{web}/made",
        "filecache::{web}/made",
        "blockcache::{web}/made",
    ],
)
def test_a_chain_is_a_dataset_that_is_not_written(places, chain) -> None:
    url = chain.format(folder=places[0], web=places[1])
    reader = shardio.open(url, "train")
    assert [record["n"] for record in reader] == list(range(20))
    assert reader.read_batch([3, 1])["n"].tolist() == [3, 1]
    assert shardio.verify(url).ok
    with pytest.raises(StorageError, match="cannot be written"):
        shardio.DatasetWriter(url, mode="append").write({"n": 1})
