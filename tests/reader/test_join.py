"""Features of two datasets as one: every way of reading gives both, in the order of the left side."""

from __future__ import annotations

import hashlib
import json
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import shardio
from shardio import Feature
from shardio.errors import ResumeError, SchemaError
from tests.suites.errors import refused

ROWS = 120


def written(url: Any, schema: dict[str, Any], values: list[dict[str, Any]], **options: Any) -> str:
    with shardio.DatasetWriter(url, schema, shard_bytes=700, block_bytes=256, **options) as out:
        for value in values:
            out.write(value)
    return str(url)


@pytest.fixture
def sides(tmp_path) -> tuple[str, str, str]:
    """Images in order; vectors in the same order; captions by key, in another one, with a key too many."""
    order = np.random.default_rng(0).permutation(ROWS + 1).tolist()
    return (
        written(tmp_path / "images", {"id": "text", "label": "int64"}, [image(k) for k in range(ROWS)]),
        written(tmp_path / "vectors", VECTORS, [vector(k) for k in range(ROWS)], encoding="tensors"),
        written(tmp_path / "captions", CAPTIONS, [caption(k) for k in order], compression="zstd"),
    )


VECTORS = {"vector": "float32[3]", "steps": "int32[?]"}
CAPTIONS = {"id": "text", "caption": "text", "label": Feature("int64", default=-1)}


def image(k: int) -> dict[str, Any]:
    return {"id": f"bird {k}", "label": k}


def vector(k: int) -> dict[str, Any]:
    return {"vector": [k, k, k], "steps": [k] * (k % 3)}


def caption(k: int) -> dict[str, Any]:
    return {"id": f"bird {k}", "caption": f"caption {k}", **({} if k % 2 else {"label": k})}


def joined(sides: tuple[str, str, str]) -> shardio.DatasetReader:
    images, vectors, captions = map(shardio.open, sides)
    return shardio.join(shardio.join(images, vectors), captions, on="id", rename={"label": "other"})


def plain(value: dict[str, Any]) -> dict[str, Any]:
    return {name: item.tolist() if hasattr(item, "tolist") else item for name, item in value.items()}


def wanted(k: int) -> dict[str, Any]:
    return {**image(k), **vector(k), "caption": f"caption {k}", "other": -1 if k % 2 else k}


def rows_of(batch: dict[str, Any]) -> list[dict[str, Any]]:
    return [plain({name: column[k] for name, column in batch.items()}) for k in range(len(batch["id"]))]


def test_every_way_of_reading(sides) -> None:
    reader = joined(sides)
    everything = [wanted(k) for k in range(ROWS)]
    assert list(reader.schema) == list(wanted(0))
    assert len(reader) == ROWS
    assert [plain(value) for value in reader] == everything
    assert [plain(reader[k]) for k in range(ROWS)] == everything
    assert plain(reader[-1]) == wanted(ROWS - 1)
    some = [7, 3, 3, -1]
    assert [plain(value) for value in reader.read(some)] == [wanted(k % ROWS) for k in some]
    assert rows_of(reader.read_batch(some)) == [wanted(k % ROWS) for k in some]
    assert [row for batch in reader.iter_batches(50) for row in rows_of(batch)] == everything
    assert [plain(value) for value in reader[5:90:7]] == everything[5:90:7]
    assert [plain(value) for value in reader.select([9, 2, 9])] == [everything[k] for k in (9, 2, 9)]
    again = pickle.loads(pickle.dumps(reader[10:20]))
    assert [plain(value) for value in again] == everything[10:20]
    found = reader.filter(lambda columns: columns["other"] % 10 == 0, features=["other"])
    assert [plain(value) for value in found] == everything[::10]
    found = reader.filter(lambda columns: [text.endswith("7") for text in columns["caption"]])
    assert [plain(value) for value in found] == everything[7::10]


