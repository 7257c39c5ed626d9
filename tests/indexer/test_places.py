"""From what is typed to the objects that are meant."""

from __future__ import annotations

import pytest

import shardio_indexer
from shardio.errors import NotFoundError
from shardio.sources import SplitUrl
from shardio_indexer._layout import find_shards


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
    """Globs, braces and folders; sidecars are not shards; a name with glob characters is found by itself."""
    search = find_shards([f"{tree}/{pattern}"])
    root = SplitUrl.parse(str(tree))
    assert sorted(str(place.below(root)) for place in search.shards) == keys
    assert search.unmatched == []


@pytest.mark.parametrize("pattern", ["nothing-*", "absent.tfrecord", "empty"])
def test_what_matches_nothing_is_named_and_the_rest_done(tree, pattern) -> None:
    (tree / "empty").mkdir()
    with pytest.raises(NotFoundError, match=pattern.rstrip("*")):
        shardio_indexer.adopt(f"{tree}/{pattern}")
    assert [path.name for path in (tree / "_shardio").rglob("*.manifest")] == []
    report = shardio_indexer.adopt([f"{tree}/{pattern}", f"{tree}/notes.txt"], into=tree / "into")
    assert (report.ok, report.adopted, len(report.refused)) == (False, 1, 1)
    assert pattern.rstrip("*") in str(report.refused[0].error)
