"""What remote stores do beyond the laws: numbers of requests, engines, uploads in parts, forks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib.util
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import s3fs

from shardio.errors import NotFoundError, StorageError
from shardio.storage import Store, _remote, connect, unlisted
from tests.servers.faults import FaultServer
from tests.servers.s3 import make_bucket, options_for
from tests.suites.cases import one_fast
from tests.suites.errors import refused
from tests.suites.processes import answer_of_child
from tests.suites.store import read_ranges

CONTENT = np.random.default_rng(5).integers(0, 256, 300_000, np.uint8).tobytes()


@pytest.fixture
def server(running_server: FaultServer) -> FaultServer:
    running_server.objects = {"/bucket/root/a": CONTENT}
    running_server.plan = lambda _: None
    running_server.log.clear()
    return running_server


def store_on(server: FaultServer, engine: str | None = "fsspec") -> Store:
    return connect("s3://bucket/root", storage_options=options_for(server.url), engine=engine)


def requests(server: FaultServer) -> list[tuple[str, tuple[int, int] | None]]:
    return [(request.method, request.range) for request, _ in server.log]


def test_connecting_and_opening_send_nothing(server: FaultServer) -> None:
    store = store_on(server)
    with store.open("a", size=5) as file:
        assert file.size == 5
    pickle.loads(pickle.dumps(store))
    assert server.log == []


def test_near_ranges_share_a_request_and_far_ones_do_not(server: FaultServer) -> None:
    file = store_on(server).open("a", size=len(CONTENT))
    file.begin_read([50, 0, 1000, 160, 10], [60, 10, 1010, 170, 20], gap=100)()
    assert sorted(requests(server)) == [("GET", (0, 170)), ("GET", (1000, 1010))]


def test_a_long_range_is_cut_and_put_together(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardio.storage._remote.LONGEST", 100_000)
    store = store_on(server)
    file = store.open("a", size=len(CONTENT))
    assert bytes(file.read(1, 250_001)) == CONTENT[1:250_001]
    pieces = sorted(place for _, place in requests(server) if place)
    assert [stop - start for start, stop in pieces] == [83_333, 83_333, 83_334]


def test_a_whole_small_object_is_one_request(server: FaultServer) -> None:
    assert store_on(server).get("a", max_bytes=1 << 20) == CONTENT
    assert [method for method, _ in requests(server)] == ["GET"]


def test_a_range_beyond_the_known_size_sends_nothing(server: FaultServer) -> None:
    file = store_on(server).open("a", size=len(CONTENT))
    with pytest.raises(StorageError, match="ends before"):
        file.read(0, len(CONTENT) + 1)
    assert server.log == []


def test_a_wrong_size_given_is_noticed_by_the_first_reply(server: FaultServer) -> None:
    """P6: truncation and extension are noticed where the reply carries the size."""
    for size in (len(CONTENT) - 1, len(CONTENT) + 1):
        with pytest.raises(StorageError, match="not the one that was opened"):
            store_on(server).open("a", size=size).read(0, 10)


def test_an_etag_given_is_held_against_replies(server: FaultServer) -> None:
    store = store_on(server)
    info = store.head("a")
    assert info is not None
    assert bytes(store.open("a", etag=info.etag).read(0, 9)) == CONTENT[:9]
    with pytest.raises(StorageError, match="not the one that was opened"):
        store.open("a", etag='"another"').read(0, 9)


@contextlib.contextmanager
def slow_answers(server: FaultServer, seconds: float) -> Iterator[Callable[[], int]]:
    """Delay answers; give how many requests were under way at once at most."""
    now = most = 0
    answer = server._answer

    async def answer_later(*arguments: object) -> bool:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(seconds)
        try:
            return await answer(*arguments)
        finally:
            now -= 1

    server._answer = answer_later
    try:
        yield lambda: most
    finally:
        server._answer = answer


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_bytes_in_flight_are_bounded(
    server: FaultServer, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardio.storage._remote._IN_FLIGHT", 20_000)
    _remote._process.cache_clear()
    file = store_on(server, engine).open("a", size=len(CONTENT))
    file.read(0, 1)
    starts = np.arange(0, 300_000, 6_000)
    try:
        with slow_answers(server, 0.01) as most_at_once:
            got = file.begin_read(starts, starts + 5_000, gap=0)()
    finally:
        _remote._process.cache_clear()
    assert [bytes(view) for view in got] == [CONTENT[s : s + 5_000] for s in starts]
    assert 2 <= most_at_once() <= 4


@pytest.mark.parametrize("client", ["s3 fsspec", "s3 obstore", "http fsspec", "http obstore"])
def test_an_endless_reply_is_cut_off(server: FaultServer, client: str) -> None:
    """A reply is never longer than what was asked for, and no more of it is held."""
    protocol, engine = client.split()
    if protocol == "s3":
        store = store_on(server, engine)
    else:
        store = connect(f"{server.url}/bucket/root", engine=engine)
    server.plan = lambda r: "endless" if r.range else None
    for read in (lambda: store.open("a").read(10, 74), lambda: store.get("a", max_bytes=1 << 20)):
        server.sent = 0
        with pytest.raises(StorageError, match=r"more than (64|300000)|Content-Length"):
            read()
        # What lies in the buffers of both sides of each of the few tries.
        assert server.sent < 64 << 20
    server.plan = lambda _: None
    assert bytes(store.open("a").read(10, 74)) == CONTENT[10:74]


@pytest.mark.parametrize("client", ["s3 fsspec", "s3 obstore", "http fsspec", "http obstore"])
def test_a_garbled_reply_is_asked_for_again(server: FaultServer, client: str) -> None:
    """A reply whose first bytes are not HTTP says nothing of the object."""
    protocol, engine = client.split()
    if protocol == "s3":
        store = store_on(server, engine)
    else:
        store = connect(f"{server.url}/bucket/root", engine=engine)
    for number in range(3):
        server.next_faults("garbled")
        assert bytes(store.open("a").read(number, 74)) == CONTENT[number:74]
        server.next_faults("garbled")
        assert store.get("a", max_bytes=1 << 20) == CONTENT


@pytest.mark.slow
def test_a_long_listing_has_no_deadline_while_pages_come(
    moto_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = connect(f"s3://{make_bucket(moto_endpoint)}/root", storage_options=options_for(moto_endpoint))
    for number in range(8):
        store.put_if_absent(f"d/{number}", b"")
    call = s3fs.S3FileSystem._call_s3

    async def slow_pages(fs: s3fs.S3FileSystem, method: str, **arguments: object) -> object:
        await asyncio.sleep(0.3)
        return await call(fs, method, MaxKeys=1, **arguments)

    # What any time limit of one request or one listing would be cut down to.
    monkeypatch.setattr("shardio.storage._client._BODY_SECONDS", 0.0)
    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", slow_pages)
    assert [info.key for info in store.list("d/")] == [f"d/{number}" for number in range(8)]


@pytest.mark.slow
def test_metadata_is_read_without_obstore_so_that_a_parent_may_fork(server: FaultServer) -> None:
    """P15: a process that may start workers reads metadata by fsspec, and its children read by obstore."""
    script = f"""
