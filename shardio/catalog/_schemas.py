"""The three-way merge of schemas: what becomes of a change that was made beside another commit."""

from __future__ import annotations

from typing import Any

from shardio.errors import SchemaError
from shardio.metadata import Feature, Schema, described

_ABSENT = object()


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
    mine, was, now = _facts(ours), _facts(began), _facts(newest)
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for place, kind in dict.fromkeys([*now, *mine]):
        one, old, other = (facts.get((place, kind), _ABSENT) for facts in (mine, was, now))
        if one in (old, other):
            value = other
        elif other == old:
            value = one
        elif kind == "classes" and _extends(one, other):
            value = max((one, other), key=len)
        else:
            named = next(schema.stored[place] for schema in (ours, newest) if place in schema.stored)
            raise _changed_twice(f"{kind} of feature {named[0]!r}, {named[1]!r}")
        if value is not _ABSENT:
            merged.setdefault(place, {})[kind] = value
    fields: dict[tuple[str, str], Feature] = {}
    try:
        for (group, stored), facts in merged.items():
            name, feature = facts.pop("name"), facts.pop("values")
            if (group, name) in fields:
                raise _changed_twice(f"two features called {name!r}")
            fields[group, name] = feature.replace(**facts, stored_name=stored)
        return newest.with_fields(fields)
    except SchemaError:
        raise
    except ValueError as error:
        # As where a shape is stored under the name of another new feature.
        raise _changed_twice(str(error)) from error


def _extends(one: Any, other: Any) -> bool:
    """Return whether one of two lists of classes begins with the other."""
    lists = isinstance(one, tuple) and isinstance(other, tuple)
    return lists and all(a == b for a, b in zip(one, other, strict=False))


def _facts(schema: Schema | None) -> dict[tuple[tuple[str, str], str], Any]:
    """Return all that a schema says of features, by place, group and name in records, and kind."""
    stored = {} if schema is None else schema.stored
    return {
        (place, kind): value for place, each in stored.items() for kind, value in described(*each).items()
    }


def _changed_twice(what: str) -> SchemaError:
    return SchemaError(
        "another commit changed the dataset's schema while records were written with another change",
        found=what,
        advice="write them again: a writer begins with the schema that the dataset has then",
    )
