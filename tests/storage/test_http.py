"""Web servers: read-only, without listing, every reading law all the same."""

from __future__ import annotations

import http.server
import pathlib
import pickle
import threading
import urllib.parse
from collections.abc import Iterator

import pytest
from aiohttp import web

from shardio.errors import FormatError, NotFoundError, StorageError
from shardio.storage import ShortReadError, Store, connect
from tests.servers.web import folder_server, serving
from tests.suites.errors import refused
from tests.suites.processes import answer_of_child
from tests.suites.store import CONTENT, NAMES, read_ranges

URL_NAMES = [name for name in NAMES if not name.startswith(".")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("web")
    for name in ("root/a", *(f"root/{name}" for name in URL_NAMES), "per cent/a"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT)
    (folder / "root/empty").write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def url(folder: pathlib.Path) -> Iterator[str]:
    with folder_server(folder) as url:
        yield url


@pytest.fixture(params=["fsspec", "obstore"])
def store(request: pytest.FixtureRequest, url: str) -> Store:
    return connect(f"{url}/root/", engine=request.param)


def test_reading(store: Store) -> None:
    assert store.get("a", max_bytes=len(CONTENT)) == CONTENT
    assert store.get("empty", max_bytes=0) == b""
    assert read_ranges(store, "a", [5], [99])[0] == CONTENT[5:99]
    with store.open("a") as file:
        views = file.read_many([500, 3, 3], [600, 4, 4])
        assert [bytes(view) for view in views] == [CONTENT[500:600], CONTENT[3:4], CONTENT[3:4]]
        assert file.size == len(CONTENT)
    with pytest.raises(ShortReadError):
        read_ranges(store, "a", [19_000], [20_001])[0]
    with pytest.raises(ShortReadError):
        store.open("a").read(19_000, 20_001)
    with refused(FormatError, "larger"):
        store.get("a", max_bytes=100)


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_files_that_the_server_calls_encoded(folder: pathlib.Path, engine: str) -> None:
    """Some web servers say so of what ends with .gz; its bytes are the file's own all the same."""

    async def answer(_: web.Request) -> web.FileResponse:
        return web.FileResponse(folder / "root/a", headers={"Content-Encoding": "gzip"})

    app = web.Application()
    app.router.add_get("/a.tfrecord.gz", answer)
    with serving(app) as url:
        store = connect(url, engine=engine)
        with store.open("a.tfrecord.gz") as file:
            assert bytes(file.read(5, 99)) == CONTENT[5:99]
            assert file.size == len(CONTENT)
        assert store.get("a.tfrecord.gz", max_bytes=len(CONTENT)) == CONTENT


def test_what_is_absent_is_not_found(store: Store) -> None:
    assert store.head("none") is None
    for read in (lambda: store.get("none", max_bytes=9), lambda: store.open("none").read(0, 1)):
        with pytest.raises(NotFoundError):
            read()


@pytest.mark.parametrize("name", URL_NAMES)
def test_any_name_names_one_object(store: Store, name: str) -> None:
    assert read_ranges(store, name, [1], [9])[0] == CONTENT[1:9]
    assert bytes(store.open(name).read(1, 9)) == CONTENT[1:9]
    info = store.head(name)
    assert info is not None
    assert info.size == len(CONTENT)


def test_a_web_server_takes_no_objects_and_lists_none(store: Store) -> None:
    assert store.read_only_reason
    assert not store.can_list
    assert store.read_only_reason == "a web server takes no objects"
    for call in (
        lambda: store.put_if_absent("x", b""),
        lambda: store.delete("a"),
        lambda: store.overwrite("x", b""),
    ):
        with pytest.raises(StorageError, match="cannot be written"):
            call()
    with pytest.raises(StorageError, match="cannot list"):
        store.list("")
    assert list(store.list_temporaries()) == []


def test_a_root_may_be_percent_encoded(
    url: str, folder: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = connect(f"{url}/{urllib.parse.quote('per cent')}")
    assert read_ranges(store, "a", [1], [9])[0] == CONTENT[1:9]
    # obstore would encode it once more; that is told, once.
    assert bytes(store.open("a").read(1, 9)) == CONTENT[1:9]
    assert bytes(store.open("a").read(2, 9)) == CONTENT[2:9]
    assert [record.getMessage().count("instead of obstore") for record in caplog.records] == [1]


def test_pickles_and_forks(url: str) -> None:
    store = pickle.loads(pickle.dumps(connect(f"{url}/root", engine="fsspec")))
    assert read_ranges(store, "a", [1], [9])[0] == CONTENT[1:9]
    assert answer_of_child(lambda: bytes(read_ranges(store, "a", [2], [9])[0])) == CONTENT[2:9]


def test_a_server_without_ranges_is_explained(folder: pathlib.Path) -> None:
    """P9: Python's own server returns the whole file where a range was asked for, silently."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, directory=str(folder), **kwargs)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        for engine in ("fsspec", "obstore"):
            store = connect(f"http://127.0.0.1:{server.server_port}/root", engine=engine)
            with pytest.raises(StorageError, match="ignores ranges"):
                store.open("a").read(10, 20)
        server.shutdown()
        thread.join()
