"""What the text of a field means: which texts are numbers, which are missing, and which name classes.

Whether a column holds numbers, or names of classes, is decided once for all of its fields.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shardio.formats._source import INT64_LIMIT, Unreadable
from shardio.metadata import Feature

# What pandas writes and reads as a missing number.
MISSING = frozenset(
    {
        "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>",
        "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
    }
)  # fmt: skip
MOST_CLASSES = 1 << 16
BOOLEANS = {"true": True, "false": False}
# No leading zeros, which postal codes have, no plus, which telephone numbers have, and no trailing zeros,
# which versions have: text is taken for a number only where the number says the same.
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,19}")
_REAL = re.compile(
    r"-?((0|[1-9][0-9]*)(\.(0|[0-9]*[1-9]))?|\.[0-9]*[1-9])(e[+-][0-9]+)?"
    r"|-?(0|[1-9][0-9]*)\.[0-9]+[eE][+-]?[0-9]+"
    r"|-?(?i:inf(inity)?)"
)
# What a caller may mean who says that a column is of numbers.
_ANY_NUMBER = re.compile(
    r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?", re.IGNORECASE
)
_EXACT = 1 << 53  # up to here float64 holds every integer
_EXACT_DIGITS = 17  # decimal digits that tell all numbers of float64 apart


def is_integer(text: str) -> bool:
    """Tell whether text is an integer as it is written; it may have more than 64 bits."""
    return _INTEGER.fullmatch(text) is not None


def is_real(text: str) -> bool:
    """Tell whether text is a number that float64 holds and that says all that the text does."""
    if _REAL.fullmatch(text) is None or text == "-0":
        return False
    number = float(text)
    if not math.isfinite(number):
        return "inf" in text.lower()
    digits = re.split("[eE]", text.lstrip("-"))[0].replace(".", "").strip("0")
    return len(digits) <= _EXACT_DIGITS and (abs(number) < _EXACT or not text.lstrip("-").isdecimal())


def is_number(text: str) -> bool:
    """Tell whether text is a number in any notation, as where the caller says that it is one."""
    return _ANY_NUMBER.fullmatch(text) is not None


def parse_number(text: str, feature: Feature) -> int | float | None:
    """Return the number, or truth value, that text spells for a feature of such; None where it is missing.

    Raises:
        ValueError: it spells none, or one that is too large for float64.
    """
    if feature.kind != "number" or feature.shape:
        raise ValueError("a field holds one value")
    text = text.strip()
    if text in MISSING:
        return None
    if feature.type == "bool":
        if text.lower() not in BOOLEANS:
            raise ValueError("not true or false")
        return BOOLEANS[text.lower()]
    if not is_number(text):
        raise ValueError("not a number")
    if feature.type.startswith(("int", "uint")):
        # pandas writes 1 as 1.0 in a column with missing values.
        return int(re.sub(r"\.0*$", "", text))
    number = float(text)
    if not math.isfinite(number) and "inf" not in text.lower():
        raise ValueError("it is too large")
    return number


class LabelColumn(NamedTuple):
    """What a column of labels holds, as text.

    Attributes:
        kind: "integers", "reals", or "names" of classes; "none" where there is no label.
        texts: all of them, each once; empty where they are more than a feature can have classes.
    """

    kind: str
    texts: frozenset[str]

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> LabelColumn:
        """Decide what a column holds whose labels are some texts."""
        found = frozenset(texts)
        if not found:
            kind = "none"
        elif all(map(is_integer, found)):
            kind = "integers"
        else:
            kind = "reals" if all(is_number(text) or text in MISSING for text in found) else "names"
            # 01 and 02 number nothing: they are names.
            if any(text.lstrip("+-").isdecimal() and not is_integer(text) for text in found):
                kind = "names"
        return cls(kind, found if len(found) <= MOST_CLASSES else frozenset())

    @property
    def feature(self) -> Feature | str | Unreadable:
        """The feature of these labels: numbers as they are, or one with their names as its classes."""
        if self.kind == "names":
            return label_of(sorted(self.texts))
        return "int64" if self.kind == "integers" else "float64"

    def names_classes(self, classes: Sequence[str]) -> bool:
        """Tell whether the labels, all of them, are the names of these classes and not their numbers."""
        return self.kind == "names" or (bool(self.texts) and self.texts.issubset(classes))

    def fit(self, text: str, feature: Feature) -> str | int | float | None:
        """Return a label as a feature takes it: the name of a class, text, or a number.

        Raises:
            ValueError: the feature is one of numbers, and the label is none.
        """
        if feature.kind != "number":
            return text
        if feature.classes is not None and self.names_classes(feature.classes):
            return text
        return parse_number(text, feature)


def names_classes(text: str, classes: Sequence[str]) -> bool:
    """Tell whether text is the name of a class and not a number, for a column that is not known as a whole.

    Classes that are called by numerals leave no text that is a number.
    """
    return not is_integer(text) or any(map(is_integer, classes))


def label_of(classes: Sequence[str]) -> Feature | Unreadable:
    """Return the feature of labels of these classes, or why there can be none."""
    try:
        return Feature("int64", classes=classes)
    except ValueError as error:
        return Unreadable(f"the classes found cannot be those of a feature: {error}")


def integers_type(lowest: int, highest: int) -> str | None:
    """Return the type that holds integers of a range; None where none of 64 bits does."""
    if lowest >= -INT64_LIMIT and highest < INT64_LIMIT:
        return "int64"
    return "uint64" if lowest >= 0 and highest < 2 * INT64_LIMIT else None
