"""Classes of a feature over appends: a number never means another class, in whatever order writers come."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

import shardio
from shardio import Feature
from shardio.errors import SchemaError
from tests.suites.errors import refused

CAT = Feature("int64", classes=["cat"])


def test_writing_by_name(tmp_path) -> None:
    schema = {
        "label": Feature("uint8", classes=["cat", "dog"]),
        "all": Feature("int64[?]", classes=["a", "b"]),
    }
    with shardio.DatasetWriter(tmp_path / "ds", schema) as out:
        out.write({"label": "dog", "all": ["b", "a", "b"]})
        out.write({"label": 0, "all": []})
        for label, why in (
            ("dgo", "did you mean 'dog'"),
            (2, "0 to 1"),
            (-1, "the value -1"),
            (None, "None"),
        ):
            with pytest.raises(SchemaError, match=why) as caught:
                out.write({"label": label, "all": []})
            assert "'label'" in str(caught.value)
            assert "row 2" in str(caught.value)
        with refused(SchemaError, "'c'"):
            out.write({"label": 0, "all": ["a", "c"]})
        with pytest.raises(SchemaError):
            out.write({"label": 0, "all": [0, 2]})
    reader = shardio.open(tmp_path / "ds")
    assert reader[0]["label"].dtype == "uint8"
    assert [reader.schema["label"].classes[value["label"]] for value in reader] == ["dog", "cat"]
    assert reader[0]["all"].tolist() == [1, 0, 1]


def test_a_default_of_no_class(tmp_path) -> None:
    schema = {"label": Feature("int64", classes=["cat", "dog"], default=-1)}
    with shardio.DatasetWriter(tmp_path / "ds", schema) as out:
        out.write({"label": "dog"})
        out.write({})
        with pytest.raises(SchemaError):
            out.write({"label": -1})
    assert shardio.open(tmp_path / "ds").read_batch([0, 1])["label"].tolist() == [1, -1]


@pytest.mark.parametrize("encoding", ["example", "sequence_example", "tensors", "array"])
def test_every_encoding_refuses_numbers_of_no_class(tmp_path, encoding) -> None:
    feature = {"label": Feature("int64[2]", classes=["cat", "dog"])}
    sequence = encoding == "sequence_example"
    schema = {"context": feature, "feature_lists": feature} if sequence else feature
    with shardio.DatasetWriter(tmp_path / "ds", schema, encoding=encoding) as out:

        def write(one, other) -> None:
            value = {"label": one}
            out.write({"context": value, "feature_lists": {"label": [other]}} if sequence else value)

        write(["dog", "cat"], [0, 1])
        for bad in ([0, 2], [-1, 0], ["dog", "eel"]):
            with pytest.raises(SchemaError):
                write(bad, [0, 1])
            if sequence:
                with pytest.raises(SchemaError):
                    write([0, 1], bad)
    (value,) = shardio.open(tmp_path / "ds")
    assert (value["context"] if sequence else value)["label"].tolist() == [1, 0]


def test_an_append_takes_the_classes_of_the_dataset(tmp_path) -> None:
    url = tmp_path / "ds"
    with shardio.DatasetWriter(url, {"label": CAT.replace(classes=["cat", "dog"])}) as out:
        out.write({"label": "dog"})
    for given_ in ({"label": "int64"}, None, {"label": CAT}):
        with shardio.DatasetWriter(url, given_, mode="append") as out:
            out.write({"label": "dog"})
            with pytest.raises(SchemaError):
                out.write({"label": 2})
    with shardio.DatasetWriter(
        url, {"label": CAT.replace(classes=["cat", "dog", "eel"])}, mode="append"
    ) as out:
        out.write({"label": "eel"})
    manifest = shardio.open(url).source.version.manifest
    assert manifest.schema["label"].classes == ("cat", "dog", "eel")
    assert len(manifest.schemas) == 1, "names alone make no new schema"
    for classes in (["dog", "cat"], ["cat", "eel"], ["cat", "dog", "ant"], ["dog"]):
        with refused(SchemaError, "'label'"):
            shardio.DatasetWriter(url, {"label": CAT.replace(classes=classes)}, mode="append")
    assert [int(value["label"]) for value in shardio.open(url)] == [1, 1, 1, 1, 2]


def test_racing_appends_that_both_add_a_class(tmp_path) -> None:
    """Two names never get one number: the second to commit is refused by name."""
    url = tmp_path / "ds"
    with shardio.DatasetWriter(url, {"label": CAT}) as out:
        out.write({"label": "cat"})

    def writer(*names: str) -> shardio.DatasetWriter:
        return shardio.DatasetWriter(url, {"label": CAT.replace(classes=["cat", *names])}, mode="append")

    plain, fewer, lion, zebra = writer(), writer("lion"), writer("lion", "ant"), writer("zebra")
    for out, name in ((plain, "cat"), (fewer, "lion"), (lion, "ant"), (zebra, "zebra")):
        out.write({"label": name})
    lion.close()
    fewer.close()  # its numbers are those of the dataset by now
    plain.close()
    with refused(SchemaError, "'lion'", "'zebra'"):
        zebra.close()
    reader = shardio.open(url)
    assert reader.schema["label"].classes == ("cat", "lion", "ant")
    assert [reader.schema["label"].classes[value["label"]] for value in reader] == [
        "cat",
        "ant",
        "lion",
        "cat",
    ]


def test_tasks_that_began_before_and_after_a_class_was_added(tmp_path) -> None:
    url = tmp_path / "ds"
    with shardio.DatasetWriter(url, {"label": CAT}) as out:
        out.write({"label": "cat"})
    task = {"schema": {"label": "int64"}, "mode": "append", "session": "s", "commit": False}
    for number, name in enumerate(("cat", "dog")):
        with shardio.DatasetWriter(url, task=number, **task) as out:
            out.write({"label": name})
        with shardio.DatasetWriter(url, {"label": CAT.replace(classes=["cat", "dog"])}, mode="append") as out:
            out.write({"label": "dog"})
    shardio.commit(url, session="s", tasks=2)
    reader = shardio.open(url)
    assert reader.schema["label"].classes == ("cat", "dog")
    assert sorted(int(value["label"]) for value in reader) == [0, 0, 1, 1, 1]


def test_two_appends_that_add_different_features(tmp_path) -> None:
    """Neither hides what the other one has written."""
    url = tmp_path / "ds"
    with shardio.DatasetWriter(url, {"a": "int64"}) as out:
        out.write({"a": 1})
    added = {name: {"a": "int64", name: Feature("int64", default=0)} for name in "bc"}
    first, second, plain = (
        shardio.DatasetWriter(url, given_, mode="append")
        for given_ in (added["b"], added["c"], {"a": "int64"})
    )
    first.write({"a": 2, "b": 3})
    second.write({"a": 4, "c": 5})
    plain.write({"a": 6})
    first.close()
    plain.close()  # does not take the new feature away again
    second.close()
    found = [(int(v["a"]), int(v["b"]), int(v["c"])) for v in shardio.open(url)]
    assert found == [(1, 0, 0), (2, 3, 0), (6, 0, 0), (4, 0, 5)]


NAMES = st.lists(st.sampled_from(["ant", "bee", "cat", "dog", "eel", "fox"]), unique=True, min_size=1)


@settings(max_examples=max(10, settings().max_examples // 10))
@given(st.lists(st.tuples(NAMES, st.booleans()), min_size=1, max_size=5))
def test_whatever_is_appended_names_stay(tmp_path_factory, appends) -> None:
    """A model of names: what an append wrote reads as the same name forever, or nothing is appended."""
    url = tmp_path_factory.mktemp("model") / "ds"
    wrote: list[str] = []
    known: list[str] = []
    for number, (classes, named) in enumerate(appends):
        extends = classes[: len(known)] == known[: len(classes)]
        schema = {"label": Feature("int64", classes=classes) if named or not number else "int64"}
        if named and number and not extends:
            with refused(SchemaError, "'label'"):
                shardio.DatasetWriter(url, schema, mode="append")
            continue
        if named or not number:
            known = max(known, classes, key=len)
        with shardio.DatasetWriter(url, schema, mode="append" if number else "create") as out:
            for name in classes:
                if name in known:
                    out.write({"label": name})
                    wrote.append(name)
                else:
                    with pytest.raises(SchemaError):
                        out.write({"label": name})
        reader = shardio.open(url)
        assert reader.schema is not None
        assert list(reader.schema["label"].classes or ()) == known
        assert [known[value["label"]] for value in reader] == wrote
