"""What is typed stands for the same files everywhere: names, folders, patterns, braces, lists."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, strategies as st

from shardio.errors import NotFoundError
from shardio.sources import SplitUrl, common_folder, expand_braces, find_files
from shardio.storage import LocalStore, connect

NAMES = [
    "train-0.jsonl",
    "train-1.jsonl",
    "val-0.jsonl",
    "deep/er/train-2.jsonl",
    "deep/x.tar",
    "notes.txt",
    "名前 with spaces [1].tar",
    "braces{0}.tar",
]


@pytest.fixture(params=["local", "memory"])
def tree(request, tmp_path) -> str:
    url = str(tmp_path / "tree") if request.param == "local" else f"memory://{tmp_path.name}/tree"
    store = connect(url)
    for name in NAMES:
        store.put_if_absent(name, b"x" * len(name))
    return url


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        ("", sorted(NAMES)),
        ("train-*.jsonl", ["train-0.jsonl", "train-1.jsonl"]),
        ("train-?.jsonl", ["train-0.jsonl", "train-1.jsonl"]),
        ("*-[!1].jsonl", ["train-0.jsonl", "val-0.jsonl"]),
        ("**/*.jsonl", ["deep/er/train-2.jsonl", "train-0.jsonl", "train-1.jsonl", "val-0.jsonl"]),
        ("deep/**", ["deep/er/train-2.jsonl", "deep/x.tar"]),
        ("deep/**/*.jsonl", ["deep/er/train-2.jsonl"]),
        ("deep", ["deep/er/train-2.jsonl", "deep/x.tar"]),
        ("deep/", ["deep/er/train-2.jsonl", "deep/x.tar"]),
        ("*/*.tar", ["deep/x.tar"]),
        ("{train-0,val-0}.jsonl", ["train-0.jsonl", "val-0.jsonl"]),
        ("train-{0..1}.jsonl", ["train-0.jsonl", "train-1.jsonl"]),
        ("名前 with spaces [1].tar", ["名前 with spaces [1].tar"]),
        ("braces{0}.tar", ["braces{0}.tar"]),
        ("notes.txt", ["notes.txt"]),
    ],
)
def test_what_is_typed_finds_what_is_meant(tree, pattern, keys) -> None:
    """A name with characters of patterns that exists is that file."""
    listings = find_files(f"{tree}/{pattern}" if pattern else tree)
    root = SplitUrl.parse(tree)
    found = [file for listing in listings for file in listing.files]
    assert sorted(str(file.place.below(root)) for file in found) == keys
    assert [file.size for file in found] == [len(str(file.place.below(root))) for file in found]
    assert [listing.error for listing in listings] == [None] * len(listings)


@pytest.mark.parametrize("pattern", ["nothing-*", "absent.jsonl", "empty", "deep/**/*.csv"])
def test_what_is_not_there_is_named(tree, pattern) -> None:
    (listing,) = find_files(f"{tree}/{pattern}")
    assert listing.files == []
    assert isinstance(listing.error, NotFoundError)
    assert pattern.split("*")[0] in str(listing.error)


def test_lists(tree, tmp_path) -> None:
    names = tmp_path / "names.txt"
    text = f"\ufeff# comment\n\n{tree}/train-{{0,1}}.jsonl\n  {tree}/*.txt  \n"
    names.write_text(text, encoding="utf-8")
    keys = [file.key for listing in find_files(f"@{names}") for file in listing.files]
    assert keys == ["train-0.jsonl", "train-1.jsonl", "notes.txt"]
    with pytest.raises(NotFoundError):
        find_files(f"@{tmp_path}/absent")


def test_several_in_the_order_given(tree) -> None:
    listings = find_files([f"{tree}/val-0.jsonl", f"{tree}/deep", f"{tree}/val-*"])
    assert [(listing.kind, len(listing.files)) for listing in listings] == [
        ("file", 1),
        ("folder", 2),
        ("pattern", 1),
    ]


def test_many_names_are_listed_once(tmp_path, monkeypatch) -> None:
    heads = []
    real = LocalStore.head

    def head(self, key):
        heads.append(key)
        return real(self, key)

    monkeypatch.setattr(LocalStore, "head", head)
    for n in range(100):
        (tmp_path / f"many-{n:03}.tar").write_bytes(b"")
    listings = find_files(f"{tmp_path}/many-{{000..099}}.tar")
    assert sum(len(listing.files) for listing in listings) == 100
    assert len(heads) <= 1


def test_names_that_are_not_text_are_listed(tmp_path) -> None:
    (tmp_path / "good.txt").touch()
    with open(os.fsencode(tmp_path) + b"/bad\xff.txt", "wb"):  # noqa: PTH123 - pathlib has no bytes
        pass
    for url in (str(tmp_path), f"{tmp_path}/*.txt"):
        (listing,) = find_files(url)
        assert [file.key for file in listing.files] == ["good.txt"]
        assert listing.bad_names == [f"{tmp_path}/bad\\udcff.txt"]


def test_what_is_gone_is_told_from_what_was_not_asked_for(tree) -> None:
    root = SplitUrl.parse(tree)
    (listing,) = find_files(f"{tree}/train-*.jsonl")
    assert listing.lacks(root.join("train-7.jsonl"))
    assert not listing.lacks(root.join("train-0.jsonl"))
    assert not listing.lacks(root.join("val-7.jsonl"))
    (listing,) = find_files(f"{tree}/train-7.jsonl")
    assert listing.lacks(root.join("train-7.jsonl"))
    assert not listing.lacks(root.join("train-8.jsonl"))


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("https://host/*.tar", "web server cannot be listed"),
        ("s3://*/x", "below a bucket"),
        ("https://h/x?token=1", "query"),
        ("", "empty"),
        ("s3://", "bucket"),
        ("zip://a/*.tar::/x.zip", "within a file.*unpack"),
        ("zip://a.tar::s3://bucket/x.zip", "within a file"),
        ("simplecache::file:///x/a.tar", "cache of local"),
        ("simplecache::https://host/*.tar", "web server cannot be listed"),
    ],
)
def test_what_makes_no_sense_is_refused(url, match) -> None:
    with pytest.raises(ValueError, match=match):
        find_files(url)
    with pytest.raises(TypeError):
        find_files([None])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("x-{000..002}.tar", ["x-000.tar", "x-001.tar", "x-002.tar"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{a,b}-{0..1}", ["a-0", "a-1", "b-0", "b-1"]),
        ("{a,b{1..2}}", ["a", "a", "b1", "b2"]),
        ("no{brace}s {here", ["no{brace}s {here"]),
        ("{x}{1,2}", ["{x}1", "{x}2"]),
    ],
)
def test_braces(text, names) -> None:
    assert sorted(expand_braces(text)) == sorted(names)


def test_too_many_names() -> None:
    with pytest.raises(ValueError, match="at most"):
        expand_braces("{0..1000001}")
    with pytest.raises(ValueError, match="more than"):
        expand_braces("{0..9999}{0..9999}")


def test_places() -> None:
    place = SplitUrl.parse("s3://bucket//a/b")
    assert place.url == "s3://bucket/a/b"
    assert place.below(SplitUrl.parse("s3://bucket/a")) == "b"
    assert place.below(SplitUrl.parse("s3://bucket/x")) is None
    assert SplitUrl.parse("/a/./b/../c").url == "/a/c"
    assert SplitUrl.parse("https://h/a%20b/c").below(SplitUrl.parse("https://h/a%20b")) == "c"
    assert SplitUrl.parse("http://H:80/a b%2fc/x%3D1").url == "http://h/a%20b%2Fc/x=1"
    assert SplitUrl.parse("http://h").join_key("x=1/a+b") == SplitUrl.parse("http://H/x%3d1/a%2Bb")
    assert SplitUrl.parse("simplecache::s3://b/x").url == "simplecache::s3://b/x"


@given(st.lists(st.lists(st.sampled_from("ab"), max_size=4), min_size=1, max_size=5))
def test_the_common_folder_holds_all(paths) -> None:
    places = [SplitUrl("s3://", ("bucket", *parts)) for parts in paths]
    folder = common_folder(places)
    assert folder is not None
    count = len(folder.parts)
    assert all(place.parts[:count] == folder.parts for place in places)
    ends = [place.parts[count : count + 1] for place in places]
    assert () in ends or len(set(ends)) > 1


def test_places_without_a_common_folder() -> None:
    assert common_folder([SplitUrl.parse("s3://a/x"), SplitUrl.parse("s3://b/x")]) is None
    assert common_folder([SplitUrl.parse("s3://a/x"), SplitUrl.parse("gs://a/x")]) is None
