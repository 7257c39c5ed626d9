"""A condition in SQL over columns: parsed and evaluated by DuckDB, and nothing but an expression.

What comes from a user's form or a configuration file must not reach files, settings or other statements.  So
DuckDB runs in memory, without access to anything outside and with its settings locked, and of what its parser
makes of the text only comparisons, arithmetic, casts and functions that depend on their arguments alone pass:
no subquery, aggregate, window, parameter or macro, and nothing that reads the clock or a setting: functions
are taken from a list.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardio.arguments import accepts, closest, need
from shardio.sql._engine import MOST_ROWS, QueryError, ask
from shardio.sql._functions import known_functions

_MOST_CHARACTERS = 1 << 16
_PLACE = "SELECT "
_BYTES = 16 << 20  # of the columns of one query
# What the parser makes of a condition.
_ALLOWED = {
    "BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION",
    "OPERATOR", "TYPE",
}  # fmt: skip
_NAMES = {
    "SUBQUERY": "a query within the condition", "WINDOW": "a window function", "PARAMETER": "a parameter",
    "STAR": "a star", "LAMBDA": "a lambda", "DEFAULT": "DEFAULT",
}  # fmt: skip
# Functions that give what they take.
_SAME_TYPE = frozenset(
    {"if", "ifnull", "nullif", "greatest", "least", "list_value", "list_pack", "array_value"}
)
_TEXT = re.compile(rb"'(?:[^']|'')*'")


class Column(NamedTuple):
    """A column that a condition names.

    Attributes:
        name: of the column.
        type: in Arrow.
        classes: names of the classes whose numbers it holds, in order; None for other columns.
        is_text: its values are text.
    """

    name: str
    type: Any
    classes: Sequence[str] | None = None
    is_text: bool = False


class Condition:
    """A condition in SQL over columns.

    Names of classes stand for their numbers, as in `label = 'robin'`. Thread-safe.

    Args:
        text: what comes after WHERE in a query.
        find_column: returns the column of a name; raises ValueError where there is none, and says why.

    Attributes:
        names: of the columns, in the order in which the condition first names them.

    Raises:
        ValueError: it is not a condition over these columns; says what and where.
        ImportError: DuckDB is not installed.

    Examples:
        >>> import pyarrow as pa
        >>> columns = {"label": Column("label", pa.int8(), ["heron", "robin"])}
        >>> condition = Condition("label = 'robin'", columns.__getitem__)
        >>> condition.evaluate(pa.table({"label": [0, 1, 1]}))
        array([False,  True,  True])
    """

    def __init__(self, text: str, find_column: Callable[[str], Column]) -> None:
        self._text = self._query_text = text
        self._lock = threading.Lock()
        need("a condition in SQL", "shardio[table]", "DuckDB", "pyarrow")
        if not text.strip():
            raise ValueError("a condition in SQL is empty")
        if len(text) > _MOST_CHARACTERS or "\0" in text:
            raise ValueError(f"a condition in SQL has at most {_MOST_CHARACTERS} characters, and no NUL")
        expression = self._expression()
        found: list[tuple[str, int | None]] = []
        self._walk(expression, found)
        # As the condition writes them: SQL does not see case.
        self._columns: dict[str, Column] = {}
        for name, place in found:
            try:
                column = find_column(name)
            except ValueError as error:
                raise self._refuse(str(error), place) from error
            if all(column.name != each.name for each in self._columns.values()):
                self._columns[name] = column
        if not self._columns:
            raise self._refuse("it names no feature", None)
        if len({name.casefold() for name in self._columns}) != len(self._columns):
            raise self._refuse("two of its columns differ in case alone, which SQL does not see", None)
        self.names = [column.name for column in self._columns.values()]
        self._number_classes(expression)
        self._check_type()

    def __reduce__(self) -> Any:
        raise TypeError("a condition does not travel; what it has chosen does")

    def evaluate(self, table: Any, waiting: Callable[[], None] = lambda: None) -> NDArray[np.bool_]:
        """Return for each row whether the condition holds; what is unknown (NULL) does not.

        Args:
            table: a pyarrow Table of the columns, in their order.
            waiting: called every 0.2 s; what it raises ends the query.

        Raises:
            ValueError: it cannot be evaluated, as where a text is not a number; it takes more than 60 s or
                1 GB for 65,536 records.
        """
        table = table.rename_columns(list(self._columns))
        table = table.cast(_widened(table.schema))
        rows = max(1, min(MOST_ROWS, len(table) * _BYTES // max(table.nbytes, 1)))
        # The text has passed the parser as one expression, with nothing before and behind it.
        query = f"SELECT coalesce(({self._query_text}\n), false) AS holds FROM columns"  # noqa: S608
        parts = []
        for low in range(0, len(table), rows):
            with self._lock:  # one process for a condition, however many threads read
                found = self._ask(query, table=table.slice(low, rows), rows=False, waiting=waiting)
            parts.append(np.frombuffer(found, np.bool_))
        return np.concatenate(parts) if parts else np.zeros(0, np.bool_)

    def _ask(self, sql: str, parameters: list[Any] | None = None, **options: Any) -> Any:
        try:
            return ask(sql, parameters, **options)
        except QueryError as error:
            raise self._refuse(str(error), None) from error

    def _expression(self) -> dict[str, Any]:
        """Return what the parser makes of the text.

        Raises:
            ValueError: it is not one expression.
        """
        # Without parentheses around it: it could close them.
        statement = f"{_PLACE}{self._text}\n"
        found = json.loads(self._ask("SELECT json_serialize_sql(?)", [statement])[0][0])
        if found["error"] and found.get("error_type") != "parser":
            raise self._refuse("it is more than one expression", None)
        if found["error"]:
            place = found.get("position")
            at = None if place is None else int(place) - len(_PLACE)
            raise self._refuse(str(found.get("error_message", "it does not parse")), at)
        statements = found["statements"]
        node = statements[0]["node"] if len(statements) == 1 else {}
        others = {key: value for key, value in node.items() if key not in ("select_list", "from_table")}
        plain = _plain_node()
        alone = (
            others == {key: value for key, value in plain.items() if key in others}
            and node.get("from_table", {}).get("type") == "EMPTY"
            and len(node.get("select_list", ())) == 1
            and not node["select_list"][0]["alias"]
        )
        if not alone:
            raise self._refuse("it is more than one expression", None)
        expression: dict[str, Any] = node["select_list"][0]
        return expression

    def _walk(self, node: Any, names: list[tuple[str, int | None]]) -> None:
        """Refuse what is not an expression over columns, and gather the columns."""
        if isinstance(node, list):
            for item in node:
                self._walk(item, names)
            return
        if not isinstance(node, dict):
            return
        kind = node.get("class")
        place = _place_of(node)
        if kind is not None and kind not in _ALLOWED:
            raise self._refuse(f"{_NAMES.get(kind, kind.lower())} is not allowed", place)
        if kind == "FUNCTION":
            self._check_function(node, place)
        if kind == "COLUMN_REF":
            path = node["column_names"]
            if len(path) != 1:
                quoted = '"' + ".".join(path) + '"'
                raise self._refuse(f"a column has one name; write {quoted} for a feature of that name", place)
            names.append((path[0], place))
            return
        for key, value in node.items():
            if key not in ("literal", "value", "cast_type"):
                self._walk(value, names)

    def _check_function(self, node: dict[str, Any], place: int | None) -> None:
        name = str(node["function_name"]).lower()
        allowed = known_functions().pure
        if name == "age" and len(node.get("arguments", node.get("children", ()))) == 1:
            raise self._refuse("age of one time is reckoned from today; give it two", place)
        if name in allowed:
            return
        if name in known_functions().others:
            what = "only functions that compute from their arguments alone are"
            raise self._refuse(f"the function {name} is not allowed; {what}", place)
        near = closest(name, sorted(allowed))
        raise self._refuse(
            f"there is no function {name}" + (f"; did you mean {near}?" if near else ""), place
        )

    def _number_classes(self, expression: dict[str, Any]) -> None:
        """Put the numbers of classes in the query where the text has their names beside a label.

        Text beside a label is always the name of a class, also where it spells a number.

        Raises:
            ValueError: there is no such class, or the text is not a constant.
        """
        columns = {name.casefold(): column for name, column in self._columns.items()}
        labels = {name: each.classes for name, each in columns.items() if each.classes is not None}
        texts = {name for name, each in columns.items() if each.is_text}
        text = self._text.encode()
        for place, name, label in sorted(_compared(expression, labels, texts), reverse=True):
            classes = labels[label.casefold()]
            if name is None:
                raise self._refuse(
                    f"compare {label!r} with the name of a class in quotes, or its number", place
                )
            literal = _TEXT.match(text, place)
            if name not in classes:
                near = closest(name, classes)
                meant = f"; did you mean {near!r}?" if near else ""
                if not meant and accepts(int, name):
                    meant = f"; write {name} without quotes for the number"
                raise self._refuse(f"{label!r} has no class {name!r}{meant}", place)
            if literal is None:
                raise self._refuse(f"write the class in single quotes: '{name}'", place)
            text = text[:place] + b"%d" % classes.index(name) + text[literal.end() :]
        self._query_text = text.decode()

    def _check_type(self) -> None:
        import pyarrow as pa

        fields = [pa.field(name, column.type) for name, column in self._columns.items()]
        empty = _widened(pa.schema(fields)).empty_table()
        query = f"DESCRIBE SELECT ({self._query_text}\n) AS holds FROM columns"  # noqa: S608 - parsed above
        kind = self._ask(query, table=empty)[0][1]
        if kind != "BOOLEAN":
            raise self._refuse(
                f"it is not a condition but a value of the type {kind}: compare it with something", None
            )

    def _refuse(self, what: str, place: int | None) -> ValueError:
        """Return the error that says what is wrong where; `place` counts bytes of the text."""
        text = self._text.encode()
        inside = place is not None and 0 <= place <= len(text)
        where = f" at character {len(text[:place].decode(errors='replace')) + 1}" if inside else ""
        return ValueError(f"condition {self._text[:200]!r}{where}: {what}")


@functools.cache
def _plain_node() -> dict[str, Any]:
    """Return what the parser makes of one expression alone."""
    text = ask("SELECT json_serialize_sql('SELECT TRUE')")[0][0]
    node: dict[str, Any] = json.loads(text)["statements"][0]["node"]
    return node


def _place_of(node: dict[str, Any]) -> int | None:
    place = node.get("query_location")
    # The parser counts from the beginning of the statement; a huge number stands for none.
    return place - len(_PLACE) if isinstance(place, int) and place < _MOST_CHARACTERS * 8 else None


def _operands(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what an operator compares or a function takes; of a CASE the values, one of which it gives."""
    if node.get("class") == "CASE":
        found = [*(check.get("then_expr") for check in node["case_checks"]), node.get("else_expr")]
    else:
        found = [node.get(side) for side in ("left", "right", "input", "lower", "upper")]
        found += node.get("children", ())
        found += [each.get("expression") for each in node.get("arguments", ()) if isinstance(each, dict)]
    return [each for each in found if isinstance(each, dict)]