import multiprocessing, os, sys
from shardio.storage import connect
store = connect("s3://bucket/root", storage_options={options_for(server.url)!r})
store.get("a", max_bytes=1 << 20); store.head("a")
assert "obstore" not in sys.modules
child = os.fork()
if child == 0:
    store.open("a", size={len(CONTENT)}).read(0, 10)
    os._exit(0 if "obstore" in sys.modules else 3)
assert os.waitpid(child, 0)[1] == 0
"""
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "environment", "header"),
    one_fast(
        [
            ({"key": "x", "secret": "y", "token": "z"}, {}, ("x-amz-security-token", "z")),
            (
                {},
                {"AWS_ACCESS_KEY_ID": "v", "AWS_SECRET_ACCESS_KEY": "y"},
                ("authorization", "Credential=v/"),
            ),
            ({"anon": True}, {}, ("authorization", None)),
            ({"key": "x", "secret": "y", "requester_pays": True}, {}, ("x-amz-request-payer", "requester")),
        ]
    ),
)
def test_metadata_and_data_need_no_s3fs_if_options_state_everything(
    server: FaultServer, tmp_path: pathlib.Path, options: dict, environment: dict, header: tuple
) -> None:
    """Importing and connecting it takes half a second; keys are those that it would take."""
    script = f"""
