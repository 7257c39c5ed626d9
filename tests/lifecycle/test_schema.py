"""Changes of a schema: what readers see of records old and new, and what is refused with nothing changed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import shardio
import shardio_indexer
from shardio import Feature
from shardio.cli import main
from shardio.errors import SchemaError
from tests.golden.schema.make import read as read_golden
from tests.indexer.shards import tfrecord
from tests.suites.errors import refused

CAT = Feature("int64", classes=["cat", "dog"])


def written(url: Any, schema: dict[str, Any], *values: dict[str, Any], **options: Any) -> str:
    with shardio.DatasetWriter(url, schema, **options) as out:
        for value in values:
            out.write(value)
    return str(url)


def test_everything_that_may_change(tmp_path) -> None:
    url = written(
        tmp_path / "ds",
        {"label": "int64", "text": "text", "old": "json"},
        {"label": 1, "text": "a", "old": 1},
    )
    report = shardio.set_schema(
        url,
        {
            "kind": Feature("int64", classes=["cat", "dog"], default=-1, description="by two annotators"),
            "source": Feature("text", default="unknown"),
            "score": Feature("float32", optional=True),
            "old": None,
        },
        rename={"label": "kind"},
    )
    assert (report.version, report.base_version) == (2, 1)
    assert report.changes == [
        "label: now called kind",
        "kind: Feature('int64') -> Feature('int64', default=-1)",
        "kind: classes added: cat, dog",
        "kind: described as 'by two annotators'",
        "source: added, Feature('text', default='unknown')",
        "score: added, Feature('float32', optional=True)",
        "old: no longer read",
    ]
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write({"kind": "cat", "text": "b", "source": "web"})
        out.write({"text": "c"})
    reader = shardio.open(url)
    wanted = [(1, "a", "unknown"), (0, "b", "web"), (-1, "c", "unknown")]
    assert [(v["kind"], v["text"], v["source"]) for v in reader] == wanted
    columns = shardio.open(url, features=["kind", "source"]).read_batch(range(3))
    assert columns["kind"].tolist() == [1, 0, -1]
    assert columns["source"] == ["unknown", "web", "unknown"]
    stream = shardio.stream(shardio.open(url, features=["kind"]), global_batch=3, shuffle=False)
    assert next(iter(stream))["kind"].tolist() == [1, 0, -1]
    raw = shardio.codecs.decode_example(shardio.open(url, decode=False)[1])
    assert sorted(raw) == ["label", "source", "text"], "records keep the names"
    assert shardio.open(url, version=1)[0] == {"label": 1, "text": "a", "old": 1}
    assert shardio.verify(url).ok


def test_what_is_not_given_stays(tmp_path) -> None:
    url = written(tmp_path / "ds", {"label": CAT.replace(description="x", default=1)}, {"label": "dog"})
    shardio.set_schema(url, {"label": Feature("int64", default=0)})
    assert shardio.open(url).schema["label"] == CAT.replace(description="x", default=0)
    assert shardio.set_schema(url, {"label": Feature("int64", default=0)}).version is None
    report = shardio.set_schema(
        url, {"label": CAT.replace(classes=["cat", "dog", "eel"], default=0)}, dry_run=True
    )
    assert (report.version, report.changes) == (None, ["label: classes added: eel"])
    assert len(shardio.log(url)) == 2


@pytest.mark.parametrize(
    ("features", "rename", "error", "why"),
    [
        ({"label": "text"}, {}, SchemaError, "'label': its type changes from int64 to text"),
        ({"label": "int64[2]"}, {}, SchemaError, "'label'.*int64 to int64\\[2\\]"),
        ({"new": "int64"}, {}, SchemaError, "'new': it is new and required"),
        ({"maybe": "int64"}, {}, SchemaError, "'maybe': older records may lack it"),
        (
            {"label": CAT.replace(classes=["dog", "cat"])},
            {},
            SchemaError,
            "class 0 changes from 'cat' to 'dog'",
        ),
        ({"label": CAT.replace(stored_name="x")}, {}, SchemaError, "stored as 'label'"),
        ({"nothing": None}, {}, ValueError, "no feature 'nothing'"),
        ({}, {"nothing": "x"}, ValueError, "no feature 'nothing' to rename; there are label, maybe"),
        ({}, {"label": "maybe"}, ValueError, "two features would be called 'maybe'"),
        ({}, {"label": "_position"}, ValueError, "'_position' is taken"),
        ({"label": Feature("int64", default=-1), "x": "int65"}, {}, ValueError, "'x'.*int65"),
        (
            {"label": Feature("int64", optional=True)},
            {"label": "kind"},
            ValueError,
            "both be stored as 'label'",
        ),
        ({}, {}, ValueError, "nothing to change"),
    ],
)
def test_what_is_refused_changes_nothing(tmp_path, features, rename, error, why) -> None:
    url = written(tmp_path / "ds", {"label": CAT, "maybe": Feature("int64", optional=True)}, {"label": 1})
    with pytest.raises(error, match=why):
        shardio.set_schema(url, features, rename=rename)
    assert len(shardio.log(url)) == 1


def test_names_may_change_places(tmp_path) -> None:
    url = written(tmp_path / "ds", {"a": "int64", "b": "int64"}, {"a": 1, "b": 2})
    shardio.set_schema(url, rename={"a": "b", "b": "a"})
    written(url, {"a": "int64", "b": "int64"}, {"a": 3, "b": 4}, mode="append")
    assert [(int(v["a"]), int(v["b"])) for v in shardio.open(url)] == [(2, 1), (3, 4)]
    shardio.set_schema(
        url, {"c": Feature("int64", default=9, stored_name="new")}, rename={"a": "b", "b": "a"}
    )
    schema = shardio.open(url).schema
    assert schema["a"] == Feature("int64")
    assert [tuple(map(int, (v["a"], v["b"], v["c"]))) for v in shardio.open(url)] == [(1, 2, 9), (4, 3, 9)]


def test_a_feature_is_the_one_that_readers_know_by_its_name(tmp_path) -> None:
    """Also where records hold another one under that name."""
    url = written(tmp_path / "ds", {"a": "int64", "b": "int64"}, {"a": 1, "b": 2})
    shardio.set_schema(url, rename={"a": "b", "b": "a"})
    shardio.set_schema(url, {"a": Feature("int64", default=7)})
    schema = shardio.open(url).schema
    assert (schema["a"].stored_name, schema["b"].stored_name) == ("b", "a")
    written(url, None, {"b": 3}, mode="append")
    assert list(shardio.open(url)) == [{"a": 2, "b": 1}, {"a": 7, "b": 3}]


def test_an_append_takes_the_encoding_of_the_dataset(tmp_path) -> None:
    url = written(tmp_path / "ds", {"a": "int64"}, {"a": 1}, encoding="tensors")
    written(url, {"a": "int64", "b": Feature("text", default="-")}, {"a": 2}, mode="append")
    assert list(shardio.open(url)) == [{"a": 1, "b": "-"}, {"a": 2, "b": "-"}]
    assert shardio.open(url).schema.encoding == "tensors"


def test_an_append_under_way_does_not_undo_it(tmp_path) -> None:
    url = written(tmp_path / "ds", {"label": "int64"}, {"label": 0})
    out = shardio.DatasetWriter(url, {"label": "int64"}, mode="append")
    out.write({"label": 1})
    shardio.set_schema(url, {"kind": CAT, "note": Feature("text", default="-")}, rename={"label": "kind"})
    out.close()
    assert [(int(v["kind"]), v["note"]) for v in shardio.open(url)] == [(0, "-"), (1, "-")]
    with refused(SchemaError, "'label'", "'kind'"):
        shardio.DatasetWriter(url, {"label": "int64"}, mode="append")
    written(url, {"kind": "int64"}, {"kind": "dog"}, mode="append")
    assert [(int(v["kind"]), v["note"]) for v in shardio.open(url)] == [(0, "-"), (1, "-"), (1, "-")]


@pytest.mark.parametrize(
    ("ours", "theirs", "wanted"),
    [
        # What the writer adds, and what others change meanwhile, both count.
        (
            {"f": Feature("text", optional=True)},
            {"d": Feature("int64", default=9, description="nine")},
            "both",
        ),
        ({"f": Feature("text", optional=True)}, {"d": None}, "both"),
        ({"f": Feature("text", optional=True)}, {"g": Feature("text", default="-")}, "both"),
        ({"d": Feature("int64", default=0, classes=["a", "b"])}, {"d": Feature("int64", default=1)}, "both"),
        ({"f": Feature("int64", default=1)}, {"f": Feature("int64", default=1)}, "both"),
        # Both change the same: the default of a new feature, or of an old one.
        ({"f": Feature("int64", default=1)}, {"f": Feature("int64", default=2)}, "refused"),
        ({"f": Feature("int64", default=1)}, {"f": Feature("int64", optional=True)}, "refused"),
        ({"d": Feature("int64", default=1)}, {"d": Feature("int64", default=2)}, "refused"),
        ({"d": Feature("int64", default=1)}, {"d": None}, "refused"),
    ],
)
def test_an_append_that_changes_the_schema_while_it_changes(tmp_path, ours, theirs, wanted) -> None:
    """Neither takes back what the other one did."""
    first = {"k": "int64", "d": Feature("int64", default=0)}
    urls = [written(tmp_path / name, first, {"k": 1}) for name in ("racing", "in_turn")]
    out = shardio.DatasetWriter(urls[0], {**first, **ours}, mode="append")
    out.write({"k": 2})
    shardio.set_schema(urls[0], theirs)
    if wanted == "refused":
        with pytest.raises(SchemaError):
            out.close()
        assert [int(value["k"]) for value in shardio.open(urls[0])] == [1]
        return
    out.close()
    if "d" in ours:
        theirs = {"d": theirs["d"].replace(classes=ours["d"].classes)}
    shardio.set_schema(urls[1], {**ours, **theirs})
    assert shardio.open(urls[0]).schema == shardio.open(urls[1]).schema
    assert [int(value["k"]) for value in shardio.open(urls[0])] == [1, 2]


@pytest.mark.parametrize(
    ("feature", "records"),
    [(Feature("int64", optional=True), [{"k": 2}]), (Feature("int64"), [{"k": 2, "d": 3}])],
)
def test_an_append_without_the_default_keeps_it(tmp_path, feature, records) -> None:
    url = written(tmp_path / "ds", {"k": "int64", "d": Feature("int64", default=7)}, {"k": 1})
    written(url, {"k": "int64", "d": feature}, *records, mode="append")
    assert shardio.open(url).schema["d"] == Feature("int64", default=7)
    assert [int(value["d"]) for value in shardio.open(url)] == [7, *(r.get("d", 7) for r in records)]
    # A wider type has it, too.
    url = written(tmp_path / "wider", {"d": Feature("int64[2]", default=[1, 2])}, {})
    written(url, {"d": Feature("int64[?]", optional=True)}, {"d": [5]}, {}, mode="append")
    assert [value["d"].tolist() for value in shardio.open(url)] == [[1, 2], [5], [1, 2]]


def test_the_two_parts_of_a_sequence_example(tmp_path) -> None:
    """A feature and a feature list of one name are two."""
    features = {"context": {"id": "int64"}, "feature_lists": {"id": "int64", "x": "int64"}}
    value = {"context": {"id": 1}, "feature_lists": {"id": [2, 3], "x": [4]}}
    url = written(tmp_path / "ds", features, value, encoding="sequence_example")
    with refused(ValueError, "'id'", "'context/id'", "'feature_lists/id'"):
        shardio.set_schema(url, rename={"id": "name"})
    report = shardio.set_schema(url, rename={"feature_lists/id": "steps", "x": "y"})
    assert report.changes == ["id: now called steps", "x: now called y"]
    assert shardio.open(url)[0] == {"context": {"id": 1}, "feature_lists": {"steps": [2, 3], "y": [4]}}
    assert shardio.set_schema(url, rename={"id": "name"}).changes == ["id: now called name"]
    with refused(ValueError, "'context/id'"):
        shardio.set_schema(url, rename={"context/id": "name"})


def test_a_shape_is_no_feature(tmp_path) -> None:
    """Sizes that an array of older records keeps beside it are not read as a feature of their name."""
    url = written(tmp_path / "ds", {"a": "float32[?,?]", "k": "int64"}, {"a": np.ones((2, 3)), "k": 1})
    shardio.set_schema(url, {"a": None})
    with refused(SchemaError, "'a'", "'a/shape'"):
        shardio.set_schema(url, {"a/shape": Feature("int64[2]", default=[0, 0])})
    with refused(SchemaError, "'a'", "'a/shape'"):
        shardio.set_schema(url, {"s": Feature("int64[2]", default=[0, 0], stored_name="a/shape")})


def test_adopted_datasets(tmp_path) -> None:
    payloads = [shardio.codecs.encode_example({"label": k}) for k in range(3)]
    shard = tmp_path / "a.tfrecord"
    shard.write_bytes(tfrecord(payloads))
    before = shard.read_bytes()
    shardio_indexer.adopt(tmp_path)
    shardio.set_schema(
        tmp_path,
        {"kind": CAT.replace(classes=["a", "b", "c"]), "note": Feature("text", default="-")},
        rename={"label": "kind"},
    )
    assert [(int(v["kind"]), v["note"]) for v in shardio.open(tmp_path)] == [(0, "-"), (1, "-"), (2, "-")]
    (tmp_path / "b.tfrecord").write_bytes(tfrecord(payloads[1:2]))
    shardio_indexer.adopt(tmp_path)
    assert [int(v["kind"]) for v in shardio.open(tmp_path)] == [0, 1, 2, 1]
    with refused(SchemaError, "'a'", "'c'"):
        shardio_indexer.adopt(tmp_path, schema={"kind": CAT.replace(classes=["c", "b", "a"])})
    assert shard.read_bytes() == before
    # What is said changes the schema that there is, and what that changes is said.
    report = shardio_indexer.adopt(tmp_path, schema={"kind": Feature("int64", default=2), "note": None})
    assert "note: no longer read" in report.notes
    assert "kind: Feature('int64') -> Feature('int64', default=2)" in report.notes
    assert shardio.open(tmp_path).schema["kind"].classes == ("a", "b", "c")


def test_what_becomes_of_indexes_of_keys(tmp_path) -> None:
    """They are known by the names in records; the report has those that readers know."""
    url = written(tmp_path / "ds", {"uid": "int64", "t": Feature("int64", default=3)}, {"uid": 1})
    for name in ("uid", "t"):
        shardio.build_keys(url, name)
    shardio.set_schema(url, rename={"uid": "id", "t": "s"})
    changed = {"s": Feature("int64", default=4)}
    assert shardio.set_schema(url, changed, dry_run=True).changes[1:] == [
        "s: its index of keys held another default and is gone; build_keys makes it again"
    ]
    for name in ("s", "id"):
        assert shardio.set_schema(url, {name: None}).changes == [
            f"{name}: no longer read",
            f"{name}: its index of keys is gone, too",
        ]


def test_records_without_a_schema(tmp_path) -> None:
    url = written(tmp_path / "ds", None, b"wren")
    with pytest.raises(SchemaError):
        shardio.set_schema(url, {"a": "int64"})


def test_the_program(tmp_path, capsys) -> None:
    url = written(tmp_path / "ds", {"label": CAT, "text": "text"}, {"label": 1, "text": "x"})

    def run(*words: str) -> Any:
        code = main(["schema", *words, "--json"])
        found = capsys.readouterr()
        return json.loads(found.out) if code == 0 else (code, found.out + found.err)

    assert run(url)["schema"] == {"label": {"type": "int64", "classes": ["cat", "dog"]}, "text": "text"}
    words = [
        "--feature",
        'note={"type": "text", "default": "-"}',
        "--feature",
        "text=-",
        "--rename",
        "label=kind",
    ]
    assert run("set", url, *words, "--dry-run")["version"] is None
    report = run("set", url, *words)
    assert report["version"] == 2
    assert report["changes"][-1] == "text: no longer read"
    assert run(url)["schema"]["kind"]["stored_name"] == "label"
    assert run(url, "--version", "1")["schema"]["text"] == "text"
    code, words_ = run("set", url, "--feature", "kind=text")
    assert code == 1
    assert "its type changes from int64 to text" in words_
    assert run(url, "--rename", "a=b")[0] == 2
    assert main(["schema", url]) == 0
    assert "2 classes: cat, dog; stored as label" in capsys.readouterr().out
    assert main(["schema", "set", url, "--feature", "more=float32[?]"]) == 1
    assert "new and required" in capsys.readouterr().err


NUMBERS = st.integers(0, 2)


GOLDEN = Path(__file__).parents[1] / "golden" / "schema"


@pytest.mark.parametrize("version", ["1", "2", "3"])
def test_a_schema_that_changed_stays_readable(version: str) -> None:
    """P19: classes, descriptions and features that readers know by another name, as written once."""
    expected = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))
    assert read_golden(GOLDEN / "birds", int(version)) == expected[version]
    assert shardio.verify(GOLDEN / "birds", version=int(version)).ok


@pytest.mark.parametrize("encoding", ["example", "tensors", "sequence_example"])
@pytest.mark.parametrize("form", ["mapping", "schema"])
def test_an_append_takes_no_feature_from_readers(tmp_path, encoding, form) -> None:
    """A schema that lacks a required feature would hide it in older records; what the advice says helps."""
    url = tmp_path / "ds"
    nested = encoding == "sequence_example"

    def features(**context: str):
        return {"context": context, "feature_lists": {"s": "int64"}} if nested else context

    def value(**context: object):
        return {"context": context, "feature_lists": {"s": [1]}} if nested else context

    with shardio.DatasetWriter(url, features(a="int64", b="text"), encoding=encoding) as out:
        out.write(value(a=1, b="x"))
    lacking: Any = features(a="int64")
    if form == "schema":
        lacking = shardio.Schema.parse(lacking, encoding=encoding)
    more = {"encoding": encoding} if form == "mapping" else {}
    with refused(SchemaError, "'b'") as caught:
        shardio.DatasetWriter(url, lacking, mode="append", **more)
    assert len(shardio.log(url)) == 1
    (call,) = re.findall(r"shardio\.set_schema\(URL, (.*)\)$", str(caught.value.advice))
    shardio.set_schema(url, eval(call, {"shardio": shardio}))
    with shardio.DatasetWriter(url, lacking, mode="append", **more) as out:
        out.write(value(a=2))
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write(value(a=3, b="y"))
    seen = [each["context"] if nested else each for each in shardio.open(url)]
    assert [(int(each["a"]), each["b"]) for each in seen] == [(1, "x"), (2, None), (3, "y")]