@pytest.mark.parametrize("options", [{}, {"num_threads": 0}, {"transform": dict}], ids=str)
def test_streams_have_the_order_of_the_left_side(sides, options) -> None:
    reader = joined(sides)
    own = [b["label"].tolist() for b in shardio.stream(shardio.open(sides[0]), global_batch=16, seed=4)]
    batches = list(shardio.stream(reader, global_batch=16, seed=4, **options))
    assert [batch["label"].tolist() for batch in batches] == own
    for batch in batches:
        assert rows_of(batch) == [wanted(k) for k in batch["label"].tolist()]
    part = reader[3:100].filter(lambda columns: columns["label"] % 3 == 0)
    rows = [
        row for b in shardio.stream(part, global_batch=8, remainder="keep", **options) for row in rows_of(b)
    ]
    assert sorted(row["label"] for row in rows) == list(range(3, 100, 3))
    assert rows == [wanted(row["label"]) for row in rows]


def test_a_run_goes_on_with_other_ranks(sides) -> None:
    reader = joined(sides)
    whole = [b["caption"] for b in shardio.stream(reader, global_batch=12, seed=1)]
    streams = [shardio.stream(reader, global_batch=12, seed=1, rank=r, world_size=2) for r in range(2)]
    parts = [iter(stream) for stream in streams]
    for k in range(3):
        assert sorted(text for part in parts for text in next(part)["caption"]) == sorted(whole[k])
    state = json.loads(json.dumps(streams[0].state_dict()))
    assert [each.get("on") for each in state["datasets"][0]["joined"]] == [None, "id"]
    streams = [shardio.stream(reader, global_batch=12, seed=1, rank=r, world_size=3) for r in range(3)]
    for stream in streams:
        stream.load_state_dict(state)
    rest = [[batch["caption"] for batch in stream] for stream in streams]
    for k, batch in enumerate(whole[3:]):
        assert sorted(text for part in rest for text in part[k]) == sorted(batch)


def test_a_state_belongs_to_both_sides(sides) -> None:
    """Another right-hand side, another version of it or another way to join is refused by name."""
    images, vectors, captions = map(shardio.open, sides)
    by_position = shardio.join(images, vectors)
    state = shardio.stream(by_position, global_batch=12).state_dict()
    shardio.set_schema(sides[1], {"note": Feature("text", default="-")})
    fresh = shardio.join(images, shardio.open(sides[1]))
    shardio.stream(fresh, global_batch=12).load_state_dict(state)  # the records are the same
    shardio.delete(sides[1], [0])
    written(sides[1], VECTORS, [vector(0)], encoding="tensors", mode="append")
    other = shardio.join(images, shardio.open(sides[1]))
    with pytest.raises(ResumeError):
        shardio.stream(other, global_batch=12).load_state_dict(state)
    with pytest.raises(ResumeError):
        shardio.stream(images, global_batch=12).load_state_dict(state)
    state = shardio.stream(
        shardio.join(images, captions, on="id", rename={"label": "x"}), global_batch=12
    ).state_dict()
    turned = shardio.join(images, captions[:ROWS], rename={"label": "x", "id": "id2"})
    with pytest.raises(ResumeError):
        shardio.stream(turned, global_batch=12).load_state_dict(state)


def test_mixtures(sides) -> None:
    reader = joined(sides)
    mixed = shardio.mix([(reader[:60], 0.5), (reader[60:], 0.5)])
    for options in ({}, {"transform": dict}):
        for batch in shardio.stream(mixed, global_batch=12, **options):
            assert rows_of(batch) == [wanted(k) for k in batch["label"].tolist()]
    with pytest.raises(ValueError, match="one schema"):
        shardio.mix([(reader, 0.5), (shardio.open(sides[0]), 0.5)])


def test_deletions_on_both_sides(sides) -> None:
    """Positions are those of live records."""
    shardio.delete(sides[0], [0, 5, ROWS - 1])
    shardio.delete(sides[1], [0, 5, ROWS - 1])
    live = [wanted(k) for k in range(ROWS) if k not in (0, 5, ROWS - 1)]
    reader = joined(sides)
    assert [plain(value) for value in reader] == live
    assert [plain(reader[k]) for k in range(len(reader))] == live
    (batch,) = shardio.stream(reader, global_batch=len(live), shuffle=False)
    assert rows_of(batch) == live
    shardio.delete(sides[1], [3])
    with pytest.raises(SchemaError):
        joined(sides)


