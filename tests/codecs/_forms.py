"""Descriptions of columns and what becomes of them, as JSON: what TensorFlow answered, without TensorFlow.

`python -m tests.oracle.golden`, in the environment of `make oracle`, writes the answers to
`tests/golden/tensorflow/forms.json`.  `test_forms.py` holds shardio against that file, and `make oracle`
holds the file against TensorFlow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardio import codecs
from shardio.errors import ShardioError
from tests.codecs._golden import TENSORFLOW

FILE = TENSORFLOW / "forms.json"

_I, _F = (lambda *v: np.array(v, np.int64)), (lambda *v: np.array(v, np.float32))
_EMPTY: dict[str, Any] = {}

RECORDS: dict[str, list[dict[str, Any]]] = {
    "places": [
        {"i": _I(5, 1), "j": _I(0, 2), "v": _F(1, 2), "b": [b"x", b"y"]},
        _EMPTY,
        {"i": _I(0, 0, 9), "j": _I(2, 1, 0), "v": _F(3, np.nan, -0.0), "b": [b"", b"z", b"\xff"]},
    ],
    "uneven": [{"i": _I(1, 2), "v": _F(1)}],
    "uneven inside": [{"i": _I(1), "j": _I(1, 2), "v": _F(1)}],
    "swapped": [{"i": _I(1, 2), "v": _F(1)}, {"i": _I(1), "v": _F(1, 2)}],
    "outside": [{"i": _I(1, 10), "v": _F(1, 2)}],
    "before": [{"i": _I(-1), "v": _F(1)}],
    "rows": [
        {
            "v": _I(3, 1, 4, 1, 5, 9), "f": _F(3, 1, 4, 1, 5, 9), "b": [b"3", b"1", b"4", b"1", b"5", b"9"],
            "splits": _I(0, 2, 3, 3, 6), "lengths": _I(2, 1, 0, 3), "starts": _I(0, 2, 3, 3),
            "limits": _I(2, 3, 3, 6), "ids": _I(0, 0, 1, 3, 3, 3), "outer": _I(0, 2, 3, 4), "pairs": _I(1, 3),
            "sixes": _I(2, 1, 0), "threes": _I(1, 2),
        },
        _EMPTY,
        {
            "v": _I(2, 7), "f": _F(2, 7), "b": [b"2", b"7"], "splits": _I(0, 0, 2), "lengths": _I(0, 2),
            "starts": _I(0, 0), "limits": _I(0, 2), "ids": _I(1, 1), "outer": _I(0, 2), "pairs": _I(2),
            "sixes": _I(1), "threes": _I(1),
        },
    ],
    "none": [],
    "odd": [{"v": _I(1, 2, 3), "lengths": _I(1, 1)}],
    "falling": [{"v": _I(1, 2, 3), "x": _I(0, 2, 1, 3)}],
    "negative": [{"v": _I(1), "x": _I(-1)}],
    "negative lengths": [{"v": _I(1), "x": _I(2, -1)}],
    "too long": [{"v": _I(1, 2), "x": _I(0, 3)}],
    "first not 0": [{"v": _I(1, 2), "x": _I(1, 2)}],
    "moved": [{"v": _I(1, 2, 3), "x": _I(0, 2)}, {"v": _I(4), "x": _I(0, 1)}],
    "moved lengths": [{"v": _I(1, 2, 3), "x": _I(2)}, {"v": _I(4), "x": _I(2)}],
    "moved pairs": [{"v": _I(1, 2, 3)}, {"v": _I(4)}],
}  # fmt: skip
SEQUENCES: dict[str, list[dict[str, Any]]] = {
    "steps": [
        {
            "context": {"c": _I(1, 2, 3), "n": _I(1, 2)},
            "feature_lists": {"t": [1, 2], "p": [_F(1, 2)], "v": [_I(1, 2, 3), _I(4)], "n": [_I(1, 2), 1]},
        },
        _EMPTY,
        {"feature_lists": {"t": [7], "b": [b"x", b""], "v": [_I(5, 6)], "n": [_I(0, 0, 2)]}},
    ],
    "unaligned": [{"feature_lists": {"v": [_I(1, 2), _I(3)], "n": [_I(2)]}}],
    "long steps": [{"feature_lists": {"t": [1, _I(1, 2)]}}],
    "bad rows": [{"feature_lists": {"v": [1, _I(1, 2)], "n": [1, 1]}}],
}


def _ragged(*partitions: list[Any], dtype: str = "int64", key: str | None = "v") -> list[Any]:
    return ["Ragged", dtype, key, list(partitions)]


# By name: the records, and the description; in sequences of a feature list.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fixed by an int": ("threes", {"v": ["FixedLen", 2, "int64"]}),
    "sparse": ("places", {"s": ["Sparse", "i", "v", "float32", 10]}),
    "sparse bytes": ("places", {"s": ["Sparse", "i", "b", "bytes", 10]}),
    "sparse as it comes": ("places", {"s": ["Sparse", "i", "v", "float32", 10, True]}),
    "sparse matrix": ("places", {"s": ["Sparse", ["i", "j"], "v", "float32", [10, 3]]}),
    "sparse beside its parts": (
        "places",
        {"i": ["VarLen", "int64"], "s": ["Sparse", ["i"], "v", "float32", [10]]},
    ),
    "sparse twice": (
        "places",
        {"s": ["Sparse", "i", "v", "float32", 10], "t": ["Sparse", "j", "v", "float32", 4]},
    ),
    "sparse uneven": ("uneven", {"s": ["Sparse", "i", "v", "float32", 10]}),
    "sparse uneven inside": ("uneven inside", {"s": ["Sparse", ["i", "j"], "v", "float32", [9, 9]]}),
    "sequence": (
        "places",
        {"i": ["FixedLenSequence", [], "int64", True], "v": ["FixedLenSequence", [1], "float32", True, 9]},
    ),
    "sequence of bytes": ("places", {"b": ["FixedLenSequence", [], "bytes", True]}),
    "sequence of bytes, padded": ("places", {"b": ["FixedLenSequence", [], "bytes", True, "pad"]}),
    "sequence of pairs": ("rows", {"v": ["FixedLenSequence", [2], "int64", True, -1]}),
    "sequence of blocks": ("rows", {"v": ["FixedLenSequence", [1, 2], "int64", True, -1]}),
    "sequence that does not divide": ("places", {"i": ["FixedLenSequence", [2], "int64", True]}),
    "sequence of another kind": ("places", {"i": ["FixedLenSequence", [], "float32", True]}),
    "sequence that nobody has": ("places", {"x": ["FixedLenSequence", [2], "float32", True]}),
    "ragged": ("rows", {"x": _ragged()}),
    "ragged by splits": ("rows", {"x": _ragged(["RowSplits", "splits"])}),
    "ragged by lengths": ("rows", {"x": _ragged(["RowLengths", "lengths"])}),
    "ragged by starts": ("rows", {"x": _ragged(["RowStarts", "starts"])}),
    "ragged by limits": ("rows", {"x": _ragged(["RowLimits", "limits"])}),
    "ragged by ids": ("rows", {"x": _ragged(["ValueRowIds", "ids"])}),
    "ragged by ids, floats": ("rows", {"x": _ragged(["ValueRowIds", "ids"], dtype="float32", key="f")}),
    "ragged bytes": ("rows", {"b": _ragged(["RowLengths", "lengths"], dtype="bytes", key=None)}),
    "ragged pairs": ("rows", {"x": _ragged(["UniformRowLength", 2])}),
    "ragged pairs of pairs": ("rows", {"x": _ragged(["UniformRowLength", 1], ["UniformRowLength", 2])}),
    "ragged of two levels": ("rows", {"x": _ragged(["RowSplits", "outer"], ["RowSplits", "splits"])}),
    "ragged of two kinds": ("rows", {"x": _ragged(["RowLengths", "pairs"], ["RowLengths", "lengths"])}),
    "ragged in equal parts": ("rows", {"x": _ragged(["UniformRowLength", 2], ["RowLengths", "lengths"])}),
    "ragged of pairs": ("rows", {"x": _ragged(["RowLengths", "threes"], ["UniformRowLength", 2])}),
    "ragged of three levels": (
        "rows",
        {"x": _ragged(["UniformRowLength", 1], ["RowLengths", "pairs"], ["RowLengths", "lengths"])},
    ),
    "ragged twice": (
        "rows",
        {"x": _ragged(["RowLengths", "lengths"]), "y": _ragged(["ValueRowIds", "ids"]), "v": _ragged()},
    ),
    "ragged of no records": ("none", {"x": _ragged(["RowLengths", "lengths"])}),
    "ragged that falls short": ("odd", {"x": _ragged(["RowLengths", "lengths"])}),
    "ragged odd pairs": ("odd", {"x": _ragged(["UniformRowLength", 2])}),
    "ragged falling splits": ("falling", {"x": _ragged(["RowSplits", "x"], key="v")}),
    "ragged falling limits": ("falling", {"x": _ragged(["RowLimits", "x"])}),
    "ragged falling starts": ("falling", {"x": _ragged(["RowStarts", "x"])}),
    "ragged negative ids": ("negative", {"x": _ragged(["ValueRowIds", "x"])}),
    "ragged negative lengths": ("negative lengths", {"x": _ragged(["RowLengths", "x"])}),
    "ragged limits too long": ("too long", {"x": _ragged(["RowLimits", "x"])}),
    "ragged splits too long": ("too long", {"x": _ragged(["RowSplits", "x"])}),
    "ragged starts too long": ("too long", {"x": _ragged(["RowStarts", "x"])}),
    "ragged starts not at 0": ("first not 0", {"x": _ragged(["RowStarts", "x"])}),
    "steps": (
        "steps",
        {"t": ["FixedLenSequence", [], "int64", True], "p": ["FixedLenSequence", [2], "float32", True]},
    ),
    "steps of bytes": ("steps", {"b": ["FixedLenSequence", [], "bytes", True]}),
    "steps that must be there": ("steps", {"t": ["FixedLenSequence", [], "int64", False]}),
    "steps of another length": ("long steps", {"t": ["FixedLenSequence", [], "int64", True]}),
    "steps in rows": ("steps", {"x": _ragged(["RowLengths", "n"])}),
    "steps in pairs": ("unaligned", {"n": _ragged(["UniformRowLength", 2], key=None)}),
    "steps without partners": ("unaligned", {"x": _ragged(["RowLengths", "n"])}),
    "steps in bad rows": ("bad rows", {"x": _ragged(["RowLengths", "n"])}),
}  # fmt: skip
RECORDS["threes"] = [{"v": _I(1, 2)}, {"v": _I(3, 4)}]

# What TensorFlow lets pass and shardio refuses: there values would change their place, or their record.
STRICTER: dict[str, tuple[str, dict[str, Any]]] = {
    "sparse outside": ("outside", {"s": ["Sparse", "i", "v", "float32", 10]}),
    "sparse before": ("before", {"s": ["Sparse", "i", "v", "float32", 10]}),
    "sparse of another record": ("swapped", {"s": ["Sparse", "i", "v", "float32", 10]}),
    "splits not from 0": ("first not 0", {"x": _ragged(["RowSplits", "x"])}),
    "splits of another record": ("moved", {"x": _ragged(["RowSplits", "x"])}),
    "lengths of another record": ("moved lengths", {"x": _ragged(["RowLengths", "x"])}),
    "pairs of two records": ("moved pairs", {"v": _ragged(["UniformRowLength", 2], key=None)}),
}


def payloads(records: str) -> tuple[bool, list[bytes]]:
    """Return whether these are sequences, and the records."""
    if records in SEQUENCES:
        return True, [codecs.encode_sequence_example(one) for one in SEQUENCES[records]]
    return False, [codecs.encode_example(one) for one in RECORDS[records]]


def ours(description: list[Any]) -> Any:
    """Return the description that JSON tells."""
    form, *arguments = description
    if form == "Ragged":
        dtype, key, partitions = arguments
        return codecs.Ragged(dtype, key, [getattr(codecs.Ragged, kind)(what) for kind, what in partitions])
    if form == "FixedLenSequence" and len(arguments) == 4 and isinstance(arguments[3], str):
        arguments[3] = arguments[3].encode()
    return getattr(codecs, form)(*arguments)


def answer(case: tuple[str, dict[str, Any]]) -> Any:
    """Return what shardio makes of a case, or None where it refuses."""
    listed, records = payloads(case[0])
    features = {name: ours(description) for name, description in case[1].items()}
    try:
        if not listed:
            return {name: plain(column) for name, column in codecs.parse_examples(records, features).items()}
        found = codecs.parse_sequence_examples(records, {"feature_lists": features})
    except ShardioError:
        return None
    lists = {name: plain(column) for name, column in found["feature_lists"].items()}
    return {"lists": lists, "lengths": {name: plain(each) for name, each in found["lengths"].items()}}


def plain(column: Any) -> Any:
    """Return a column as JSON."""
    if isinstance(column, codecs.RaggedColumn):
        return {"splits": column.offsets.tolist(), "values": plain(column.values)}
    if isinstance(column, codecs.VarLenColumn):
        parts = {"indices": plain(column.indices), "shape": column.shape.tolist()}
        return {**parts, "values": plain(column.values)}
    return array(column)


def array(values: Any) -> dict[str, Any]:
    """Return an array as JSON: floats by their bits, bytes as hex."""
    values = np.asarray(values)
    flat = values.ravel()
    if values.dtype == np.float32:
        items = flat.view(np.uint32).tolist()
    else:
        items = [item.hex() if isinstance(item, bytes) else item for item in flat.tolist()]
    return {"dtype": str(values.dtype), "shape": list(values.shape), "values": items}
