"""A condition in SQL over columns: parsed and evaluated by DuckDB, and nothing but an expression.

What comes from a user's form or a configuration file must not reach files, settings or other statements.  So
DuckDB runs in memory, without access to anything outside and with its settings locked, and of what its parser
makes of the text only comparisons, arithmetic, casts and functions that depend on their arguments alone pass:
no subquery, aggregate, window, parameter or macro, and nothing that differs from call to call.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.arguments import closest
from shardio.reader._columns import choose_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardio.metadata import Schema
    from shardio.reader._columns import ChosenColumn

__all__ = ["Condition"]

_MOST_CHARACTERS = 1 << 16
_PLACE = "SELECT ("
# What the parser makes of a condition.
_ALLOWED = {
    "BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION",
    "OPERATOR", "TYPE",
}  # fmt: skip
_NAMES = {
    "SUBQUERY": "a query within the condition", "WINDOW": "a window function", "PARAMETER": "a parameter",
    "STAR": "a star", "LAMBDA": "a lambda", "DEFAULT": "DEFAULT",
}  # fmt: skip
_CONFIG = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "temp_directory": "",
    "memory_limit": "2GB",
    "threads": "1",
}


def _need_duckdb() -> Any:
    try:
        import duckdb
        import pyarrow  # noqa: F401, ICN001 - columns travel as Arrow's
    except ImportError as error:
        message = f'a condition in SQL needs DuckDB and pyarrow: pip install "shardio[table]" ({error.name})'
        raise ImportError(message, name=error.name) from error
    return duckdb


def _connect() -> Any:
    """Return a connection of its own, whose tables no other sees, to the one database of this process."""
    return _database(os.getpid()).cursor()


_databases: dict[int, Any] = {}


def _database(process: int) -> Any:
    """Return a database for this process: making one takes a hundred times as long as connecting to it.

    A forked child makes another: threads that it does not have may have held locks of its parent's.
    """
    if process not in _databases:
        connection = _need_duckdb().connect(":memory:", config=_CONFIG)
        connection.execute("SET lock_configuration = true")
        _databases.setdefault(process, connection)
    return _databases[process]


@atexit.register
def _forget_database() -> None:
    """Let this process's own database go.

    Beside torch, one that is still there when modules are gone prints thirty lines about leaks.
    """
    _databases.pop(os.getpid(), None)


@functools.cache
def _functions() -> tuple[frozenset[str], frozenset[str]]:
    """Return the functions that a condition may call, and all others, by name."""
    with _connect() as connection:
        rows = connection.execute(
            "SELECT lower(function_name), bool_and(function_type = 'scalar' AND stability = 'CONSISTENT' AND "
            "NOT coalesce(has_side_effects, true)) FROM duckdb_functions() "
            "WHERE function_type IN ('scalar', 'aggregate', 'window', 'macro') GROUP BY 1"
        ).fetchall()
    return frozenset(name for name, pure in rows if pure), frozenset(name for name, pure in rows if not pure)


class Condition:
    """A condition in SQL, over the columns of a dataset.

    Safe to share among threads: each has a connection of its own, and so has a forked child.

    Args:
        text: what is behind WHERE.
        schema: of the dataset.

    Attributes:
        columns: that it names, in the order in which they come.

    Raises:
        ValueError: it is not a condition over columns of this dataset; says what and where.
        ImportError: DuckDB is not installed.

    Examples:
        >>> from shardio.metadata import Schema
        >>> condition = Condition(
        ...     "label = 3 AND length(caption) < 50", Schema.parse({"label": "int8", "caption": "text"})
        ... )
        >>> [column.name for column in condition.columns]
        ['label', 'caption']
    """

    columns: list[ChosenColumn]

    def __init__(self, text: str, schema: Schema | None) -> None:
        self._text = text
        self._local = threading.local()
        if not text.strip():
            raise ValueError("a condition in SQL is empty")
        if len(text) > _MOST_CHARACTERS or "\0" in text:
            message = f"a condition in SQL has at most {_MOST_CHARACTERS} characters, and no NUL"
            raise ValueError(message)
        names: dict[str, str] = {}
        for name, place in self._names():
            names.setdefault(self._resolve(name, place, schema), name)
        if not names:
            raise self._refuse("it names no feature", None)
        folded = [name.casefold() for name in names.values()]
        if len(set(folded)) != len(folded):
            raise self._refuse("two of its columns differ in case alone, which SQL does not see", None)
        # As the condition writes them: SQL does not see case.
        self._names_in_sql = list(names.values())
        self.columns = choose_columns(schema, list(names), what="a condition in SQL")
        self._check_type()

    def __reduce__(self) -> Any:
        raise TypeError("a condition does not travel; what it has chosen does")

    def evaluate(self, table: Any) -> NDArray[np.bool_]:
        """Return for each row whether the condition holds; what is unknown (NULL) does not.

        Args:
            table: a pyarrow Table of the columns, in their order.

        Raises:
            ValueError: it cannot be evaluated, as where a text is not a number.
        """
        connection = self._connection()
        connection.register("columns", table.rename_columns(self._names_in_sql))
        try:
            found = connection.execute(self._query()).fetchnumpy()["holds"]
        except _need_duckdb().Error as error:
            raise self._refuse(_first_line(error), None) from error
        finally:
            connection.unregister("columns")
        return np.asarray(found, np.bool_)

    def _query(self) -> str:
        # The text has passed the parser as one expression, with nothing before and behind it.
        return f"SELECT coalesce(({self._text}\n), false) AS holds FROM columns"  # noqa: S608

    def _connection(self) -> Any:
        # Of before a fork it is not even closed: that would ask for locks, too.
        connections, process = vars(self._local), str(os.getpid())
        if process not in connections:
            connections[process] = _connect()
        return connections[process]

    def _names(self) -> list[tuple[str, int | None]]:
        """Return the columns that the text names, each with its place in the text."""
        statement = f"{_PLACE}{self._text}\n)"
        found = json.loads(
            self._connection().execute("SELECT json_serialize_sql(?)", [statement]).fetchall()[0][0]
        )
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
        )
        if not alone:
            raise self._refuse("it is more than one expression", None)
        names: list[tuple[str, int | None]] = []
        self._walk(node["select_list"][0], names)
        return names

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
        allowed, others = _functions()
        if name in allowed:
            return
        if name in others:
            what = "only functions that compute from their arguments alone are"
            raise self._refuse(f"the function {name} is not allowed; {what}", place)
        near = closest(name, sorted(allowed))
        raise self._refuse(
            f"there is no function {name}" + (f"; did you mean {near}?" if near else ""), place
        )

    def _resolve(self, name: str, place: int | None, schema: Schema | None) -> str:
        """Return the name of a column as the schema writes it."""
        if schema is not None and name not in schema:
            folded = [each for each in _known(schema) if each.casefold() == name.casefold()]
            if len(folded) == 1:
                return folded[0]
        try:
            choose_columns(schema, [name], what="a condition in SQL")
        except ValueError as error:
            raise self._refuse(str(error), place) from error
        return name

    def _check_type(self) -> None:
        import pyarrow as pa

        fields = [
            pa.field(name, column.type) for name, column in zip(self._names_in_sql, self.columns, strict=True)
        ]
        empty = pa.schema(fields).empty_table()
        connection = self._connection()
        connection.register("columns", empty)
        try:
            query = f"DESCRIBE SELECT ({self._text}\n) AS holds FROM columns"  # noqa: S608 - parsed above
            kind = connection.execute(query).fetchall()[0][1]
        except _need_duckdb().Error as error:
            raise self._refuse(_first_line(error), None) from error
        finally:
            connection.unregister("columns")
        if kind != "BOOLEAN":
            raise self._refuse(
                f"it is not a condition but a value of the type {kind}: compare it with something", None
            )

    def _refuse(self, what: str, place: int | None) -> ValueError:
        where = "" if place is None or not 0 <= place <= len(self._text) else f" at character {place + 1}"
        return ValueError(f"condition {self._text[:200]!r}{where}: {what}")


def _known(schema: Schema) -> list[str]:
    from shardio.reader._columns import LENGTH

    return [*schema, *(f"{name}{LENGTH}" for name in schema)]


@functools.cache
def _plain_node() -> dict[str, Any]:
    """Return what the parser makes of one expression alone."""
    with _connect() as connection:
        text = connection.execute("SELECT json_serialize_sql('SELECT (TRUE)')").fetchall()[0][0]
    node: dict[str, Any] = json.loads(text)["statements"][0]["node"]
    return node


def _place_of(node: dict[str, Any]) -> int | None:
    place = node.get("query_location")
    # The parser counts from the beginning of the statement; a huge number stands for none.
    return place - len(_PLACE) if isinstance(place, int) and place < _MOST_CHARACTERS * 4 else None


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