def _compared(
    node: Any, labels: Mapping[str, Any], texts: Collection[str]
) -> Iterator[tuple[int, str | None, str]]:
    """Yield the text that stands beside labels: its place, the text, and the label.

    The text is None where it is not a constant, such as a column.
    """
    if isinstance(node, list):
        for item in node:
            yield from _compared(item, labels, texts)
        return
    if not isinstance(node, dict):
        return
    operands = _operands(node) if node.get("class") != "CAST" else []
    beside = [label for each in operands if (label := _label_of(each, labels)) is not None]
    for each in operands if beside else ():
        constants = [each] if each.get("class") not in ("FUNCTION", "COLLATE") else _constants(each)
        found = [(_place_of(item), name) for item in constants if (name := _text_of(item)) is not None]
        for place, name in found:
            if place is not None:
                yield place, name, beside[0]
        if not found and _is_text(each, texts):
            yield _place_of(each) or 0, None, beside[0]
    for value in node.values():
        yield from _compared(value, labels, texts)


def _constants(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the items of a list, or the constant below a collation."""
    if node.get("class") == "COLLATE":
        return [node["child"]]
    return _operands(node) if node.get("function_name") in ("list_value", "array_value", "list_pack") else []


def _label_of(node: dict[str, Any], labels: Mapping[str, Any]) -> str | None:
    """Return the label that an expression gives as it is, such as `coalesce(label, 0)`; None for none."""
    if node.get("class") == "COLUMN_REF":
        name = str(node["column_names"][0])
        return name if name.casefold() in labels else None
    chooses = node.get("class") == "CASE" or node.get("type") == "OPERATOR_COALESCE"
    if not chooses and str(node.get("function_name")).lower() not in _SAME_TYPE:
        return None
    found = (_label_of(each, labels) for each in _operands(node))
    return next((label for label in found if label is not None), None)


def _is_text(node: dict[str, Any], texts: Collection[str]) -> bool:
    """Tell whether an expression that is no constant gives text."""
    kind = node.get("class")
    if kind == "COLUMN_REF":
        return node["column_names"][0].casefold() in texts
    if kind == "FUNCTION" and str(node["function_name"]).lower() in known_functions().text:
        return True
    if kind not in ("FUNCTION", "CASE", "COLLATE") and node.get("type") != "OPERATOR_COALESCE":
        return False
    inner = [node["child"]] if kind == "COLLATE" else _operands(node)
    if kind == "FUNCTION" and str(node["function_name"]).lower() not in _SAME_TYPE:
        return False
    return any(_text_of(each) is not None or _is_text(each, texts) for each in inner)


def _text_of(node: dict[str, Any]) -> str | None:
    """Return the text that a constant is; None for what is none."""
    literal = node.get("literal")
    if isinstance(literal, dict):
        return str(literal["text"]) if literal.get("kind") == "STRING" else None
    value = node.get("value")  # before DuckDB 2.0
    if isinstance(value, dict) and value.get("type", {}).get("id") == "VARCHAR":
        return None if value.get("is_null") else str(value["value"])
    return None


def _widened(schema: Any) -> Any:
    """Return a schema whose columns DuckDB knows: it has no float16."""
    import pyarrow as pa

    def wide(kind: Any) -> Any:
        if pa.types.is_float16(kind):
            return pa.float32()
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(wide(kind.value_type), kind.list_size)
        return pa.list_(wide(kind.value_type)) if pa.types.is_list(kind) else kind

    return pa.schema([field.with_type(wide(field.type)) for field in schema])
