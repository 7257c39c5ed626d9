"""What the network does to reads and writes: the truth comes back, or the documented error (P9, P16, P17)."""

from __future__ import annotations

import functools
import pathlib

import aiohttp
import numpy as np
import pytest

from shardio.errors import NotFoundError, ShardioError, StorageError
from shardio.storage import ChangedObjectError, ShortReadError, Store, UnknownOutcomeError, connect
from tests.servers.faults import READ_FAULTS, FaultServer, Request
from tests.servers.s3 import options_for
from tests.suites.errors import refused
from tests.suites.store import read_ranges

CONTENT = np.random.default_rng(3).integers(0, 256, 200_000, np.uint8).tobytes()
OLD = np.random.default_rng(4).integers(0, 256, 200_000, np.uint8).tobytes()
KEY = "data/train-0.tfrecord"
CLIENTS = ["s3 fsspec", "s3 obstore", "http fsspec", "http obstore"]
# What never answers is given up soon, yet later than a busy machine answers.
SILENT = {"never", "trickle"}


@pytest.fixture
def server(running_server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> FaultServer:
    running_server.objects = {f"/bucket/root/{KEY}": CONTENT}
    running_server.stale = {f"/bucket/root/{KEY}": OLD}
    running_server.plan = lambda _: None
    running_server.token = None
    running_server.keeps_metadata = True
    running_server.condition_status = 412
    running_server.seen.clear()
    running_server.log.clear()
    # Other tests had another kind of server at this address.
    monkeypatch.setattr("shardio.storage._remote._proved", set())
    return running_server


def open_store(server: FaultServer, client: str, *, single_writer: bool = False, **options: object) -> Store:
    """Return a store whose library waits two seconds for an answer."""
    protocol, engine = client.split()
    if protocol == "s3":
        config = {"read_timeout": 2, "connect_timeout": 2}
        given: dict[str, object] = options_for(server.url, config_kwargs=config, **options)
        root = "s3://bucket/root"
    else:
        timeout = aiohttp.ClientTimeout(total=None, sock_read=2)
        root, given = f"{server.url}/bucket/root", {"client_kwargs": {"timeout": timeout}}
    return connect(root, storage_options=given, engine=engine, single_writer=single_writer)


def ranges(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Ranges that do not touch, in any order."""
    chance = np.random.default_rng(seed)
    edges = np.sort(chance.choice(len(CONTENT), 2 * count, replace=False))
    order = chance.permutation(count)
    return edges[0::2][order], edges[1::2][order]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("fault", READ_FAULTS)
@pytest.mark.parametrize("client", CLIENTS)
def test_reads_return_the_truth_or_the_documented_error(server: FaultServer, client: str, fault: str) -> None:
    """P9: a short, long, stale or mixed network reply is never returned as data."""
    if fault in SILENT and "obstore" in client:
        pytest.skip("obstore waits for minutes")
    store = open_store(server, client)
    file = store.open(KEY, size=len(CONTENT))
    # The first read settles which object this is.
    assert bytes(file.read(0, 10)) == CONTENT[:10]
    server.random_faults(fault, 0.2)
    good = 0
    for seed in range(4):
        starts, stops = ranges(seed, 10)
        try:
            got = file.begin_read(starts, stops, gap=0)()
        except StorageError as error:
            assert error.url == store.url_of(KEY)  # noqa: PT017 - both outcomes are allowed
            continue
        assert [bytes(view) for view in got] == [CONTENT[a:b] for a, b in zip(starts, stops, strict=True)]
        good += 1
    # A fifth of the replies is wrong: nearly all reads succeed all the same, except where it cannot be told
    # that asking again would help.
    assert good >= (0 if fault == "redirect nowhere" else 3)
    server.plan = lambda _: None
    assert bytes(file.read(5, 50)) == CONTENT[5:50]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "fault", [fault for fault in READ_FAULTS if fault != "trickle"]
)  # that one ends in time
@pytest.mark.parametrize("client", ["s3 obstore", "http fsspec"])
@pytest.mark.slow
def test_a_lasting_fault_is_an_error_in_the_end(server: FaultServer, client: str, fault: str) -> None:
    """P9, P16: whatever lasts becomes the documented error, after few requests."""
    if fault in SILENT and "obstore" in client:
        pytest.skip("obstore waits for minutes")
    store = open_store(server, client)
    file = store.open(KEY, size=len(CONTENT))
    assert bytes(file.read(0, 10)) == CONTENT[:10]
    server.random_faults(fault, 1.0)
    before = server.seen["GET"]
    with pytest.raises(StorageError) as caught:
        file.read(100, 200)
    assert caught.value.url == store.url_of(KEY)
    # A redirect that leads back to itself is followed ten times by the HTTP libraries.
    assert server.seen["GET"] - before <= (200 if fault == "redirect" else 20)
    if fault.startswith("stale"):
        assert isinstance(caught.value, ChangedObjectError)


@pytest.mark.parametrize("client", CLIENTS)
def test_small_metadata_is_held_to_the_same(server: FaultServer, client: str) -> None:
    """P9: also a whole object; a body cut short on the way is noticed, because the reply tells the size."""
    server.objects["/bucket/root/m"] = CONTENT[:5000]
    store = open_store(server, client)
    for fault in (
        "short body, right length",
        "short body, short length",
        "reset",
        "503",
        "portal",
        "no range",
    ):
        server.next_faults(fault, fault)
        assert store.get("m", max_bytes=10_000) == CONTENT[:5000], fault


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("fault", "kind"), [("403", StorageError), ("absent", NotFoundError), ("past the end", ShortReadError)]
)
def test_what_cannot_succeed_is_not_tried_again(
    server: FaultServer, client: str, fault: str, kind: type[ShardioError]
) -> None:
    """P16: 404, 403 and 416 are explained at once."""
    store = open_store(server, client)
    file = store.open(KEY)
    file.read(0, 10)
    key, place = KEY, (100, 200)
    if fault == "403":
        server.random_faults("403", 1.0)
    elif fault == "absent":
        key = "data/none"
    else:
        place = (len(CONTENT) + 5, len(CONTENT) + 9)
    before = server.seen["GET"]
    with pytest.raises(kind) as caught:
        (file if key == KEY else store.open(key)).read(*place)
    assert server.seen["GET"] - before <= 1
    if fault == "403":
        assert "credentials" in str(caught.value)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_refused_range_of_an_object_that_is_whole(server: FaultServer, client: str) -> None:
    """P16: a server (or a proxy) that answers 416 for bytes that are there is not damage of the object."""
    store = open_store(server, client)
    file = store.open(KEY, size=len(CONTENT))
    server.random_faults("416", 1.0)
    before = server.seen["GET"]
    with pytest.raises(StorageError, match="ends before bytes that it has") as caught:
        file.read(100, 200)
    assert server.seen["GET"] - before == 1
    assert not isinstance(caught.value, ShortReadError)
    assert (caught.value.start, caught.value.stop, caught.value.url) == (100, 200, store.url_of(KEY))
    assert f"{len(CONTENT)} bytes" in str(caught.value)
    assert "416" in str(caught.value)
    assert "the object itself is not damaged" in str(caught.value)
    with pytest.raises(StorageError, match="the object itself is not damaged"):
        store.get(KEY, max_bytes=len(CONTENT))
    server.plan = lambda _: None
    assert bytes(file.read(100, 200)) == CONTENT[100:200]


@pytest.mark.parametrize("client", CLIENTS)
def test_an_object_that_is_shorter_than_its_writer_said(server: FaultServer, client: str) -> None:
    """P16: the same answer, and the object does end before the range."""
    store = open_store(server, client)
    file = store.open(KEY, size=len(CONTENT))
    server.objects[f"/bucket/root/{KEY}"] = CONTENT[:150]
    with pytest.raises(ShortReadError) as caught:
        file.read(200, 300)
    assert (caught.value.start, caught.value.expected, caught.value.found) == (200, 100, 0)


def test_what_a_checksum_of_the_service_refuses_is_asked_for_again(server: FaultServer) -> None:
    """The client compares it and raises an error of its own, which ended five of six appends."""
    store = open_store(server, "s3 fsspec")
    server.next_faults(*["damaged, with a checksum"] * 2)
    assert store.get(KEY, max_bytes=len(CONTENT)) == CONTENT
    server.random_faults("damaged, with a checksum", 1.0)
    with pytest.raises(StorageError, match="the response is not what was asked for"):
        store.get(KEY, max_bytes=len(CONTENT))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("client", ["s3 fsspec", "s3 obstore"])
def test_rotating_credentials_are_picked_up(
    server: FaultServer,
    client: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
) -> None:
    """P17: a run of days survives rotating credentials; a filesystem is built again at most once a minute."""
    monkeypatch.setattr("shardio.storage._remote._RENEWAL", 0.0)
    profile = tmp_path / "credentials"

    def rotate(token: str) -> None:
        profile.write_text(
            f"[default]\naws_access_key_id = a\naws_secret_access_key = b\naws_session_token = {token}\n"
        )

    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    rotate("one")
    server.token = "one"
    store = open_store(server, client, key=None, secret=None)
    file = store.open(KEY, size=len(CONTENT))
    for round_number, token in enumerate(["two", "three", "four"]):
        assert bytes(file.read(0, 100)) == CONTENT[:100]
        rotate(token)
        server.token = token
        place = 1000 * round_number
        assert bytes(file.read(place, place + 100)) == CONTENT[place : place + 100]
        assert read_ranges(store, KEY, [5], [9])[0] == CONTENT[5:9]
    # Expired, and not renewed: an error that says so, soon.
    monkeypatch.setattr("shardio.storage._remote._RENEWAL", 60.0)
    server.token = "unknown"
    server.log.clear()
    with refused(StorageError, "expired"):
        file.read(0, 100)
    assert len(server.log) <= 4


@pytest.fixture
def writer(server: FaultServer) -> Store:
    store = open_store(server, "s3 fsspec")
    assert store.put_if_absent("first", b"1")
    return store


def test_a_refusal_for_an_object_that_is_not_there(server: FaultServer, writer: Store) -> None:
    """It was called "there is no such object"; it is asked for again, and said as it is."""
    server.next_faults("412", "412", method="PUT")
    assert writer.put_if_absent("one", b"1")
    assert server.objects["/bucket/root/one"] == b"1"
    assert not writer.put_if_absent("one", b"2")
    server.next_faults(*["412"] * 4, method="PUT")
    with pytest.raises(StorageError, match="says that the object exists already, but it is not there"):
        writer.put_if_absent("two", b"2")
    assert writer.put_if_absent("two", b"2")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("keeps_metadata", [True, False])
@pytest.mark.parametrize("fault", ["reset after", "503 after", "reset before", "503", "409", "slowdown"])
def test_a_write_whose_reply_is_lost_is_recognised(
    server: FaultServer, writer: Store, fault: str, keeps_metadata: bool, tmp_path: pathlib.Path
) -> None:
    """P2: a lost reply is not a failure: what is there is ours, or we put it again."""
    server.keeps_metadata = keeps_metadata
    for number in range(3):
        server.next_faults(*[fault] * (number + 1), method="PUT")
        assert writer.put_if_absent(f"m{number}", f"write {number}".encode()) is True
        assert server.objects[f"/bucket/root/m{number}"] == f"write {number}".encode()
    spool = tmp_path / "spool"
    spool.write_bytes(CONTENT)
    server.next_faults(fault, method="PUT")
    assert writer.put_if_absent("large", spool) is True
    assert server.objects["/bucket/root/large"] == CONTENT


def test_another_writers_object_is_never_taken_for_ours(server: FaultServer, writer: Store) -> None:
    """P3: a lost reply, and meanwhile another writer won."""

    def plan(request: Request) -> str | None:
        if request.method == "PUT" and request.path.endswith("/m") and request.path not in server.objects:
            server.objects[request.path] = b"theirs"
            return "reset before"
        return None

    server.plan = plan
    assert writer.put_if_absent("m", b"ours!!") is False
    assert server.objects["/bucket/root/m"] == b"theirs"


def test_a_write_without_any_answer_has_an_unknown_outcome(server: FaultServer, writer: Store) -> None:
    server.plan = lambda r: "reset before" if r.method == "PUT" else None
    with refused(UnknownOutcomeError, "unknown"):
        writer.put_if_absent("m", b"1")


def test_a_refused_write_has_a_known_outcome(server: FaultServer, writer: Store) -> None:
    server.plan = lambda r: "403" if r.method == "PUT" else None
    with refused(StorageError, "denied") as caught:
        writer.put_if_absent("m", b"1")
    assert not isinstance(caught.value, UnknownOutcomeError)


def test_a_store_that_replaces_is_found_out_before_anything_is_written(server: FaultServer) -> None:
    """The capability probe: a server that ignores `If-None-Match` takes no commit."""

    def deaf(request: Request) -> None:
        request.headers.pop("if-none-match", None)

    server.plan = deaf
    store = open_store(server, "s3 fsspec")
    with refused(StorageError, "single_writer="):
        store.put_if_absent("m", b"1")
    assert [path for path in server.objects if not path.endswith(KEY)] == []


def test_the_probe_is_asked_once_and_cleans_up(server: FaultServer) -> None:
    store = open_store(server, "s3 fsspec")
    store.put_if_absent("a", b"1")
    server.log.clear()
    store.put_if_absent("b", b"1")
    assert [r.method for r, _ in server.log] == ["PUT"]
    assert sorted(server.objects) == ["/bucket/root/a", "/bucket/root/b", f"/bucket/root/{KEY}"]


def test_what_is_confirmed_was_read_back(server: FaultServer) -> None:
    """P3: another writer's object that took the place of ours is not ours; one that cannot be read may be."""
    store = open_store(server, "s3 fsspec")
    assert store.put_and_confirm("m", b"ours") is True
    assert store.put_and_confirm("m", b"ours") is False

    def overwrite(theirs: bytes, request: Request) -> None:
        if request.method == "GET" and request.path.endswith("/n"):
            server.objects[request.path] = theirs

    for theirs in (b"them", b"longer ones", b"", b"x"):
        server.objects.pop("/bucket/root/n", None)
        server.plan = functools.partial(overwrite, theirs)
        assert store.put_and_confirm("n", b"ours") is False
    server.plan = lambda r: "403" if r.method == "GET" else None
    with pytest.raises(UnknownOutcomeError):
        store.put_and_confirm("o", b"ours")


@pytest.mark.parametrize("status", [400, 405, 501])
def test_a_store_that_does_not_know_the_condition_says_so(
    server: FaultServer, status: int, tmp_path: pathlib.Path
) -> None:
    server.condition_status = status
    store = open_store(server, "s3 fsspec")
    with pytest.raises(
        StorageError, match=rf"answers 'status {status}.*If-None-Match.*single_writer=True"
    ) as e:
        store.put_if_absent("m", b"1")
    assert not isinstance(e.value, UnknownOutcomeError)
    assert sorted(server.objects) == [f"/bucket/root/{KEY}"]
    # The advice works: a single writer needs no condition, and still replaces nothing.
    alone = open_store(server, "s3 fsspec", single_writer=True)
    spool = tmp_path / "spool"
    spool.write_bytes(CONTENT)
    server.log.clear()
    assert alone.put_and_confirm("m", b"1") is True
    assert alone.put_if_absent("m", b"2") is False
    assert alone.put_if_absent("large", spool) is True
    assert not any("if-none-match" in r.headers for r, _ in server.log)
    assert (server.objects["/bucket/root/m"], server.objects["/bucket/root/large"]) == (b"1", CONTENT)


def test_a_refusal_that_is_not_about_the_condition_is_told_as_it_is(server: FaultServer) -> None:
    server.plan = lambda r: "expired" if r.method == "PUT" else None
    with refused(StorageError, "expired"):
        open_store(server, "s3 fsspec").put_if_absent("m", b"1")
