"""Units of times and decimals: what a value of a column counts, and the same value in another unit.

Columns of times are integers in a schema, and the feature's `unit` says what they count, as Arrow writes it:
`timestamp[us]`, `timestamp[us, tz=UTC]`, `date32[day]`, `time32[ms]`, `duration[s]`.  Decimals are text, and
the unit says how many digits they have: `decimal128(7, 2)`.
"""

from __future__ import annotations

import decimal
import re
from typing import Any, NamedTuple

import numpy as np

_UNIT = re.compile(r"(timestamp|time32|time64|duration|date32|date64)\[(day|s|ms|us|ns)(, tz=.*)?\]")
_DECIMAL = re.compile(r"decimal\d+\((\d+), (-?\d+)\)")
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
    digits = _DECIMAL.fullmatch(wanted)
    if digits is not None and isinstance(value, str):
        return _rescaled(value, *map(int, digits.groups()))
    ours, theirs = TimeUnit.parse(unit), TimeUnit.parse(wanted)
    return value if ours is None or theirs is None else ours.convert(value, theirs)


def _rescaled(text: str, precision: int, scale: int) -> str:
    """Return the decimal that text spells with as many digits behind the point as others have."""
    context = decimal.Context(prec=max(precision, 1), traps=[decimal.Inexact, decimal.InvalidOperation])
    try:
        number = context.create_decimal(text)
        return str(number.quantize(decimal.Decimal(1).scaleb(-scale), context=context))
    except decimal.DecimalException:
        raise ValueError(
            f"{text[:40]!r} is no decimal of {precision} digits, {scale} behind the point"
        ) from None
