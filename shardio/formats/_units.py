"""Units of times: what a value of a column counts, and the same value in another unit.

Columns of times are integers in a schema, and the feature's `unit` says what they count, as Arrow writes it:
`timestamp[us]`, `timestamp[us, tz=UTC]`, `date32[day]`, `time32[ms]`, `duration[s]`.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

_UNIT = re.compile(r"(timestamp|time32|time64|duration|date32|date64)\[(day|s|ms|us|ns)(, tz=.*)?\]")
_PER_DAY = {"day": 1, "s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


class TimeUnit(NamedTuple):
    """What integers count: times of a kind, so many of them a day."""

    kind: str
    per_day: int

    @classmethod
    def parse(cls, text: str) -> TimeUnit | None:
        """Return what a unit says; None where it is none of times."""
        match = _UNIT.fullmatch(text)
        if match is None:
            return None
        name, unit, zone = match.groups()
        kind = {"time32": "time", "time64": "time", "date32": "date", "date64": "date"}.get(name, name)
        return cls(kind + (" with a time zone" if zone else ""), _PER_DAY[unit])

    def convert(self, value: Any, other: TimeUnit) -> Any:
        """Return an integer, or an array of them, of this unit in another one.

        Raises:
            ValueError: it is between two integers of the other unit, or beyond 64 bits.
        """
        if self.per_day == other.per_day:
            return value
        given = np.asarray(value)
        if self.per_day > other.per_day:
            found, rest = np.divmod(given, self.per_day // other.per_day)
            if rest.any():
                raise ValueError("it is more precise than that")
            return found[()]
        factor = other.per_day // self.per_day
        wide = given.astype(np.int64)
        bound = (1 << 63) // factor
        if wide.size and (wide.max() >= bound or wide.min() < -bound):
            raise ValueError("it is beyond what 64 bits hold")
        return (wide * factor)[()]


def in_unit(value: Any, unit: str, wanted: str) -> Any:
    """Return a value, or a list of them, of one unit in another; as it is where one of them is no unit.

    Raises:
        ValueError: the other unit can't hold it exactly.
    """
    if isinstance(value, list):
        return [None if item is None else in_unit(item, unit, wanted) for item in value]
    ours, theirs = TimeUnit.parse(unit), TimeUnit.parse(wanted)
    return value if ours is None or theirs is None else ours.convert(value, theirs)
