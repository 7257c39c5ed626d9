"""Lists of sessions: manifests stay small, and what was merged is known forever."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import shardio
from shardio.catalog import Catalog, Version, collect_garbage
from shardio.errors import CommitConflictError, FormatError, NotFoundError, UnsupportedVersionError
from shardio.metadata import MergedSession, naming, parse_manifest, parse_sessions, seal_sessions
from shardio.storage import Store, connect
from shardio.v1 import manifest_pb2 as pb
from tests.catalog.test_lists import append, measure
from tests.metadata.crafted import manifest_message, sealed
from tests.promises.places import GOLDEN, copied, fresh
from tests.promises.stores import Counting, faulty
from tests.suites.errors import refused


def commit(url: str, session: str, record: bytes = b"x") -> Version:
    with shardio.DatasetWriter(url, mode="append", session=session) as out:
        out.write(record)
    version = Catalog(connect(url)).latest()
    assert version is not None
    return version


@pytest.fixture
def url(monkeypatch) -> str:
    """A dataset of 20 sessions, two in a manifest at most."""
    monkeypatch.setattr("shardio.catalog._lists._SESSIONS", 2)
    url = fresh("memory", None)
    for k in range(20):
        version = commit(url, f"day-{k}")
        here = {session.session for session in version.manifest.sessions}
        assert len(here) <= 2
        assert f"day-{k}" in here, "The session that a version merges MUST stand in its manifest itself."
    assert 1 <= len(version.manifest.session_lists) <= 3
    assert sum(ref.shards for ref in version.manifest.session_lists) + len(here) == 20
    return url


def test_a_session_of_a_collected_version_is_not_given_up(url):
    """No manifest is left that names it but by a list of sessions."""
    shardio.gc(url, keep=1, dry_run=False)
    assert Catalog(connect(url)).latest().manifest.session("day-0") is None
    with refused(ValueError, "'day-0'"):
        shardio.gc(url, abandon=["day-0"])
    assert len(shardio.open(url)) == 20


def test_the_session_that_a_version_merges_stands_in_it():
    """The session that a version merges MUST stand in its manifest itself."""
    versions = shardio.log(GOLDEN / "sessions")[::-1]
    assert len(versions) == 7
    for k, version in enumerate(versions):
        assert version.manifest.session(f"day-{k}") is not None
    assert versions[-1].manifest.session("day-0") is None
    assert [ref.shards for ref in versions[-1].manifest.session_lists] == [4, 2]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.parametrize("number", range(7))
def test_a_session_in_a_list_is_committed_again(place, number, tmp_path):
    """A session that was merged with the same SHA-256 MUST be a success without a new version; with another
    it MUST be `CommitConflictError`.
    """
    url = copied(GOLDEN / "sessions", place, tmp_path)
    assert shardio.commit(url, session=f"day-{number}", tasks=1).number == 7
    for mode in ("append", "overwrite", "create"):
        with shardio.DatasetWriter(url, mode=mode, session=f"day-{number}") as out:
            out.write(b"bird %d" % number)
    with (
        pytest.raises(CommitConflictError),
        shardio.DatasetWriter(url, mode="append", session=f"day-{number}") as out,
    ):
        out.write(b"another bird")
    assert Catalog(connect(url)).latest().number == 7
    assert list(shardio.open(url)) == [b"bird %d" % k for k in range(7)]


def write_many(url: str) -> shardio.parallel.WriteReport:
    return shardio.write_dataset(
        url, [b"a", b"b"], lambda record: [record], session="many", mode="append", workers=1, tasks=1
    )


def test_a_parallel_write_in_a_list_is_not_run_again(url):
    for _ in range(2):
        report = write_many(url)
        assert report.records == {"train": 2}
    for k in range(20, 25):
        commit(url, f"day-{k}")
    assert Catalog(connect(url)).latest().manifest.session("many") is None
    again = write_many(url)
    assert (again.records, again.version) == ({"train": 2}, 26)
    assert len(shardio.open(url)) == 27


def test_opening_reads_no_list_of_sessions(url):
    counting = Counting()
    with faulty(counting):
        assert len(shardio.open(url)) == 20
    refs = Catalog(connect(url)).latest().manifest.session_lists
    assert not {key for _, key in counting.calls} & {ref.key for ref in refs}


@pytest.mark.slow
def test_manifests_stay_small():
    """10,000 named appends are measured by `python -m tests.catalog.test_lists`."""
    most, requests, size = measure(400, named=True)
    assert most <= 1 + math.log(400, 8)
    assert requests < 10
    assert size < 12_000


def test_many_splits_make_a_list_early(monkeypatch):
    """Each split of a session is a message, and of these a manifest may hold so many."""
    monkeypatch.setattr("shardio.catalog._lists._SESSION_SPLITS", 3)
    url = fresh("memory", None)
    for k in range(4):
        with shardio.DatasetWriter(url, mode="append", session=f"s{k}") as out:
            out.write(b"x", "a")
            out.write(b"x", "b")
    manifest = Catalog(connect(url)).latest().manifest
    assert (len(manifest.sessions), sum(ref.shards for ref in manifest.session_lists)) == (2, 2)


def test_lists_are_not_merged_beyond_their_limit(monkeypatch, url):
    monkeypatch.setattr("shardio.catalog._lists._SESSION_BYTES", 1000)
    for k in range(20, 60):
        version = commit(url, f"day-{k}")
    sizes = [ref.size for ref in version.manifest.session_lists]
    assert sum(ref.shards for ref in version.manifest.session_lists) >= 58
    assert len(sizes) > 3
    assert max(sizes[2:]) <= 1000


def test_collection_keeps_them(url):
    """P20: lists of sessions go with the last version that names them; what they hold is never forgotten."""
    catalog = Catalog(connect(url))
    latest = catalog.latest()
    old = {ref.key for version in catalog.versions() for ref in version.manifest.session_lists}
    now = {ref.key for ref in latest.manifest.session_lists}
    assert now < old
    report = shardio.gc(url, keep=1, dry_run=False)
    doomed = {info.key for info in report.doomed}
    assert old - now <= doomed
    assert not now & doomed
    assert all(catalog.store.head(key) for key in now)
    for k in range(20):
        assert commit(url, f"day-{k}").number == report.version
    # What was written again needlessly goes, and nothing else.
    assert all(info.key.startswith(("data/", "_shardio/sessions/")) for info in shardio.gc(url).doomed)
    assert len(shardio.open(url)) == 20


def test_a_collection_in_between(url):
    """Lists that a commit stores may be doomed before it is through."""
    doomed: list[str] = []

    def collect_first(verb: str, key: str) -> str:
        if verb == "put_if_absent" and key == naming.manifest_key(21) and not doomed:
            doomed.append(key)
            catalog = Catalog(connect(url))
            doomed.extend(info.key for info in collect_garbage(catalog, dry_run=False).doomed)
        return ""

    with faulty(collect_first):
        commit(url, "day-20")
    assert len(doomed) > 1
    for k in range(21, 25):
        commit(url, f"day-{k}")
    catalog = Catalog(connect(url))
    latest = catalog.latest()
    named = {ref.key for ref in (*latest.manifest.lists, *latest.manifest.session_lists)}
    assert not named & set(doomed)
    assert all(catalog.merged(latest, f"day-{k}") for k in range(25))


def swapped(store: Store, url: str) -> str:
    """Put another list under the name of the newest list of sessions, and return its URL."""
    ref = Catalog(store).latest().manifest.session_lists[-1]
    data, _ = seal_sessions([MergedSession("other", bytes(32), 1, 1, {})])
    store.delete(ref.key)
    store.put_if_absent(ref.key, data)
    return store.url_of(ref.key)


def test_a_list_that_is_not_the_one_named(url):
    """A list of sessions MUST be the one that the manifest names, and `session_lists` MUST be exactly
    where there is one.
    """
    place = swapped(connect(url), url)
    with pytest.raises(FormatError) as caught:
        commit(url, "new")
    assert caught.value.url == place
    assert len(shardio.open(url)) == 20, "reading needs no sessions"
    (finding,) = shardio.verify(url).findings
    assert (finding.kind, finding.url) == ("list", place)
    ref = Catalog(connect(url)).latest().manifest.session_lists[0]
    connect(url).delete(ref.key)
    with pytest.raises(FormatError):
        commit(url, "new")
    listed = pb.ListRef(key=f"_shardio/lists/{'0' * 32}.list", bytes=100, sha256=bytes(32), shards=1)
    for fields in ({"session_lists": [listed]}, {"critical_features": ["session_lists"]}):
        with pytest.raises(FormatError):
            parse_manifest(sealed(manifest_message(**fields)), version=1)


def test_what_a_list_of_sessions_may_hold():
    session = MergedSession("s", bytes(32), 3, 2, {"train": 5})
    data, sha256 = seal_sessions([session, replace(session, session="t")])
    assert parse_sessions(data) == ({"s": session, "t": replace(session, session="t")}, sha256)
    message = pb.MergedSession(session="s", sha256=bytes(32))
    for sessions in ([message, message], [pb.MergedSession(session="s", sha256=b"short")]):
        with pytest.raises(FormatError):
            parse_sessions(sealed(pb.SessionList(format_version=1, sessions=sessions)))
    with pytest.raises(UnsupportedVersionError):
        parse_sessions(sealed(pb.SessionList(format_version=2)))
    with pytest.raises(shardio.errors.UnsafeNameError):
        hostile = pb.MergedSession(session="../s", sha256=bytes(32))
        parse_sessions(sealed(pb.SessionList(format_version=1, sessions=[hostile])))


def test_random_sessions_read_no_list(url):
    """What cannot be committed again need not be looked for."""
    swapped(connect(url), url)
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write(b"x")
    catalog = Catalog(connect(url))
    assert catalog.merged(catalog.latest(), "auto.0123456789abcdef") is None


def test_many_appends_by_receipts(monkeypatch):
    """All sessions are found again, whatever their lists were merged into."""
    monkeypatch.setattr("shardio.catalog._lists._SESSIONS", 5)
    catalog = Catalog(connect(fresh("memory", None)))
    for k in range(150):
        version = append(catalog, 1, f"day-{k}")
    assert len(version.manifest.session_lists) <= 1 + math.log(150, 8)
    fresh_catalog = Catalog(catalog.store)
    for k in range(150):
        assert fresh_catalog.merged(version, f"day-{k}").version == k + 1
    assert fresh_catalog.merged(version, "day-150") is None
    with pytest.raises(NotFoundError):
        shardio.commit(catalog.store.url, session="day-150", tasks=1)
