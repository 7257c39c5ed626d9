"""Names: what may be a key, a split, a session."""

from __future__ import annotations

import functools
import ntpath
import posixpath
import re

import pytest
from hypothesis import example, given, strategies as st

from shardio.errors import UnsafeNameError
from shardio.metadata import Receipt, naming, parse_list, parse_manifest
from shardio.metadata.naming import check_key
from shardio.storage import connect
from shardio.v1 import manifest_pb2 as pb
from tests.metadata.crafted import list_of, manifest_message, sealed
from tests.suites.errors import refused

HOSTILE = [
    *("", ".", "..", "../x", "a/../x", "a/./x", "/etc/passwd", "a//b", "a/", "/a", "a\\b", "..\\x"),
    *("a\0b", "a\nb", "\x7f", "a/..", "C:\\x", "C:/x", "c:", "z:x/y", "c:\tx", "\\\\server\\x", "//server/x"),
    *("a\x01b", "a\x1fb", "a\rb", "x" * 4097, "ü" * 2049, "a/" * 2048 + "b"),
]
# Harmless under a root that is joined as text, but no names that shardio gives.
FOREIGN = ["~/x", "a b", "ü", "a*", "a?b", "[a]", "ab::c", "%2e%2e", ".hidden", "-x", "ab:c", "a+b"]
FOREIGN += ["x" * 300, "a::b", "a::b/c::d", "a\tb", "x" * 4096, "ü" * 2048]
SPLITS = st.from_regex(re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,63}", re.ASCII), fullmatch=True).filter(
    lambda name: name != "all"
)
SESSIONS = st.from_regex(re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII), fullmatch=True)
BASE32 = st.from_regex(r"[a-z2-7]{8}", fullmatch=True)


@pytest.mark.parametrize("key", [*HOSTILE, *FOREIGN, "a/" * 8 + "b", "a" * 256])
def test_own_keys(key):
    """A key of shardio's own MUST have at most 8 components, each `[A-Za-z0-9_][A-Za-z0-9._=-]{0,254}`."""
    with pytest.raises(UnsafeNameError) as caught:
        check_key(key)
    assert repr(key[:200]) in str(caught.value)


def test_own_keys_that_are_right():
    for key in ("a", "_shardio/latest", "a" * 255, "a/b/c/d/e/f/g/h", "data/x=1-y.z", "A.b"):
        assert check_key(key) == key


@given(st.text(st.sampled_from("/.a:~ \t\n\0\x7f\\é\ud800\udfff"), max_size=8))
@example("\n")
@example("a/..\n")
def test_one_rule_for_all_keys(key):
    """What lists and stores of objects refuse, and what a search leaves out, is one rule."""
    right = (
        not {"", ".", ".."} & {*key.split("/")}
        and not any(c in "\x7f\\" or (c < " " and c != "\t") for c in key)
        and key.encode("utf-8", "replace").decode() == key
    )
    assert (naming.unsafe_part(key) is None) == right
    store = connect("memory://")
    for check in (naming.check_foreign_key, store.head, lambda key: list(store.list(key + "/"))):
        if right and not re.match(".:(?!:)", key, re.DOTALL):
            check(key)
        elif not right:
            with pytest.raises(UnsafeNameError):
                check(key)


@pytest.mark.parametrize("key", HOSTILE)
def test_foreign_keys(key):
    """The key of an adopted shard or its index, and a doomed key, MUST NOT have an empty, `.` or `..`
    component, a control character but the tab, a backslash, or the letter of a drive (a colon as its second
    character that is not followed by another one: `C:` and `C:x`, but not `a::b`), nor more than 4096 bytes
    of UTF-8.

    The one law, wherever such a key may come from.
    """
    shards = {"key": [key, "data/b"]}
    for message, parse in (
        (list_of(**shards, root=[1, 0]), parse_list),
        (list_of(**shards, etag=["etag", ""]), parse_list),
        (list_of(index_key=[key or "/", ""]), parse_list),
        (pb.Receipt(format_version=1, shards=list_of(**shards, root=[1, 0])), Receipt.parse),
        (manifest_message(expiry=pb.Expiry(doomed_keys=[key])), functools.partial(parse_manifest, version=1)),
    ):
        with refused(UnsafeNameError, "key"):
            parse(message if isinstance(message, bytes) else sealed(message))
    with pytest.raises(UnsafeNameError):
        naming.check_foreign_key(key)


@pytest.mark.parametrize("key", [*FOREIGN, "...", "a/b/c/d/e/f/g/h/i/j"])
def test_foreign_keys_may_be_strange(key):
    assert naming.check_foreign_key(key) == key


