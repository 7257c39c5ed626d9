"""From what is typed to the objects that are meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardio_indexer
from shardio.errors import NotFoundError, UnsafeNameError
from shardio_indexer._braces import expand_braces
from shardio_indexer._place import Place, common_folder
from shardio_indexer._places import find_shards
from shardio_indexer._splits import Splits


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


@pytest.fixture
def tree(tmp_path):
    names = [
        "train-0.tfrecord",
        "train-1.tfrecord",
        "val-0.tfrecord",
        "deep/er/train-2.tfrecord",
        "deep/x.tar",
        "notes.txt",
        "train-0.tfrecord.shardidx",
        "train-0.index",
        "_shardio/manifests/x.tfrecord",
        "名前 with spaces [1].tar",
    ]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * len(name))
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        (
            "",
            [
                "deep/er/train-2.tfrecord",
                "deep/x.tar",
                "train-0.tfrecord",
                "train-1.tfrecord",
                "val-0.tfrecord",
                "名前 with spaces [1].tar",
            ],
        ),
        ("train-*.tfrecord", ["train-0.tfrecord", "train-1.tfrecord"]),
        ("train-?.tfrecord", ["train-0.tfrecord", "train-1.tfrecord"]),
        ("*-[!1].tfrecord", ["train-0.tfrecord", "val-0.tfrecord"]),
        ("**/train-*.tfrecord", ["deep/er/train-2.tfrecord", "train-0.tfrecord", "train-1.tfrecord"]),
        ("deep/**", ["deep/er/train-2.tfrecord", "deep/x.tar"]),
        ("*/*.tar", ["deep/x.tar"]),
        ("{train-0,val-0}.tfrecord", ["train-0.tfrecord", "val-0.tfrecord"]),
        ("名前 with spaces [1].tar", ["名前 with spaces [1].tar"]),
        ("train-0.*", ["train-0.tfrecord"]),
        ("notes.txt", ["notes.txt"]),
    ],
)
def test_patterns(tree, pattern, keys) -> None:
    """Globs, braces and folders; sidecars are no shards; a name with glob characters is found by itself."""
    search = find_shards([f"{tree}/{pattern}"])
    root = Place.parse(str(tree))
    assert sorted(str(place.below(root)) for place in search.shards) == keys
    assert search.missing == []


def test_many_names_are_listed_once(tree, monkeypatch) -> None:
    from shardio.storage import LocalStore

    heads = []
    real = LocalStore.head

    def head(self, key):
        heads.append(key)
        return real(self, key)

    monkeypatch.setattr(LocalStore, "head", head)
    for n in range(100):
        (tree / f"many-{n:03}.tar").write_bytes(b"")
    assert len(find_shards([f"{tree}/many-{{000..099}}.tar"]).shards) == 100
    assert len(heads) <= 1


def test_lists(tree) -> None:
    (tree / "list").write_text(
        f"# comment\n\n{tree}/train-{{0,1}}.tfrecord\n{tree}/train-1.tfrecord\n", encoding="utf-8"
    )
    assert len(find_shards([f"@{tree}/list"]).shards) == 2
    with pytest.raises(NotFoundError):
        find_shards([f"@{tree}/absent"])


@pytest.mark.parametrize("pattern", ["nothing-*", "absent.tfrecord", "empty"])
def test_what_matches_nothing_is_named_and_the_rest_done(tree, pattern) -> None:
    (tree / "empty").mkdir()
    with pytest.raises(NotFoundError, match=pattern.rstrip("*")):
        shardio_indexer.adopt(f"{tree}/{pattern}")
    assert [path.name for path in (tree / "_shardio").rglob("*.manifest")] == []
    report = shardio_indexer.adopt([f"{tree}/{pattern}", f"{tree}/notes.txt"], into=tree / "into")
    assert (report.ok, report.adopted, len(report.refused)) == (False, 1, 1)
    assert pattern.rstrip("*") in str(report.refused[0].error)


def test_places() -> None:
    place = Place.parse("s3://bucket//a/b")
    assert place.url == "s3://bucket/a/b"
    assert place.below(Place.parse("s3://bucket/a")) == "b"
    assert place.below(Place.parse("s3://bucket/x")) is None
    assert Place.parse("/a/./b/../c").url == "/a/c"
    assert Place.parse("https://h/a%20b/c").below(Place.parse("https://h/a%20b")) == "c"
    for text in ("s3://", "", "https://h/x?token=1"):
        with pytest.raises(ValueError, match=r"bucket|empty|query"):
            Place.parse(text)


@given(st.lists(st.lists(st.sampled_from("ab"), max_size=4), min_size=1, max_size=5))
def test_the_common_folder_holds_all(paths) -> None:
    places = [Place("s3://", ("bucket", *parts)) for parts in paths]
    folder = common_folder(places)
    assert all(place.parts[: len(folder.parts)] == folder.parts for place in places)
    assert (
        any(len(place.parts) == len(folder.parts) for place in places)
        or len({p.parts[len(folder.parts)] for p in places}) > 1
    )


def test_places_without_a_common_folder() -> None:
    assert common_folder([Place.parse("s3://a/x"), Place.parse("s3://b/x")]) is None
    assert common_folder([Place.parse("s3://a/x"), Place.parse("gs://a/x")]) is None


def test_splits() -> None:
    splits = Splits({"train": "*train*", "val": "val/*"})
    assert [splits.of(key) for key in ("a/train-0", "val/x", "test/x")] == ["train", "val", None]
    assert Splits(None).of("x") == "train"
    assert Splits("test").of("x") == "test"
    with pytest.raises(UnsafeNameError):
        Splits("all")
