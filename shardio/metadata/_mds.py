"""The encoding of adopted MDS samples: `mds` and the columns of a sample, as JSON in one string.

The columns have to be known to find one in a sample, also those that the schema leaves out, so they are part
of the schema's encoding: `mds [["image", "jpeg", null], ["label", "int", 8]]`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from shardio.format import parse_json

_PREFIX = "mds "
# Name, encoding, and size in bytes, None where it varies.
MdsLayout = tuple[tuple[str, str, int | None], ...]


def mds_encoding(columns: Iterable[tuple[str, str, int | None]]) -> str:
    """Return the encoding of samples with these columns, in their order."""
    return _PREFIX + json.dumps([list(column) for column in columns], ensure_ascii=False)


def mds_layout(encoding: str) -> MdsLayout | None:
    """Return the columns that an encoding names; None for another encoding.

    Raises:
        ValueError: it is not a list of columns.
    """
    if not encoding.startswith(_PREFIX):
        return None
    columns = parse_json(encoding.removeprefix(_PREFIX).encode())
    if not isinstance(columns, list) or not all(map(_is_column, columns)):
        raise ValueError(f"the encoding names no columns of MDS: {encoding!r:.80}")
    return tuple((name, kind, size) for name, kind, size in columns)


def _is_column(column: object) -> bool:
    if not isinstance(column, list) or len(column) != 3:
        return False
    name, kind, size = column
    fixed = isinstance(size, int) and not isinstance(size, bool) and size >= 0
    return isinstance(name, str) and isinstance(kind, str) and (size is None or fixed)
