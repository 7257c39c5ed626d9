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
        },
        _EMPTY,
        {
            "v": _I(2, 7), "f": _F(2, 7), "b": [b"2", b"7"],
        },
    ],
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
    "long steps": [{"feature_lists": {"t": [1, _I(1, 2)]}}],
}


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
    "ragged": ("rows", {"x": ["Ragged", "int64", "v"]}),
    "steps": (
        "steps",
        {"t": ["FixedLenSequence", [], "int64", True], "p": ["FixedLenSequence", [2], "float32", True]},
    ),
    "steps of bytes": ("steps", {"b": ["FixedLenSequence", [], "bytes", True]}),
    "steps that must be there": ("steps", {"t": ["FixedLenSequence", [], "int64", False]}),
    "steps of another length": ("long steps", {"t": ["FixedLenSequence", [], "int64", True]}),
}  # fmt: skip
RECORDS["threes"] = [{"v": _I(1, 2)}, {"v": _I(3, 4)}]

# What TensorFlow lets pass and shardio refuses: there values would change their place, or their record.
STRICTER: dict[str, tuple[str, dict[str, Any]]] = {
    "sparse outside": ("outside", {"s": ["Sparse", "i", "v", "float32", 10]}),
    "sparse before": ("before", {"s": ["Sparse", "i", "v", "float32", 10]}),
    "sparse of another record": ("swapped", {"s": ["Sparse", "i", "v", "float32", 10]}),
}


def payloads(records: str) -> tuple[bool, list[bytes]]:
    """Return whether these are sequences, and the records."""
    if records in SEQUENCES:
        return True, [codecs.encode_sequence_example(one) for one in SEQUENCES[records]]
    return False, [codecs.encode_example(one) for one in RECORDS[records]]


def ours(description: list[Any]) -> Any:
    """Return the description that JSON tells."""
    form, *arguments = description
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
