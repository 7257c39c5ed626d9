"""One schema for all records that are adopted, or a refusal; and a schema that was wrong can be corrected."""

from __future__ import annotations

import json
from types import MappingProxyType

import pytest

import shardio
import shardio_indexer
from shardio import Feature, Schema, codecs
from shardio.errors import SchemaError
from tests.indexer.shards import main, tar, tfrecord
from tests.suites.errors import refused

SPLITS = {"train": "train*", "val": "val*"}
EXAMPLES = tfrecord([codecs.encode_example({"n": n, "data": b"\xff\xd8\xff%d" % n}) for n in range(3)])
FILES = {
    "examples.tfrecord": EXAMPLES,
    "raw.tfrecord": tfrecord([b"\xff\xff", b"\xfe"]),
    "lines.jsonl": b'{"n": 1}\n',
    "text.txt": b"wren\n",
    "samples.tar": tar([("a.cls", b"1")]),
}
# Where neither kind would have a schema by itself, none is lost.
ALIKE = [{"raw.tfrecord", "text.txt"}]


def lay(folder, train: str, val: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"train-{train}").write_bytes(FILES[train])
    (folder / f"val-{val}").write_bytes(FILES[val])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("val", FILES)
@pytest.mark.parametrize("train", FILES)
def test_splits_of_different_kinds_keep_their_values_or_are_refused(tmp_path, train, val) -> None:
    """A record reads together with others as it reads alone, or the refusal names splits and the way out."""
    alone: list[list[object]] = []
    for number, name in enumerate((train, val)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_bytes(FILES[name])
        shardio_indexer.adopt(folder / name)
        alone.append(list(shardio.open(folder)))
    both = tmp_path / "both"
    lay(both, train, val)
    patterns = [f"{both}/train*", f"{both}/val*"]
    if train == val or {train, val} in ALIKE:
        report = shardio_indexer.adopt(patterns, split=SPLITS)
        assert report.ok
    else:
        with pytest.raises(SchemaError) as caught:
            shardio_indexer.adopt(patterns, split=SPLITS)
        assert not (both / "_shardio").exists()
        assert "with into=" in caught.value.advice
        assert "with schema=False" in caught.value.advice
        # Both ways out work.
        for number, pattern in enumerate(patterns):
            assert shardio_indexer.adopt(pattern, into=tmp_path / f"into{number}").ok
            opened = shardio.open(tmp_path / f"into{number}", allow_roots={str(both): {}})
            assert list(opened) == alone[number]
        assert shardio_indexer.adopt(patterns, split=SPLITS, schema=False).ok
        alone = [read_plain(name) for name in (train, val)]
    assert [list(shardio.open(both, split=split)) for split in SPLITS] == alone


def read_plain(name: str) -> list[object]:
    """Return the records of a file as they are without a schema."""
    from tests.indexer.shards import read_tfrecord

    if name.endswith(".tar"):
        return [{"__key__": "a", "cls": b"1"}]
    if name.endswith(".tfrecord"):
        return [*read_tfrecord(FILES[name])]
    return [*FILES[name].decode().splitlines()]


@pytest.mark.parametrize("later", ["examples.tfrecord", "lines.jsonl"])
def test_records_of_another_kind_do_not_lose_their_values_to_an_older_dataset(tmp_path, later) -> None:
    """A dataset without a schema takes no records that would have one."""
    (tmp_path / "val-samples.tar").write_bytes(FILES["samples.tar"])
    shardio_indexer.adopt(tmp_path, split="val", schema=False)
    (tmp_path / f"train-{later}").write_bytes(FILES[later])
    with pytest.raises(SchemaError):
        shardio_indexer.adopt(tmp_path, split={"val": "val*", "train": "*"})
    assert shardio.open(tmp_path).version == 1


def test_a_schema_must_read_the_records_of_every_kind(tmp_path) -> None:
    lay(tmp_path / "a", "examples.tfrecord", "samples.tar")
    pattern = [f"{tmp_path}/a/*"]
    with refused(SchemaError, "'cls'"):
        shardio_indexer.adopt(pattern, split=SPLITS, schema={"n": "int64", "cls": "int64"})
    schema = {"n": Feature("int64", optional=True), "cls": Feature("int64", default=7)}
    assert shardio_indexer.adopt(pattern, split=SPLITS, schema=schema).ok
    assert list(shardio.open(tmp_path / "a", split="val")) == [{"__key__": "a", "n": None, "cls": 1}]
    assert shardio.open(tmp_path / "a", split="train")[2] == {"n": 2, "cls": 7}


@pytest.mark.parametrize("update", [False, True])
def test_a_schema_is_corrected_by_one_new_version(tmp_path, update) -> None:
    """A whole schema given for a known folder applies, as a new version; given again it changes nothing."""
    (tmp_path / "x.tfrecord").write_bytes(EXAMPLES)
    assert shardio_indexer.adopt(tmp_path).schema["data"].type == "jpeg"
    wanted = Schema.parse(
        {"n": Feature("int64", default=-1), "data": "bytes", "more": Feature("text", default="x")}
    )
    for _ in range(2):
        report = shardio_indexer.adopt(tmp_path, schema=wanted, update=update)
        assert (report.ok, report.version, report.known, report.adopted) == (True, 2, 1, 0)
        assert report.schema == wanted
    ds = shardio.open(tmp_path)
    assert ds.schema == wanted
    assert ds[1] == {"n": 1, "data": b"\xff\xd8\xff1", "more": "x"}
    assert "more" not in shardio.open(tmp_path, version=1)[1]
    assert shardio.verify(tmp_path).ok
    # Narrower again: nothing that was stored depends on a schema here.
    assert shardio_indexer.adopt(tmp_path, schema=Schema.parse({"data": "jpeg"})).version == 3
    assert shardio.open(tmp_path)[0] == {"data": b"\xff\xd8\xff0"}
    assert shardio_indexer.adopt(tmp_path, schema=False).version == 4
    assert isinstance(shardio.open(tmp_path)[0], bytes)
    assert shardio_indexer.adopt(tmp_path).version == 4
    report = shardio_indexer.adopt(tmp_path, schema={"data": "bytes"})
    assert report.version == 5
    assert shardio.open(tmp_path)[2] == {"n": 2, "data": b"\xff\xd8\xff2"}


def test_a_schema_and_new_shards_are_one_version(tmp_path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(EXAMPLES)
    shardio_indexer.adopt(tmp_path)
    (tmp_path / "b.tfrecord").write_bytes(EXAMPLES)
    report = shardio_indexer.adopt(tmp_path, schema={"n": "int64"})
    assert (report.version, report.adopted, report.known) == (2, 1, 1)
    assert [value["n"] for value in shardio.open(tmp_path)] == [0, 1, 2, 0, 1, 2]


def test_a_schema_and_changed_shards_are_one_version(tmp_path) -> None:
    """Also where every shard has changed, so that no known one is left to read."""
    (tmp_path / "a.txt").write_text("x\n")
    shardio_indexer.adopt(tmp_path / "a.txt", schema={"a": "bytes"})
    (tmp_path / "a.txt").write_text("1\n2\n")
    report = shardio_indexer.adopt(tmp_path / "a.txt", schema={"a": "json"}, update=True)
    assert (report.version, report.updated) == (2, 1)
    assert list(shardio.open(tmp_path)) == [1, 2]


def test_a_schema_that_does_not_read_what_is_there_changes_nothing(tmp_path) -> None:
    (tmp_path / "x.tfrecord").write_bytes(EXAMPLES)
    shardio_indexer.adopt(tmp_path)
    for schema in ({"n": "text"}, {"absent": "int64"}):
        with pytest.raises(SchemaError, match=next(iter(schema))):
            shardio_indexer.adopt(tmp_path, schema=schema)
    assert shardio.open(tmp_path).version == 1


def test_text_becomes_json_when_every_line_is(tmp_path) -> None:
    """Shards that were looked at as text are looked at again, to the last line."""
    lines = [json.dumps({"n": n}) for n in range(5000)]
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "x.txt").write_text("\n".join(lines))
    shardio_indexer.adopt(tmp_path / "x" / "x.txt")
    assert shardio_indexer.adopt(tmp_path / "x" / "x.txt", schema={"value": "json"}).version == 2
    assert shardio.open(tmp_path / "x")[4999] == {"n": 4999}
    (tmp_path / "y.txt").write_text("\n".join([*lines, "no json"]))
    shardio_indexer.adopt(tmp_path / "y.txt", into=tmp_path / "y", schema=False)
    with pytest.raises(SchemaError):
        shardio_indexer.adopt(tmp_path / "y.txt", into=tmp_path / "y", schema={"value": "json"})


def test_what_shardio_wrote_keeps_a_schema_that_can_follow(tmp_path) -> None:
    """Beside adopted shards are shards of our own: a new schema must read those too."""
    with shardio.DatasetWriter(tmp_path, schema={"n": "int64", "data": "bytes"}) as out:
        out.write({"n": 7, "data": b"x"})
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "x.tfrecord").write_bytes(EXAMPLES)
    assert shardio_indexer.adopt(tmp_path / "more", into=tmp_path).ok
    for schema in (False, {"n": "float32"}):
        with pytest.raises(SchemaError):
            shardio_indexer.adopt(tmp_path / "more", into=tmp_path, schema=schema)
    schema = {"n": "int64", "name": Feature("text", default="?")}
    assert shardio_indexer.adopt(tmp_path / "more", into=tmp_path, schema=schema).ok
    assert [value["n"] for value in shardio.open(tmp_path)] == [7, 0, 1, 2]
    assert shardio.open(tmp_path)[0]["name"] == "?"
    assert shardio.verify(tmp_path).ok


