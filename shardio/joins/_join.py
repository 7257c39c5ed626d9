"""`shardio.join`: which record of the right side belongs to each of the left, by position or by key."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shardio.arguments import checked_options
from shardio.errors import SchemaError
from shardio.joins._reader import JoinedReader, JoinedSource, Sides
from shardio.metadata import Feature
from shardio.reader import (
    DatasetReader,
    choose_columns,
    column_batches,
    is_ascending,
    with_features,
)
from shardio.redact import redact

_TOGETHER = 1 << 15
_SHOWN = 5
_ENCODINGS = ("example", "tensors", "array", "bytes")


@checked_options
def join(
    left: DatasetReader,
    right: DatasetReader,
    *,
    on: str | None = None,
    how: Literal["all", "inner"] = "all",
    rename: Mapping[str, str] | None = None,
) -> DatasetReader:
    """Return a reader of the records of one dataset with the features of another one beside theirs.

    Nothing is copied and neither dataset is touched: the order, also that of streams, is the left one's, and
    the right one's features are read with every record. It can be sliced, selected, filtered, streamed, mixed
    and joined again; the state of a stream names both sides, and another version of either is refused.

    Args:
        left: from `shardio.open`, or a part of it in storage order.
        right: the same, in any order. Without `on` its record i belongs to record i of `left`.
        on: a feature of both, integers, text or bytes, by whose values records belong together: each comes
            once on the right, and any number of records on the left may have it. It is read
            from all records of both sides. What is held meanwhile grows with their number (the page on
            streaming has what was measured), and afterwards 8 bytes for each of `left`.
        how: with `on`: "all" takes every record of `left`, and each needs its match; "inner" leaves out those
            without one, and records of either side that have no key.
        rename: new names for features of `right`, needed where both sides have one of the same name.

    Raises:
        SchemaError: without `on`, the numbers of records differ. With it, a key comes twice on the right or
            is missing there, a record has no key and `how` is "all", or the keys differ in type or in
            the order of classes. It says which, and where.
        ValueError, TypeError: both sides have a feature of one name, or a feature is not there. Also a reader
            without a schema, one that does not decode or skips damage, or one that crops images at random.

    Examples:
        >>> import shardio, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> for name, kind, values in (("birds", "text", ["wren", "robin"]), ("legs", "int64", [2, 3])):
        ...     with shardio.DatasetWriter(f"{folder}/{name}", schema={name: kind}) as out:
        ...         for value in values:
        ...             out.write({name: value})
        >>> both = shardio.join(shardio.open(folder + "/birds"), shardio.open(folder + "/legs"))
        >>> both.read_batch([1, 0])
        {'birds': ['robin', 'wren'], 'legs': array([3, 2])}
    """
    if how not in ("all", "inner") or (how == "inner" and on is None):
        raise ValueError(f'how={how!r} must be "all", or with on= "inner"')
    for side, reader in (("left", left), ("right", right)):
        _check_side(side, reader)
    if not is_ascending(left.selection):
        raise ValueError(
            "the left side of a join must be in storage order, each record once: join first, and select from "
            "what comes of it"
        )
    if on is not None:
        _check_key(left, right, on)
    names = _names(left, right, on, dict(rename or {}))
    selection, index = left.selection, None
    if on is not None:
        index = _matches(left, right, on, inner=how == "inner")
        lacking = np.flatnonzero(index < 0)
        if how == "inner":
            selection = np.asarray(selection, np.int64)[index >= 0]
        elif len(lacking):
            raise SchemaError(
                f"{len(lacking)} records of the left side have no match on the right",
                url=left.source.url,
                expected=f"each {on!r} on the left among those of {right.source.url}",
                found=", ".join(str(value[on]) for value in left.read(lacking[:_SHOWN])),
                advice='leave them out with how="inner"',
            )
    elif len(left) != len(right):
        raise SchemaError(
            "the two sides of a join by position have different numbers of records",
            url=right.source.url,
            expected=f"{len(left)}, as {left.source.url}",
            found=len(right),
            advice="join by a key with on=, or select the records that belong together on both sides",
        )
    source = JoinedSource(Sides(left.source, right, left.selection, index, names, on))
    return JoinedReader(source, None if len(selection) == len(source) else selection)


def _check_side(side: str, reader: object) -> None:
    if not isinstance(reader, DatasetReader):
        message = f"join takes two readers of shardio.open, found {type(reader).__name__} on the {side}"
        raise TypeError(message)
    options, schema = reader.source.options, reader.schema
    if schema is None or not isinstance(options.decode, bool | str) or options.decode is False:
        raise ValueError(
            f"{redact(reader.source.url)}: the {side} side of a join needs a schema and decode=True"
        )
    if schema.encoding not in _ENCODINGS:
        raise ValueError(
            f"{redact(reader.source.url)}: records of the encoding {schema.encoding!r} cannot be joined"
        )
    if options.on_error != "raise":
        raise ValueError(
            f"{redact(reader.source.url)}: a join must know of every record of the {side} side, and "
            f'on_error={options.on_error!r} may leave some out: open it with on_error="raise"'
        )
    if side == "right" and getattr(reader.source.codec, "random", False):
        raise ValueError(
            f"{redact(reader.source.url)}: images of the right side cannot be cropped at random; "
            "join them as left"
        )


def _names(
    left: DatasetReader, right: DatasetReader, on: str | None, rename: dict[str, str]
) -> dict[str, str]:
    """Return what the features of the right side are called beside those of the left."""
    ours, theirs = left.features, right.features
    for name in rename:
        if name not in theirs:
            raise ValueError(
                f"rename= names {name!r}, which the right side does not have; it has {', '.join(theirs)}"
            )
    names = {name: rename.get(name, name) for name in theirs if name != on or name in rename}
    taken = [new for new in names.values() if new in ours]
    twice = [new for new in names.values() if list(names.values()).count(new) > 1]
    if taken or twice:
        name = (taken or twice)[0]
        where = "on both sides" if taken else "twice on the right"
        example = f'rename={{"{name}": "{name}_right"}}'
        message = f"a feature would be called {name!r} {where}: rename it with {example}, or choose features="
        raise ValueError(message)
    return names


def _check_key(left: DatasetReader, right: DatasetReader, on: str) -> None:
    """Refuse a feature that is no key, or not the same on both sides."""
    kinds, classes = [], []
    for side, reader in (("left", left), ("right", right)):
        schema: Mapping[str, Feature] = reader.schema or {}
        feature = schema.get(on)
        if feature is None:
            raise ValueError(f"there is no feature {on!r} on the {side} side; it has {', '.join(schema)}")
        integer = feature.dtype is not None and feature.dtype.kind in "iu" and feature.type != "bfloat16"
        if feature.shape or not (integer or feature.kind in ("text", "bytes")):
            raise ValueError(
                f"on={on!r}: a key is an integer, text or bytes, and on the {side} it is {feature.short}"
            )
        kinds.append("integer" if integer else feature.kind)
        classes.append(feature.classes or ())
    for number, (ours, theirs) in enumerate(zip(*classes, strict=False)):
        if ours != theirs:
            raise SchemaError(
                f"feature {on!r} numbers its classes differently on the two sides of the join",
                url=right.source.url,
                expected=f"class {number} to be {ours!r}, as in {left.source.url}",
                found=repr(theirs),
                advice="write one side again with the classes=[...] of the other (their names are taken as "
                "values), or join by position, without on=",
            )
    if kinds[0] != kinds[1]:
        raise SchemaError(
            f"feature {on!r} is not of one type on both sides of the join",
            url=right.source.url,
            expected=kinds[0],
            found=kinds[1],
            advice="write the keys as the same type on both sides",
        )


def _matches(left: DatasetReader, right: DatasetReader, on: str, *, inner: bool) -> NDArray[np.int64]:
    """Return for each record of the left side the number of its match on the right, -1 for none.

    Raises:
        SchemaError: a key comes more than once on the right, or a record has none and the join is not inner.
    """
    ours, our_numbers = _keys(left, on, inner=inner)
    theirs, their_numbers = _keys(right, on, inner=inner)
    order = np.argsort(theirs[0])
    first_words = theirs[0, order]
    if (first_words[1:] == first_words[:-1]).any():  # else all keys differ in their first word
        order = np.lexsort(theirs[::-1])
        again = np.flatnonzero((theirs[:, order[1:]] == theirs[:, order[:-1]]).all(axis=0))
        if len(again):
            first, second = sorted(their_numbers[order[again[0] : again[0] + 2]].tolist())
            raise SchemaError(
                f"the key {on!r} comes more than once on the right side of the join",
                url=right.source.url,
                expected="each key once",
                found=f"{right[first][on]!r} at {first} and {second}, and {len(again) - 1} more",
                advice="leave all but one out with ds.filter or ds.select",
            )
    # Sorted, too: a search that jumps costs more than the sort.
    mine = np.argsort(ours[0])
    at = np.searchsorted(first_words, ours[0, mine])
    found = np.full(len(left), -1, np.int64)
    # Keys of one first word stand beside each other; there are hardly ever several.
    while len(mine):
        inside = at < len(order)
        mine, at = mine[inside], at[inside]
        other = order[at]
        alike = first_words[at] == ours[0, mine]
        same = alike & (theirs[1, other] == ours[1, mine])
        found[our_numbers[mine[same]]] = their_numbers[other[same]]
        rest = alike & ~same
        mine, at = mine[rest], at[rest] + 1
    return found


def _keys(reader: DatasetReader, on: str, *, inner: bool) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the keys of the records that have one, uint64 [2, n], and the numbers of these records.

    An integer is told apart by its bits and its sign, text and bytes by a digest.

    Raises:
        SchemaError: a record has none, and that is not for an inner join.
    """
    columns = choose_columns(reader.schema, [on], what="a join")
    feature = columns[0].feature
    narrow = type(reader)(with_features(reader.source, [on]), reader.selection)
    keys = np.zeros((2, len(reader)), np.uint64)
    present = np.ones(len(reader), bool)
    low = 0
    for batch in column_batches(narrow, columns, _TOGETHER):
        values = batch[on]
        part = slice(low, low + len(values))
        if not isinstance(values, np.ndarray):
            present[part] = [value is not None for value in values]
            values = [value for value in values if value is not None]
        if not inner and not present[part].all():
            raise SchemaError(
                f"a record has no {on!r} to be joined by",
                url=reader.source.url,
                row=low + int(np.argmin(present[part])),
                advice='leave such records out with how="inner"',
            )
        if feature.dtype is not None:
            numbers = np.asarray(values, feature.dtype)
            wide = numbers.astype(np.int64 if numbers.dtype.kind == "i" else np.uint64)
            made = np.stack([wide.view(np.uint64), (numbers < 0).astype(np.uint64)])
        else:
            texts = (value.encode() if isinstance(value, str) else value for value in values)
            digests = b"".join(hashlib.blake2b(text, digest_size=16).digest() for text in texts)
            made = np.frombuffer(digests, "<u8").reshape(-1, 2).T
        keys[:, part][:, present[part]] = made
        low = part.stop
    numbers = np.flatnonzero(present)
    return keys if len(numbers) == len(reader) else keys[:, numbers], numbers