import sys
from shardio.storage import connect
store = connect("s3://bucket/root", storage_options={ {**options, "endpoint_url": server.url}!r})
assert store.get("a", max_bytes=1 << 20) == bytes(store.open("a").read(0, {len(CONTENT)}))
assert not {{"s3fs", "botocore", "fsspec"}} & set(sys.modules)
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "FSSPEC_"))}
    command = [sys.executable, "-W", "ignore", "-c", script]
    environment = {**clean, **environment, "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    name, expected = header
    for request, _ in server.log:
        assert (expected or "") in (request.headers.get(name) or "")
        assert (name in request.headers) == (expected is not None)


@pytest.mark.slow
def test_errors_hold_no_callers(server: FaultServer) -> None:
    """What a caller of the store holds is freed by reference count, also where an answer was an error.

    An error holds its frames and their callers'; held by one of these in turn, it would keep a writer, its
    files and uploads until the collector runs, perhaps in the I/O thread.
    """
    store = store_on(server)

    class Held:
        pass

    def call(work: Callable[[], object]) -> weakref.ref[Held]:
        held = Held()
        with contextlib.suppress(StorageError, NotFoundError):
            work()
        return weakref.ref(held)

    calls: list[Callable[[], object]] = [
        lambda: store.get("absent", max_bytes=9),
        lambda: store.head("absent"),
        lambda: store.open("absent", size=9).read(0, 9),
        lambda: store.put_if_absent("a", b"again"),
    ]
    gc.collect()
    gc.disable()
    try:
        kept = [number for number, work in enumerate(calls) if call(work)() is not None]
    finally:
        gc.enable()
    assert kept == []


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
@pytest.mark.parametrize("end", ["", "raise KeyboardInterrupt"])
def test_what_is_queued_at_exit_is_dropped(server: FaultServer, engine: str, end: str) -> None:
    """P14: requests that were sent end, and none is sent after the last line of a program."""
    script = f"""
from shardio.storage import connect
store = connect("s3://bucket/root", engine="{engine}", storage_options={options_for(server.url)!r})
file = store.open("a", size={len(CONTENT)})
file.read(0, 1)
starts = list(range(0, {len(CONTENT)}, 300))
wait = file.begin_read(starts, [start + 1 for start in starts], gap=0)
{end}
"""
    with slow_answers(server, 0.3):
        subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=not end, timeout=100)
    assert len(server.log) < 200