def test_parts_of_both_sides(sides) -> None:
    images, vectors, captions = map(shardio.open, sides)
    both = shardio.join(images[10:20], vectors.select(np.arange(19, 9, -1)))
    assert [int(value["label"] + value["vector"][0]) for value in both] == [29] * 10
    assert [int(value["vector"][0]) for value in both[2:4]] == [17, 16]
    some = captions.filter(lambda columns: [int(text[5:]) % 4 == 0 for text in columns["id"]])
    inner = shardio.join(images[10:50], some, on="id", how="inner", rename={"label": "other"})
    assert [int(value["label"]) for value in inner] == list(range(12, 50, 4))
    assert [value["caption"] for value in inner] == [f"caption {k}" for k in range(12, 50, 4)]
    (batch,) = shardio.stream(inner, global_batch=len(inner), shuffle=False)
    assert batch["caption"] == [f"caption {k}" for k in range(12, 50, 4)]


def test_features_that_are_chosen(sides) -> None:
    images = shardio.open(sides[0], features=["label"])
    captions = shardio.open(sides[2], features=["caption"])
    reader = shardio.join(images, captions, on="id")
    assert plain(reader[3]) == {"label": 3, "caption": "caption 3"}
    with refused(ValueError, "'nothing'"):
        reader.filter(lambda columns: columns, features=["nothing"])


@pytest.mark.parametrize("kinds", [("int64", "uint8"), ("text", "text"), ("bytes", "bytes")])
def test_keys(tmp_path, kinds) -> None:
    def key(kind: str, k: int) -> Any:
        return k if "int" in kind else str(k) if kind == "text" else bytes([0, k, 0])

    left = written(
        tmp_path / "l", {"k": kinds[0], "a": "int64"}, [{"k": key(kinds[0], k), "a": k} for k in range(9)]
    )
    right = written(
        tmp_path / "r", {"k": kinds[1], "b": "int64"}, [{"k": key(kinds[1], k), "b": k} for k in (8, 2, 5)]
    )
    with refused(SchemaError, "how="):
        shardio.join(shardio.open(left), shardio.open(right), on="k")
    inner = shardio.join(shardio.open(left), shardio.open(right), on="k", how="inner")
    assert [(int(v["a"]), int(v["b"])) for v in inner] == [(2, 2), (5, 5), (8, 8)]
    twice = written(right, {"k": kinds[1], "b": "int64"}, [{"k": key(kinds[1], 2), "b": 7}], mode="append")
    with refused(SchemaError, "'k'"):
        shardio.join(shardio.open(left), shardio.open(twice), on="k", how="inner")
    many = shardio.join(shardio.open(twice), shardio.open(left), on="k")
    assert [(int(v["b"]), int(v["a"])) for v in many] == [(8, 8), (2, 2), (5, 5), (7, 2)]