@given(st.text(max_size=30) | st.from_regex(r"\A[A-Za-z]?:?[/\\.a:]{0,9}\Z"))
def test_no_accepted_key_leaves_its_root(key):
    for check in (check_key, naming.check_foreign_key):
        try:
            check(key)
        except UnsafeNameError:
            continue
        # As either kind of system joins a name to a folder, wherever this runs. "a::b" means
        # something only to Windows, which has no such files; stores join as text.
        for paths, root in ((posixpath, "/a/root"), (ntpath, "Q:\\a\\root"), (ntpath, "\\\\server\\a\\root")):
            joined = root + paths.sep + key if key[1:3] == "::" else paths.join(root, key)
            assert paths.normpath(joined).startswith(root + paths.sep)
        assert not {"", ".", ".."} & set(key.split("/"))


@pytest.mark.parametrize("name", [*HOSTILE, *FOREIGN, "a/b", "_a", "=a", "x" * 65, None, 7, b"a", "all"])
def test_splits(name):
    """A split's name MUST be `[A-Za-z0-9][A-Za-z0-9._=-]{0,63}` and not `all`; a session's
    `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`.
    """
    with pytest.raises(UnsafeNameError):
        naming.check_split(name)
    if name != "all":
        with pytest.raises(UnsafeNameError):
            naming.check_session(name)


def test_splits_and_sessions_that_are_right():
    for name in ("train", "0", "a=b", "x-y.z_", "All", "x" * 64):
        assert naming.check_split(name) == name
    with pytest.raises(UnsafeNameError):
        naming.check_session("a=b")
    assert naming.check_session("run-7.b_") == "run-7.b_"


@given(
    SPLITS,
    SESSIONS,
    st.integers(0, 10**6 - 1),
    BASE32,
    st.integers(0, 10**7),
    st.sampled_from(["", ".zst", ".gz"]),
)
@example("a-abcdefghijklmnop", "b", 7, "22222222", 1, "")
@example("2222222222222222", "b", 222222, "22222222", 1, "")
def test_data_keys_are_taken_apart_as_they_were_made(split, session, task, attempt, sequence, suffix):
    name = naming.DataKey(split, naming.session_id(session), task, attempt, sequence)
    key = name.key(suffix)
    assert naming.DataKey.parse(key) == name
    assert naming.DataKey.parse(naming.usual_index_key(key)) == name
    assert check_key(key) == key


@pytest.mark.parametrize(
    "key",
    [
        "",
        "data/",
        "data/x",
        "data/a-abcdefghijklmnop-0001.parquet",
        "a-abcdefghijklmnop-0001.tfrecord",
        "data/abcdefghijklmnop-0001.tfrecord",
        "data/a-abcdefghijklmno1-0001.tfrecord",
        "data/a-abcdefghijklmnop-001.tfrecord",
        "data/a-abcdefghijklmnop-0-0001.tfrecord",
        "data/a-abcdefghijklmnop-²-0001.tfrecord",
        "data/a-abcdefghijklmnop-²²²₂.tfrecord",
    ],
)
def test_what_is_no_data_key(key):
    assert naming.DataKey.parse(key) is None


@given(SESSIONS, st.integers(0, 10**9), BASE32, st.none() | st.integers(0, 10**7))
def test_receipt_keys_are_taken_apart_as_they_were_made(session, task, attempt, sequence):
    key = naming.ReceiptKey(session, task, attempt, sequence).key()
    assert naming.ReceiptKey.parse(key) == naming.ReceiptKey(session, task, attempt, sequence)
    assert check_key(key) == key


@given(st.integers(1, 10**20 - 1))
def test_manifest_keys(version):
    key = naming.manifest_key(version)
    assert naming.manifest_version(key) == version
    assert check_key(key) == key


@pytest.mark.parametrize(
    "key",
    [
        "_shardio/manifests/1.manifest",
        "x/" + naming.manifest_key(1),
        naming.manifest_key(1) + "x",
        naming.manifest_key(1)[:-1],
    ],
)
def test_what_is_no_manifest_key(key):
    assert naming.manifest_version(key) is None
    assert naming.ReceiptKey.parse(key) is None


def test_random_names():
    names = {naming.random_session() for _ in range(100)}
    assert len(names) == 100
    for name in names:
        assert naming.is_random_session(name)
        assert naming.check_session(name)
    assert not naming.is_random_session("run7")
    assert re.fullmatch("[0-9a-f]{16}", naming.random_id())
    assert check_key(naming.list_key(naming.random_id()))