def test_a_first_read_beside_other_requests(server: FaultServer) -> None:
    """The I/O thread needs the filesystem that a thread builds a reader of obstore from."""
    for number in range(3):  # a client of its own each time
        options = options_for(server.url, config_kwargs={"max_pool_connections": 50 + number})
        store = connect("s3://bucket/root", storage_options=options)
        barrier = threading.Barrier(9)

        def look(store: Store = store, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            for _ in range(3):
                assert store.head("a") is not None

        others = [threading.Thread(target=look, daemon=True) for _ in range(8)]
        for other in others:
            other.start()
        barrier.wait()
        assert bytes(store.open("a", size=len(CONTENT)).read(0, 9)) == CONTENT[:9]
        for other in others:
            other.join(60)
            assert not other.is_alive()


def test_the_child_of_a_user_of_obstore_reads_with_fsspec_and_says_so_once(
    server: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    """P15: safe after fork, or a clear error, never a hang."""
    store = store_on(server, None)
    file = store.open("a", size=len(CONTENT))
    file.read(0, 10)

    def work() -> bytes:
        caplog.clear()
        data = bytes(file.read(0, 10)) + bytes(file.read(10, 20))
        # asyncio may log what it finds of the parent's event loop.
        notices = [each.getMessage() for each in caplog.records if each.name.startswith("shardio")]
        return data + repr(["forked after obstore" in notice for notice in notices]).encode()

    assert answer_of_child(work) == CONTENT[:20] + b"[True]"


def test_options_that_cannot_be_translated_are_named_once(
    server: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    options = options_for(server.url, config_kwargs={"user_agent_extra": "x"})
    store = connect("s3://bucket/root", storage_options=options)
    for _ in range(3):
        assert bytes(store.open("a").read(0, 9)) == CONTENT[:9]
    assert [record.getMessage().count("user_agent_extra") for record in caplog.records] == [1]
    insisting = connect("s3://bucket/root", storage_options=options, engine="obstore")
    with refused(StorageError, "user_agent_extra"):
        insisting.open("a").read(0, 9)


def test_a_first_read_that_only_fsspec_can_do_settles_it(
    server: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Options translated wrongly show themselves as a refusal; the other client is asked before it counts."""
    server.plan = lambda r: "403" if "object_store" in r.headers.get("user-agent", "") else None
    server.objects["/another/root/a"] = CONTENT
    store = connect("s3://another/root", storage_options=options_for(server.url))
    for _ in range(3):
        assert bytes(store.open("a").read(0, 9)) == CONTENT[:9]
    assert len(caplog.records) == 1
    assert "AccessDenied" in caplog.text


def test_without_obstore_fsspec_reads_and_nothing_is_said(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = importlib.util.find_spec
    missing = {"obstore", "s3fs"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "obstore" else found(n))
    assert bytes(store_on(server, None).open("a").read(0, 9)) == CONTENT[:9]
    assert caplog.records == []
    with refused(ModuleNotFoundError, "shardio[obstore]"):
        store_on(server, "obstore")
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n in missing else found(n))
    with refused(ModuleNotFoundError, "shardio[s3]"):
        store_on(server)


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("", {}, "empty"),
        ("s3://", {}, "names no bucket"),
        ("s3://bucket", {"engine": "rust"}, "engine must be"),
        ("sftp://host/x", {"engine": "obstore"}, "not sftp"),
    ],
)
def test_a_senseless_url_is_the_callers_mistake(url: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        connect(url, **options)


def test_an_azure_url_may_name_its_account() -> None:
    store = connect("abfss://container@account.dfs.core.windows.net/some/root/")
    assert store.url == "abfss://container@account.dfs.core.windows.net/some/root"
    assert store.url_of("k").endswith("/some/root/k")


@pytest.mark.slow
def test_children_forked_under_load_neither_hang_nor_disturb(server: FaultServer) -> None:
    """P15: forks with open readers and requests in flight."""
    store = store_on(server)
    file = store.open("a", size=len(CONTENT))
    file.read(0, 1)
    stop = threading.Event()
    wrong: list[int] = []

    def load(seed: int) -> None:
        chance = np.random.default_rng(seed)
        while not stop.is_set():
            start = int(chance.integers(0, 290_000))
            if bytes(file.read(start, start + 1000)) != CONTENT[start : start + 1000]:
                wrong.append(start)

    threads = [threading.Thread(target=load, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(2):
            place = number * 1000
            assert (
                answer_of_child(functools.partial(file.read, place, place + 500))
                == CONTENT[place : place + 500]
            )
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []


def read_some(store: Store, start: int) -> bytes:
    return bytes(store.open("a", size=len(CONTENT)).read(start, start + 100))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_of_every_kind_read(server: FaultServer, method: str) -> None:
    store = store_on(server, None)
    assert store.get("a", max_bytes=1 << 20) == CONTENT
    context = multiprocessing.get_context(method)
    with context.Pool(2 if method == "fork" else 1) as pool:
        got = pool.starmap(read_some, [(store, k * 1000) for k in range(6)])
        pool.close()
        pool.join()
    assert got == [CONTENT[k * 1000 : k * 1000 + 100] for k in range(6)]


@pytest.mark.slow
def test_a_large_spool_file_goes_up_in_parts(
    moto_endpoint: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardio.storage._client.PART_BYTES", 5 << 20)
    store = connect(f"s3://{make_bucket(moto_endpoint)}/root", storage_options=options_for(moto_endpoint))
    spool = tmp_path / "spool"
    spool.write_bytes(CONTENT * 40)
    assert store.put_if_absent("big", spool)
    assert not store.put_if_absent("big", spool)
    info = store.head("big")
    assert info is not None
    assert info.size == 12_000_000
    # The ETag of an object made of parts ends with their number.
    assert info.etag.endswith('-3"')
    assert read_ranges(store, "big", [11_999_000], [12_000_000])[0] == (CONTENT * 40)[11_999_000:]
    assert list(store.list_temporaries()) == []


@pytest.mark.slow
def test_probes_of_the_killed_are_listed_and_removed(moto_endpoint: str) -> None:
    store = connect(f"s3://{make_bucket(moto_endpoint)}/root", storage_options=options_for(moto_endpoint))
    store.overwrite("_shardio/probes/dead", b"first")
    store.put_if_absent("data/a", b"1")
    (left,) = store.list_temporaries()
    assert left.key == "_shardio/probes/dead"
    assert store.delete(left.key)
    assert not store.delete(left.key)
    assert list(store.list_temporaries()) == []
    assert "lifecycle rule" in str(unlisted(store))


def test_a_long_listing_comes_in_pages(moto_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = connect(f"s3://{make_bucket(moto_endpoint)}/root", storage_options=options_for(moto_endpoint))
    for number in range(5):
        store.put_if_absent(f"d/{number}", b"")
    call, pages = s3fs.S3FileSystem._call_s3, []

    async def two_a_page(fs: s3fs.S3FileSystem, method: str, **arguments: object) -> object:
        pages.append(method)
        return await call(fs, method, MaxKeys=2, **arguments)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", two_a_page)
    assert [info.key for info in store.list("d/")] == [f"d/{number}" for number in range(5)]
    assert pages == ["list_objects_v2"] * 3
