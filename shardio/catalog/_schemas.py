"""The three-way merge of schemas: what becomes of a change that was made beside another commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardio.errors import SchemaError
from shardio.metadata import ANNOTATIONS, Feature, Schema, by_stored_name


def merge_onto(newest: Schema, began: Schema | None, ours: Schema) -> Schema:
    """Return a dataset's newest schema with the changes that `ours` made to an older one.

    Of each feature, and of each thing that is said of it, what one side changed counts; two lists of classes,
    one of which begins with the other, are the longer one.

    Args:
        newest: the dataset's by now.
        began: the older schema, which both come from; None where there was none.
        ours: the schema with the changes.

    Raises:
        SchemaError: both changed the same in different ways; names the feature.
    """
    if ours.encoding != newest.encoding:
        raise _changed_twice(f"the encoding {ours.encoding!r}, and by the other {newest.encoding!r}")
    was = began.groups if began is not None else ({}, {})
    try:
        return newest.with_groups(map(_merged, ours.groups, was, newest.groups))
    except SchemaError:
        raise
    except ValueError as error:
        # As where a shape is stored under the name of another new feature.
        raise _changed_twice(str(error)) from error


def _changed_twice(what: str) -> SchemaError:
    return SchemaError(
        "another commit changed the dataset's schema while records were written with another change",
        found=what,
        advice="write them again: a writer begins with the schema that the dataset has then",
    )


def _merged(
    ours: Mapping[str, Feature], was: Mapping[str, Feature], now: Mapping[str, Feature]
) -> dict[str, Feature]:
    """Return the features of `now` with what changed from `was` to `ours`, by stored name."""
    here, before, there = by_stored_name(ours), by_stored_name(was), by_stored_name(now)
    out: dict[str, Feature] = {}
    for stored in dict.fromkeys([*there, *here]):
        one, old, other = here.get(stored), before.get(stored), there.get(stored)
        merged = other if one == old else one if other == old else _merged_feature(stored, one, old, other)
        if merged is None:
            continue
        name, feature = merged
        if name in out:
            raise _changed_twice(f"two features called {name!r}")
        out[name] = feature
    return out


_Named = tuple[str, Feature] | None


def _merged_feature(stored: str, one: _Named, old: _Named, other: _Named) -> _Named:
    """Return what becomes of a feature that both have changed.

    Raises:
        SchemaError: they changed the same.
    """
    if one is None or other is None:
        name, feature = one or other or ("", None)
        raise _changed_twice(f"feature {name!r}, {feature!r}, taken away by the other")
    ours, was, now = (None if each is None else _said(*each) for each in (one, old, other))
    assert ours is not None and now is not None  # noqa: S101, PT018 - as was asked above
    merged = dict(now)
    for what, given in ours.items():
        before, there = None if was is None else was[what], now[what]
        if given == there or (was is not None and given == before):
            continue
        twice = was is None or there != before
        if twice and what == "classes" and given is not None and there is not None:
            shorter, longer = sorted((given, there), key=len)
            if longer[: len(shorter)] == shorter:
                merged[what] = longer
                continue
        if twice:
            raise _changed_twice(
                f"feature {one[0]!r}, {one[1]!r}, and by the other {other[0]!r}, {other[1]!r}"
            )
        merged[what] = given
    name = merged["name"]
    try:
        annotations = {each: merged[each] for each in ANNOTATIONS}
        annotations["stored_name"] = None if name == stored else stored
        return name, merged["values"].replace(**annotations)
    except ValueError as error:
        raise _changed_twice(f"feature {name!r}: {error}") from error


def _said(name: str, feature: Feature) -> dict[str, Any]:
    """Return what a schema says of a feature, each of which may change by itself."""
    return {"name": name, "values": feature.replace(**ANNOTATIONS), **feature.annotations}
