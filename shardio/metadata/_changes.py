"""The differences of two schemas, and the meaning of each for existing records and for readers.

One comparison and one table. `Schema` reads them: which schema may follow which, what a change is called, and
what an append takes over from the dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from shardio.metadata._feature import ANNOTATIONS, Feature
from shardio.metadata._kinds import tensor_parts
from shardio.metadata._numbers import shape_fits, short_form

# Group of a sequence example ("context" for all features of other encodings), and name.
Place = tuple[str, str]
# By group and the name in records: the name for readers, and the feature.
Stored = Mapping[Place, tuple[str, Feature]]


class Difference(NamedTuple):
    """One difference of two schemas.

    Attributes:
        kind: one of `CHANGES`.
        group, name: of the feature in the newer schema; of a removed one, in the older schema.
        old, new: a feature that is removed or added; else one of the values of `described`.
    """

    kind: str
    group: str
    name: str
    old: Any
    new: Any

    @property
    def reason(self) -> str | None:
        """Why older records cannot be read, or None."""
        rule = CHANGES[self.kind].refuse
        return None if rule is None else rule(self.old, self.new)

    @property
    def line(self) -> str:
        """What readers see."""
        return CHANGES[self.kind].line(self)


class _Change(NamedTuple):
    """A kind of difference: its line, why it is refused, and whether records are the same bytes."""

    line: Callable[[Difference], str]
    refuse: Callable[[Any, Any], str | None] | None = None
    same_records: bool = False


def described(name: str, feature: Feature) -> dict[str, Any]:
    """Return all that a schema holds of a feature but its name in records, by kind of difference."""
    said = feature.annotations
    del said["stored_name"]
    return {"name": name, "values": feature.replace(**ANNOTATIONS), **said}


def compare(older: Stored, newer: Stored) -> Iterator[Difference]:
    """Yield the differences of two schemas; a feature is known by its name in records."""
    for (group, stored), (name, feature) in newer.items():
        before = older.get((group, stored))
        if before is None:
            yield Difference("added", group, name, None, feature)
        elif before != (name, feature):
            was, now = described(*before), described(name, feature)
            for kind in CHANGES:
                if was.get(kind) != now.get(kind):
                    yield Difference(kind, group, name, was[kind], now[kind])
    for (group, stored), (name, feature) in older.items():
        if (group, stored) not in newer:
            yield Difference("removed", group, name, feature, None)


def refuse_values(old: Feature, new: Feature) -> str | None:
    """Say why values of one feature cannot be read as another, apart from annotations; or None."""
    if old.optional and not new.optional:
        return "older records may lack it, and now it is required"
    if new.type not in (old.type, *old.rules.read_as) and not _widens_tensor(old, new):
        return f"its type changes from {old.short} to {new.short}"
    # With two or more `?` the shape is stored beside the numbers, which the older records do not have.
    widened = shape_fits(new.shape, old.shape) and (new.unknown_dimensions <= 1 or old.unknown_dimensions > 1)
    return None if new.shape == old.shape or widened else f"its shape changes from {old.short} to {new.short}"


def _widens_tensor(old: Feature, new: Feature) -> bool:
    if not old.kind == new.kind == "tensor":
        return False
    (name, shape), (before, sizes) = tensor_parts(new.type), tensor_parts(old.type)
    return name in (None, before) and (shape is None or (sizes is not None and shape_fits(shape, sizes)))


def refuse_classes(old: tuple[str, ...] | None, new: tuple[str, ...] | None) -> str | None:
    """Say which number would mean another class than before, or None."""
    if old is None:
        return None
    if new is None:
        return f"the names of its {len(old)} classes are dropped"
    for number, (before, after) in enumerate(zip(old, new, strict=False)):
        if before != after:
            return f"class {number} changes from {short_form(before)!r} to {short_form(after)!r}"
    return f"class {len(new)}, {short_form(old[len(new)])!r}, is dropped" if old[len(new) :] else None


def _refuse_added(_: None, new: Feature) -> str | None:
    return None if new.optional else "it is new and required; give it a default, or optional=True"


def _refuse_unit(old: str, new: str) -> str | None:
    return f"its unit changes from {short_form(old)} to {short_form(new) or 'none'}" if old else None


# In the order in which they are reported.
CHANGES: dict[str, _Change] = {
    "added": _Change(lambda each: f"{each.name}: added, {each.new!r}", _refuse_added),
    "removed": _Change(lambda each: f"{each.name}: no longer read"),
    "name": _Change(lambda each: f"{each.old}: now called {each.new}"),
    "values": _Change(lambda each: f"{each.name}: {each.old!r} -> {each.new!r}", refuse_values),
    "classes": _Change(
        lambda each: f"{each.name}: classes added: {', '.join((each.new or ())[len(each.old or ()) :])}",
        refuse_classes,
        same_records=True,
    ),
    "unit": _Change(lambda each: f"{each.name}: counts {each.new}", _refuse_unit, same_records=True),
    "description": _Change(lambda each: f"{each.name}: described as {each.new!r}", same_records=True),
}
