"""Memory: the laws, and that fsspec sees the same objects."""

from __future__ import annotations

import uuid

import fsspec
import pytest

from shardio.storage import Store, connect
from tests.suites.store import StoreLaws


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


class TestMemory(StoreLaws):
    start_method = None

    @pytest.fixture
    def store(self, name: str) -> Store:
        return connect(f"memory://{name}/root/")


def test_stores_of_one_name_share_their_objects(name: str) -> None:
    connect(f"memory://{name}").put_if_absent("a/b", b"1")
    assert connect(f"memory://{name}/a").get("b", max_bytes=1) == b"1"
    assert list(connect(f"memory://{name}x").list("")) == []


def test_fsspec_sees_the_same_objects(name: str) -> None:
    store = connect(f"memory://{name}")
    store.put_if_absent("a", b"1")
    assert fsspec.filesystem("memory").cat_file(f"/{name}/a") == b"1"
    fsspec.filesystem("memory").pipe_file(f"/{name}/b", b"22")
    assert [(info.key, info.size) for info in store.list("")] == [("a", 1), ("b", 2)]
