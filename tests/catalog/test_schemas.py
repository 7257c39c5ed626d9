"""The merge of two changes of one schema."""

from __future__ import annotations

from hypothesis import given, strategies as st

from shardio.catalog import merge_onto
from shardio.errors import SchemaError
from shardio.metadata import Feature, Schema
from tests.suites.errors import refused


@st.composite
def _features(draw):
    """Return features by the names in records; each thing said of one is drawn by itself."""
    out = {}
    for stored in draw(st.sets(st.sampled_from("abc"))):
        name = draw(st.sampled_from([stored, stored, f"{stored}2", "other"]))
        feature = Feature(
            "int64",
            default=draw(st.sampled_from([None, 1, 2])),
            optional=True,
            classes=[None, ["p", "q", "r"], ["p", "q", "r", "s"], ["p", "q", "r", "t"]][
                draw(st.integers(0, 3))
            ],
            description=draw(st.sampled_from(["", "one", "two"])),
            stored_name=None if name == stored else stored,
        )
        if all(name != other for other, _ in out.values()):
            out[stored] = (name, feature)
    return out


def _told(features):
    """Return all that is said of features, a thing each."""
    return {
        (stored, what): value
        for stored, (name, feature) in features.items()
        for what, value in (
            ("name", name), ("default", feature.stored_default), ("classes", feature.classes),
            ("description", feature.description),
        )
    }  # fmt: skip


@given(_features(), _features(), _features(), st.booleans())
def test_two_changes_of_one_schema(was, ours, theirs, of_sequences):
    """What one side alone changed counts, whatever it is; what both changed in other ways is refused."""

    def schema(features):
        group = dict(features.values())
        return (
            Schema({}, encoding="sequence_example", sequence_features=group)
            if of_sequences
            else Schema(group)
        )

    if of_sequences:
        was, ours, theirs = (
            {s: (n, f.replace(default=None, optional=True)) for s, (n, f) in each.items()}
            for each in (was, ours, theirs)
        )
    base, one, other = map(schema, (was, ours, theirs))
    assert merge_onto(base, base, one) == merge_onto(one, base, base) == merge_onto(one, base, one) == one
    assert merge_onto(schema({}), None, one) == one
    try:
        merged = merge_onto(other, base, one)
    except SchemaError:
        merged = None
    try:
        assert merge_onto(one, base, other) == merged
    except SchemaError:
        assert merged is None
    before, here, there = map(_told, (was, ours, theirs))
    wanted, refused = {}, False
    for stored in {*ours, *theirs}:
        if (stored in ours) != (stored in theirs):
            # One side has it, which is new, or was taken away by the other one.
            side, told = (ours, here) if stored in ours else (theirs, there)
            if stored not in was:
                wanted |= {key: value for key, value in told.items() if key[0] == stored}
            refused |= stored in was and side[stored] != was[stored]
            continue
        for what in ("name", "default", "classes", "description"):
            old, a, b = (each.get((stored, what)) for each in (before, here, there))
            key = (stored, what)
            known = stored in was
            if a == b or (known and b == old):
                wanted[key] = a
            elif known and a == old:
                wanted[key] = b
            elif what == "classes" and a and b and (a[: len(b)] == b or b[: len(a)] == a):
                wanted[key] = max(a, b, key=len)
            else:
                refused = True
    names = [value for (_, what), value in wanted.items() if what == "name"]
    refused |= len(names) > len(set(names))
    assert (merged is None) == refused
    if merged is not None:
        features = merged.sequence_features if of_sequences else merged
        found = {feature.stored_name or name: (name, feature) for name, feature in features.items()}
        assert _told(found) == wanted


def test_two_changes_that_take_one_name_in_records():
    """Only together do they not fit: a shape is stored under the name of the other's feature."""
    base = Schema.parse({"a": "int64"})
    one = Schema.parse({"a": "int64", "b": Feature("int64[?,?]", optional=True)})
    other = Schema.parse({"a": "int64", "b/shape": Feature("int64", optional=True)})
    with refused(SchemaError, "'b/shape'"):
        merge_onto(other, base, one)