def test_the_command_line_says_all_that_a_feature_says(tmp_path, capsys) -> None:
    (tmp_path / "x.tfrecord").write_bytes(EXAMPLES)
    assert main([str(tmp_path)]) == 0
    schema = '{"n": {"type": "int64", "default": -1}, "name": {"type": "text", "optional": true}}'
    assert main([str(tmp_path), "--schema", schema, "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["schema"] == json.loads(schema) | {"data": "jpeg"}
    wanted = {
        "n": Feature("int64", default=-1), "data": Feature("jpeg"), "name": Feature("text", optional=True)
    }  # fmt: skip
    assert dict(shardio.open(tmp_path).schema) == wanted
    assert main([str(tmp_path), "--schema", '{"n": {"type": "int65"}}']) == 2
    assert "feature 'n'" in capsys.readouterr().err
    assert main([str(tmp_path), "--schema", '{"absent": null}']) == 2
    assert "'absent'" in capsys.readouterr().err
    assert main([str(tmp_path), "--encoding", "tensors"]) == 2
    assert main([str(tmp_path), "--no-schema", "--type", "n=int64"]) == 2
    assert main([str(tmp_path), "--schema", '{"n": "int64"}', "--encoding", "tensors"]) == 1


def test_sequence_examples_by_the_command_line(tmp_path) -> None:
    value = {"context": {"id": 3}, "feature_lists": {"frame": [b"a", b"b"]}}
    (tmp_path / "x.tfrecord").write_bytes(tfrecord([codecs.encode_sequence_example(value)]))
    schema = '{"context": {"id": "int64"}, "feature_lists": {"frame": "bytes"}}'
    assert main([str(tmp_path), "--schema", schema]) == 0
    assert shardio.open(tmp_path)[0] == value


JSON = b'{"n": 1, "id": "a", "x": 0.5}\n{"n": 2, "id": "b", "x": 1.5}\n'
SAMPLES = tar([("a.cls", b"1"), ("a.txt", b"x"), ("b.cls", b"2"), ("b.txt", b"y")])


@pytest.mark.parametrize(
    ("name", "data", "feature", "kind", "others"),
    [
        ("a.tfrecord", EXAMPLES, "data", "bytes", ["n"]),
        ("a.jsonl", JSON, "n", "float32", ["id", "x"]),
        ("a.tar", SAMPLES, "cls", "text", ["__key__", "txt"]),
    ],
)
def test_what_is_said_of_one_feature_leaves_the_others(tmp_path, capsys, name, data, feature, kind, others):
    """At first and later, by either flag, as conversion has it; null takes one out."""
    (tmp_path / name).write_bytes(data)
    inferred = shardio_indexer.adopt(tmp_path, into=tmp_path / "inferred").schema
    assert feature in inferred
    assert inferred[feature].type != kind
    for number, flags in enumerate(
        (["--type", f"{feature}={kind}"], ["--schema", json.dumps({feature: kind})])
    ):
        into = ["--into", str(tmp_path / str(number))]
        for first in ([], flags):
            assert main([str(tmp_path / name), *into, *first]) == 0
        assert f"  {feature}: {kind}\n" in capsys.readouterr().out
        found = shardio.open(tmp_path / str(number), allow_roots={str(tmp_path): {}}).schema
        assert found[feature].type == kind
        assert {each: found[each] for each in others} == {each: inferred[each] for each in others}
        assert main([str(tmp_path / name), *into, "--type", f"{others[-1]}=-"]) == 0
        last = shardio.open(tmp_path / str(number), allow_roots={str(tmp_path): {}}).schema
        assert list(last) == [each for each in found if each != others[-1]]
    assert (
        shardio.convert_dataset(
            tmp_path / name, tmp_path / "converted", schema={feature: kind}, workers=1
        ).schema
        == found
    )


def test_a_dataset_without_a_schema_gets_the_inferred_one_when_asked(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_bytes(JSON)
    shardio_indexer.adopt(tmp_path, schema=False)
    assert shardio.open(tmp_path)[0] == JSON.decode().splitlines()[0]
    assert main([str(tmp_path), "--schema", "{}", "--format", "jsonl"]) == 0
    assert shardio.open(tmp_path)[1] == {"n": 2, "id": "b", "x": 1.5}


def test_lines_that_were_one_value_become_features(tmp_path) -> None:
    """Datasets that were adopted before lines were inferred."""
    (tmp_path / "a.jsonl").write_bytes(JSON)
    whole = Schema.parse({"json": "json"}, encoding="bytes")
    assert shardio_indexer.adopt(tmp_path, schema=whole).ok
    assert shardio_indexer.adopt(tmp_path).version == 1
    assert shardio.open(tmp_path)[0] == {"n": 1, "id": "a", "x": 0.5}
    assert list(shardio_indexer.adopt(tmp_path, schema={"n": "int32"}).schema) == ["n", "id", "x"]
    assert shardio.open(tmp_path)[0]["n"].dtype == "int32"


def test_no_records_say_nothing_of_those_to_come(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n")
    assert shardio_indexer.adopt(tmp_path).schema is None
    (tmp_path / "b.jsonl").write_bytes(JSON)
    assert list(shardio_indexer.adopt(tmp_path).schema) == ["n", "id", "x"]


def test_what_the_schema_does_not_name_is_noted_and_kept(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_bytes(JSON)
    shardio_indexer.adopt(tmp_path)
    (tmp_path / "b.jsonl").write_bytes(b'{"n": 3, "id": "c", "x": 2, "late": [1]}\n')
    report = shardio_indexer.adopt(tmp_path)
    assert any("'late', which the schema does not name" in note for note in report.notes)
    assert shardio.open(tmp_path)[2]["late"] == [1]


def test_features_that_were_renamed_are_found_in_tar_files_and_lines(tmp_path) -> None:
    for name, data, old in (("a.tar", SAMPLES, "cls"), ("a.jsonl", JSON, "n")):
        url = tmp_path / old
        url.mkdir()
        (url / name).write_bytes(data)
        shardio_indexer.adopt(url)
        shardio.set_schema(url, rename={old: "label"})
        for ds in (shardio.open(url), shardio.open(url, features=["label"])):
            assert [int(value["label"]) for value in ds] == [1, 2]
            assert all(old not in value for value in ds)


def test_keys_beyond_what_a_schema_holds_leave_lines_whole(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({f"k{n}": n for n in range(10_001)}) + "\n")
    report = shardio_indexer.adopt(tmp_path)
    assert any("no schema" in note for note in report.notes)
    assert shardio.open(tmp_path)[0]["k10000"] == 10_000


def test_a_member_that_does_not_fit_is_noted(tmp_path) -> None:
    (tmp_path / "a.tar").write_bytes(tar([("a.json", b"{}"), ("b.json", b"<html>")]))
    report = shardio_indexer.adopt(tmp_path)
    assert report.schema["json"].type == "json"
    assert any("1 of 2 records" in note and 'types={"NAME": "bytes"}' in note for note in report.notes)
    assert main([str(tmp_path), "--type", "json=bytes"]) == 0
    assert shardio.open(tmp_path)[1]["json"] == b"<html>"


def test_without_a_schema_the_reader_says_what_records_are(tmp_path) -> None:
    """And refuses what needs one, where it would give bytes."""
    for name, data, what in (("a.tar", SAMPLES, "members of samples"), ("a.jsonl", JSON, "text")):
        into = tmp_path / name.replace(".", "-")
        into.mkdir()
        (into / name).write_bytes(data)
        shardio_indexer.adopt(into, schema=False)
        ds = shardio.open(into)
        assert repr(ds).endswith(f"({what})>")
        assert f"none: records are {what}" in ds._repr_html_()
        assert repr(shardio.open(into, decode=False)).endswith("(bytes)>")
        with refused(ValueError, "decode="):
            shardio.open(into, decode="image")
    with refused(ValueError, "features="):
        shardio.open(into, features=["id"])[0]


def test_types_are_those_of_some_features(tmp_path):
    """As a mapping for the schema; beside a whole one there is nothing to change."""
    (tmp_path / "a.jsonl").write_text('{"id": 1, "name": "wren"}\n')
    report = shardio_indexer.adopt(tmp_path, types={"id": "int32"}, schema={"name": "json"})
    assert {name: each.short for name, each in report.schema.items()} == {"id": "int32", "name": "json"}
    chosen = shardio.open(tmp_path).select_columns(["name", "id"])
    assert list(chosen[0]) == list(chosen.read_batch([0])) == ["name", "id"]
    for whole in (False, report.schema):
        with refused(ValueError, "schema="):
            shardio_indexer.adopt(tmp_path, types={"id": "int32"}, schema=whole)
    again = shardio_indexer.adopt(tmp_path, types={"id": "int64"}, schema=MappingProxyType({"name": "text"}))
    assert {name: each.short for name, each in again.schema.items()} == {"id": "int64", "name": "text"}
