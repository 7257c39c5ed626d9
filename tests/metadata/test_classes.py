"""Classes, descriptions and stored names of features: what may be said and stored, and what may follow."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardio.errors import FormatError, SchemaError
from shardio.metadata import Feature, Schema, parse_schema_json
from shardio.v1 import manifest_pb2 as pb
from tests.suites.errors import refused

NAMED = {
    "label": Feature("int64", classes=["cat", "dög", "the third"], default=-1, description="by hand"),
    "target": Feature("uint8[?]", classes=["a", "b"], stored_name="old target"),
    "seen": Feature("int64[?]", unit="timestamp[us]"),
    "note": Feature("text", optional=True, description="ünïcode\nof two lines"),
}


def test_words_survive_whatever_stores_them() -> None:
    schema = Schema.parse(NAMED)
    for other in (
        pickle.loads(pickle.dumps(schema)),
        Schema.from_message(pb.Schema.FromString(schema.to_message().SerializeToString())),
        Schema.parse(parse_schema_json(json.dumps(schema.to_dict()))),
    ):
        assert other == schema
        assert hash(other) == hash(schema)
        assert other["label"].classes == ("cat", "dög", "the third")
        assert other["label"].description == "by hand"
        assert other["target"].stored_name == "old target"
        assert other["seen"].unit == "timestamp[us]"
        assert other["target"].fit(["b", 0], "target").tolist() == [1, 0]
    changed = {"classes": ["a"], "description": "x", "unit": "x", "stored_name": "x", "default": 0}
    for word, value in changed.items():
        assert NAMED["label"].replace(**{word: value}) != NAMED["label"]
    assert "classes=['cat', 'dög', 'the third']" in repr(NAMED["label"])


@pytest.mark.parametrize(
    ("kind", "classes", "why"),
    [
        ("int64", [], "names no class"),
        ("int64", ["a", "b", "a"], "classes 0 and 2 are both called 'a'"),
        ("int64", ["a", ""], "class 1, ''.*1 to 1024 bytes"),
        ("int64", ["a\n"], "no control characters"),
        ("int64", ["x" * 1025], "1 to 1024 bytes"),
        ("int64", ["\ud800"], "class 0 has a lone surrogate"),
        ("int64", [f"{n}" for n in range(65_537)], "65537 classes; .* at most 65536"),
        ("int8", [f"{n}" for n in range(129)], "129 classes; .* at most 128"),
        ("int64", [f"{n:01000}" for n in range(5000)], "5000000 bytes.*may have 4194304"),
        ("float32", ["a"], "float32 is not an integer type"),
        ("text", ["a"], "text is not an integer type"),
        ("bool", ["a", "b"], "bool is not an integer type"),
        ("bfloat16", ["a"], "bfloat16 is not an integer type"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_classes_that_cannot_be(kind, classes, why) -> None:
    """Classes MUST be text that occurs once, for integers, and no more than the type can number."""
    with pytest.raises(ValueError, match=why) as caught:
        Feature(kind, classes=classes)
    assert len(str(caught.value)) < 1500
    message = Schema.parse({"x": kind}).to_message()
    if "\ud800" not in classes:
        message.features[0].classes.extend(classes)
    if message.features[0].classes:
        with pytest.raises(FormatError, match=f"'x'.*{why}"):
            Schema.from_message(message)


def test_the_callers_other_mistakes() -> None:
    with pytest.raises(TypeError, match="a list of names, not str"):
        Feature("int64", classes="abc")
    with refused(TypeError, "class 1"):
        Feature("int64", classes=["a", 7])
    with refused(TypeError, "str"):
        Feature("int64", description=7)
    with pytest.raises(ValueError, match="5000 bytes"):
        Feature("int64", description="x" * 5000)
    with pytest.raises(ValueError, match=r"default does not fit.*found the value 2"):
        Feature("int64", classes=["a", "b"], default=2)
    with refused(ValueError, "'c'"):
        Feature("int64", classes=["a", "b"], default="c")
    assert Feature("int64", classes=["a", "b"], default="b").default == 1
    assert Feature("int64", classes=np.array(["a", "b"])).classes == ("a", "b")
    for bad in ('{"x": {"type": "int64", "classes": "ab"}}', '{"x": {"type": "int64", "stored_name": 7}}'):
        with refused(ValueError, "'x'"):
            parse_schema_json(bad)


def test_a_stored_default_of_no_class() -> None:
    """A default MUST be the number of a class or negative."""
    message = Schema.parse({"x": Feature("int64", classes=["a", "b"], default=1)}).to_message()
    del message.features[0].classes[1]
    with refused(FormatError, "'x'"):
        Schema.from_message(message)


def test_stored_names_are_unique() -> None:
    for mapping in (
        {"a": Feature("int64", stored_name="b"), "b": "int64"},
        {"a": Feature("int64", stored_name="c"), "b": Feature("text", stored_name="c")},
        {"a": Feature("uint8[?,?]", stored_name="b"), "b/shape": "int64[2]"},
        {"a": Feature("int64", stored_name="")},
        {"a": Feature("int64", stored_name="x\ny")},
    ):
        with pytest.raises(ValueError, match=r"stored|name"):
            Schema.parse(mapping)
    swapped = Schema.parse({"a": Feature("int64", stored_name="b"), "b": Feature("text", stored_name="a")})
    assert swapped.stores_other_names
    plain = Schema.parse({"a": Feature("int64", stored_name="a")})
    assert plain == Schema.parse({"a": "int64"})
    assert not plain.stores_other_names


CAT = Feature("int64", classes=["cat", "dog"])


@pytest.mark.parametrize(
    ("classes", "why"),
    [
        (None, "the names of its 2 classes are dropped"),
        (["dog", "cat"], "class 0 changes from 'cat' to 'dog'"),
        (["cat", "eel"], "class 1 changes from 'dog' to 'eel'"),
        (["cat"], "class 1, 'dog', is dropped"),
        (["ant", "cat", "dog"], "class 0 changes"),
    ],
)
def test_a_class_stays(classes, why) -> None:
    """A later schema MUST NOT change, move or drop a class: what a number meant when it was written it means
    forever.
    """
    old, new = Schema.parse({"label": CAT}), Schema.parse({"label": CAT.replace(classes=classes)})
    assert new.incompatibility(old) == f"feature 'label': {why}" or why in str(new.incompatibility(old))
    with pytest.raises(SchemaError, match=why):
        new.append_to((old,))
    renamed = Schema.parse({"kind": CAT.replace(classes=classes, stored_name="label")})
    assert why in str(renamed.incompatibility(old))


def test_a_unit_stays() -> None:
    """A later schema MUST NOT change or drop a unit. It MAY add one."""
    none, seconds, days = (Schema.parse({"t": Feature("int64", unit=unit)}) for unit in ("", "s", "days"))
    assert seconds.append_to((none,)) == (seconds,)
    for later in (days, none):
        with pytest.raises(SchemaError):
            later.append_to((seconds,))
    # What an append does not say stays: so a description may change alone.
    described = Schema.parse({"t": Feature("int64", description="of the ring")}).completed(seconds)
    assert described["t"] == Feature("int64", description="of the ring", unit="s")


def test_words_alone_make_no_new_schema() -> None:
    """A manifest MAY put a schema in the place of the newest one where only names of classes at the end and
    descriptions and added
    units differ.
    """
    plain = Schema.parse({"label": "int64"})
    named = Schema.parse({"label": CAT})
    longer = Schema.parse({"label": CAT.replace(classes=["cat", "dog", "eel"], description="x")})
    default = Schema.parse({"label": CAT.replace(default=0)})
    assert named.append_to((plain,)) == (named,)
    assert longer.append_to((plain, named)) == (plain, longer)
    assert default.append_to((named,)) == (named, default)


@given(st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1), st.data())
def test_names_and_numbers(names, data) -> None:
    """A value is the number of its name, in whatever nesting; numbers that are there already stay."""
    feature = Feature("int16[?,?]", classes=names)
    rows, columns = data.draw(st.tuples(st.integers(0, 3), st.integers(1, 3)))
    one = st.sampled_from(names) | st.integers(0, len(names) - 1)
    given_ = data.draw(
        st.lists(st.lists(one, min_size=columns, max_size=columns), min_size=rows, max_size=rows)
    )
    wanted = [[names.index(each) if isinstance(each, str) else each for each in row] for row in given_]
    assert feature.fit(given_, "x").tolist() == wanted
    if rows:
        texts = np.array([[names[number] for number in row] for row in wanted])
        assert feature.fit(texts, "x").tolist() == wanted