@given(data=st.data())
@settings(max_examples=max(10, settings().max_examples // 10), deadline=None)
def test_many_to_one(tmp_path_factory, data) -> None:
    """Each record of the left has the features of its one on the right, however it is read, as in a dict."""
    folder = tmp_path_factory.mktemp("many")
    ids = data.draw(st.lists(st.integers(-(2**40), 2**40), unique=True, min_size=1, max_size=12))
    views = data.draw(st.lists(st.sampled_from([*ids, 2**50]), min_size=1, max_size=60))
    kind = data.draw(st.sampled_from(["int64", "text"]))
    key = str if kind == "text" else int
    left = written(
        folder / "l", {"user": kind, "n": "int64"}, [{"user": key(k), "n": n} for n, k in enumerate(views)]
    )
    right = written(
        folder / "r", {"user": kind, "age": "int64", "tags": "int32[?]"},
        [{"user": key(k), "age": n, "tags": range(n % 4)} for n, k in enumerate(ids)],
    )  # fmt: skip
    age = {k: n for n, k in enumerate(ids)}
    expected = [
        {"user": key(k), "n": n, "age": age[k], "tags": list(range(age[k] % 4))}
        for n, k in enumerate(views)
        if k in age
    ]
    both = shardio.join(shardio.open(left), shardio.open(right), on="user", how="inner")
    assert [plain(value) for value in both] == expected
    assert [plain(value) for value in both.read(range(len(both))[::-1])] == expected[::-1]
    if expected:
        batch = both.read_batch(range(len(both)))
        assert [int(each) for each in batch["age"]] == [row["age"] for row in expected]
        assert [row.tolist() for row in batch["tags"]] == [row["tags"] for row in expected]
        steps = shardio.stream(both, global_batch=7, seed=3, remainder="keep")
        seen = [(int(n), int(a)) for step in steps for n, a in zip(step["n"], step["age"], strict=True)]
        assert sorted(seen) == [(row["n"], row["age"]) for row in expected]


def test_what_cannot_be_joined(sides, tmp_path) -> None:
    images, vectors, captions = map(shardio.open, sides)
    raw = written(tmp_path / "raw", None, [b"x"])
    wrong: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
        (images, captions, {"on": "id"}, ValueError, "'label' on both sides.*rename="),
        (images, captions, {"on": "id", "rename": {"nothing": "x"}}, ValueError, "does not have"),
        (images, captions, {"on": "id", "rename": {"label": "caption"}}, ValueError, "twice on the right"),
        (images, captions, {"on": "caption"}, ValueError, "no feature 'caption' on the left"),
        (images, vectors, {"on": "id"}, ValueError, "no feature 'id' on the right"),
        (vectors, vectors, {"on": "vector"}, ValueError, "a key is an integer, text or bytes"),
        (images, vectors[1:], {}, SchemaError, "expected 120.*found 119"),
        (images, vectors, {"how": "inner"}, ValueError, "how="),
        (images, vectors, {"how": "outer", "on": "id"}, ValueError, "how="),
        (images.select([2, 1]), vectors[:2], {}, ValueError, "storage order"),
        (images, shardio.open(raw), {}, ValueError, "needs a schema"),
        (images, shardio.open(sides[1], decode=False), {}, ValueError, "decode=True"),
        (images, shardio.open(sides[1], on_error="skip"), {}, ValueError, "on_error"),
        (images, [1], {}, TypeError, "found list on the right"),
    ]
    for left, right, options, error, why in wrong:
        with pytest.raises(error, match=why):
            shardio.join(left, right, **options)
    texts = written(tmp_path / "texts", {"label": "text"}, [{"label": "1"}])
    with pytest.raises(SchemaError):
        shardio.join(images, shardio.open(texts), on="label")
    lacking = written(tmp_path / "lack", {"id": Feature("text", optional=True), "x": "int64"}, [{"x": 1}])
    with refused(SchemaError, "'id'"):
        shardio.join(images, shardio.open(lacking), on="id")


@pytest.mark.parametrize(("kind", "keys"), [("int64", [1, 2, 3]), ("text", ["a", "b", "c"])])
def test_an_inner_join_leaves_out_records_without_a_key(tmp_path, kind, keys) -> None:
    key = Feature(kind, optional=True)
    left = [{"id": keys[0], "x": 0}, {"x": 1}, {"id": keys[2], "x": 2}, {"id": keys[1], "x": 3}]
    right = [{"y": 0}, {"id": keys[1], "y": 1}, {"y": 2}, {"id": keys[0], "y": 3}]
    sides = [
        shardio.open(written(tmp_path / name, {"id": key, name: "int64"}, values))
        for name, values in (("x", left), ("y", right))
    ]
    found = [(int(value["x"]), int(value["y"])) for value in shardio.join(*sides, on="id", how="inner")]
    assert found == [(0, 3), (3, 1)]
    with refused(SchemaError, "'id'") as caught:
        shardio.join(*sides, on="id")
    assert caught.value.row == 1


def test_classes_of_other_numbers_do_not_pair(tmp_path) -> None:
    """Numbers of classes belong together where they mean the same class."""

    def birds(name: str, feature: str, *classes: str) -> shardio.DatasetReader:
        schema = {"bird": Feature("int64", classes=classes), feature: "text"}
        return shardio.open(written(tmp_path / name, schema, [{"bird": c, feature: c} for c in classes]))

    left, more = birds("l", "a", "wren", "robin"), birds("m", "b", "wren", "robin", "heron")
    inner = shardio.join(left, more, on="bird", how="inner")
    assert [(v["a"], v["b"]) for v in inner] == [("wren", "wren"), ("robin", "robin")]
    for one, other in ((left, birds("o", "b", "robin", "wren")), (birds("n", "a", "heron", "wren"), more)):
        with refused(SchemaError, "'bird'"):
            shardio.join(one, other, on="bird", how="inner")


def test_what_works_on_one_dataset(sides) -> None:
    reader = joined(sides)
    for call in (
        lambda: reader.find("bird 3"),
        lambda: reader.find_all("bird 3"),
        reader.to_arrow,
        reader.to_pandas,
        lambda: reader.split_by({"a": 0.5, "b": 0.5}),
        lambda: reader.filter("label = 3"),
    ):
        with pytest.raises(ValueError, match="works on one dataset"):
            call()


def test_loaders(sides) -> None:
    """Worker processes and map-style access read both sides."""
    from torch.utils.data import DataLoader

    from shardio.torch import MapDataset, StreamingDataLoader, StreamingDataset

    reader = joined(sides)
    for options in ({"num_threads": 2}, {"num_workers": 2}):
        loader = StreamingDataLoader(
            StreamingDataset(reader.select(range(96)), global_batch=12, seed=1), **options
        )
        seen = []
        for batch in loader:
            assert batch["vector"][:, 0].tolist() == batch["label"].tolist()
            assert batch["caption"] == [f"caption {k}" for k in batch["label"].tolist()]
            seen += batch["label"].tolist()
        assert sorted(seen) == list(range(96))
    loader = DataLoader(MapDataset(reader), batch_size=10, num_workers=1, collate_fn=list)
    assert [plain(value) for batch in loader for value in batch] == [wanted(k) for k in range(ROWS)]


def test_keys_whose_digests_begin_alike(tmp_path, monkeypatch) -> None:
    """Digests are compared whole, also where their first halves collide."""

    def blake2b(text: bytes, *, digest_size: int) -> Any:
        assert digest_size == 16
        return SimpleNamespace(digest=lambda: bytes([len(text) % 2] * 8) + text.rjust(8))

    left = written(tmp_path / "l", {"k": "text", "a": "int64"}, [{"k": str(k), "a": k} for k in range(30)])
    theirs = [k for k in range(40) if k % 3]
    right = written(
        tmp_path / "r", {"k": "text", "b": "int64"}, [{"k": str(k), "b": k} for k in theirs[::-1]]
    )
    twice = written(tmp_path / "t", {"k": "text", "b": "int64"}, [{"k": "31", "b": 0}] * 2)
    sides = [shardio.open(url) for url in (left, right, twice)]
    monkeypatch.setattr(hashlib, "blake2b", blake2b)
    inner = shardio.join(sides[0], sides[1], on="k", how="inner")
    assert [(int(v["a"]), int(v["b"])) for v in inner] == [(k, k) for k in range(30) if k % 3]
    with refused(SchemaError, "'31'"):
        shardio.join(sides[0], sides[2], on="k", how="inner")


@settings(max_examples=max(10, settings().max_examples // 10))
@given(
    st.lists(st.integers(-3, 40), unique=True, max_size=30),
    st.lists(st.integers(-3, 40), unique=True, max_size=30),
)
def test_by_key_as_dicts_say(tmp_path_factory, ours, theirs) -> None:
    folder = tmp_path_factory.mktemp("keys")
    left = written(folder / "l", {"k": "int64"}, [{"k": k} for k in ours])
    right = written(folder / "r", {"k": "int32", "b": "text"}, [{"k": k, "b": f"b{k}"} for k in theirs])
    if not ours or not theirs:
        return
    inner = shardio.join(shardio.open(left), shardio.open(right), on="k", how="inner")
    model = {k: f"b{k}" for k in theirs}
    assert [(int(v["k"]), v["b"]) for v in inner] == [(k, model[k]) for k in ours if k in model]
