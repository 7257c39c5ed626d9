"""A condition in SQL over columns: parsed and evaluated by DuckDB, and nothing but an expression.

What comes from a user's form or a configuration file must not reach files, settings or other statements.  So
DuckDB runs in memory, without access to anything outside and with its settings locked, and of what its parser
makes of the text only comparisons, arithmetic, casts and functions that depend on their arguments alone pass:
no subquery, aggregate, window, parameter or macro, and nothing that reads the clock or a setting: functions
are taken from a list.

It runs in a process of its own (`_sql_child`), which is ended when a query takes too long or is not wanted
any more, and whose memory the system bounds: neither is possible from within.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardio.arguments import accepts, closest, need
from shardio.metadata import Schema
from shardio.reader import _sql_child as child
from shardio.reader._columns import ChosenColumn, choose_columns

_MOST_CHARACTERS = 1 << 16
_PLACE = "SELECT "
_MEMORY = 1 << 30
_SECONDS = 60.0  # of a processor, for the records of one query
# So many times as long it may take where others have the processors; where the system does not count what a
# process takes of them (Windows), all of it counts.
_BUSY = 10 if hasattr(signal, "SIGXCPU") else 1
_ROWS = 1 << 16
_BYTES = 16 << 20
_WAIT = 0.2  # seconds between two looks whether anybody still wants the answer
_KEPT = 2  # processes that wait for the next condition: starting one takes about half a second
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
# Functions whose value depends on their arguments alone.  DuckDB's own word for that (`stability`) also holds
# for some that read the clock, plan a statement or tell its version.
_PURE = frozenset(
    """
    ! !~~ !~~* % & && * ** + - ->> / // < <-> << <= <=> <@ = > >= >> @ @> ^ ^@ | || ~ ~~ ~~* ~~~
    is_distinct_from is_not_distinct_from like_escape ilike_escape not_like_escape not_ilike_escape
    abs acos acosh add age asin asinh atan atan2 atanh bit_count cbrt ceil ceiling cos cosh cot degrees divide
    even exp factorial floor gamma gcd greatest greatest_common_divisor isfinite isinf isnan lcm least
    least_common_multiple lgamma ln log log10 log2 mod multiply nextafter pi pow power radians round
    round_even roundbankers sign signbit sin sinh sqrt subtract tan tanh trunc xor
    array_extract array_contains array_distinct array_has array_has_all array_has_any array_indexof
    array_length array_position array_reverse_sort array_slice array_sort array_unique array_value flatten
    len length list_concat list_contains list_distinct list_element list_extract list_has list_has_all
    list_has_any list_indexof list_position list_reverse_sort list_slice list_sort list_unique list_value
    list_cosine_distance list_cosine_similarity list_distance list_dot_product list_inner_product
    array_cosine_distance array_cosine_similarity array_distance array_dot_product array_inner_product
    array_cat list_cat list_pack list_where list_select array_where array_select list_intersect
    array_intersect list_zip array_zip range generate_series struct_extract struct_pack row
    ascii bar base64 bin bit_length char_length character_length chr concat concat_ws contains
    damerau_levenshtein decode editdist3 encode ends_with format from_base64 from_binary from_hex hamming hash
    hex instr jaccard jaro_similarity jaro_winkler_similarity lcase left left_grapheme length_grapheme
    levenshtein lower lpad ltrim md5 md5_number mismatches nfc_normalize octet_length ord overlay position
    prefix printf regexp_escape regexp_extract regexp_extract_all regexp_full_match regexp_matches
    regexp_replace regexp_split_to_array repeat replace reverse right right_grapheme rpad rtrim sha1 sha256
    split split_part starts_with str_split str_split_regex string_split string_split_regex string_to_array
    strip_accents strlen strpos substr substring substring_grapheme suffix to_base to_base64 to_binary to_hex
    translate trim ucase unbin unhex unicode upper url_decode url_encode
    json_array_length json_contains json_exists json_extract json_extract_path json_extract_path_text
    json_extract_string json_keys json_type json_valid json_value
    century date_diff date_part date_sub date_trunc datediff datepart datesub datetrunc day dayname dayofmonth
    dayofweek dayofyear decade epoch epoch_ms epoch_ns epoch_us era hour isodow isoyear julian last_day
    make_date make_time make_timestamp make_timestamp_ms make_timestamp_ns microsecond millennium millisecond
    minute month monthname nanosecond quarter second strftime strptime time_bucket to_centuries to_days
    to_decades to_hours to_microseconds to_millennia to_milliseconds to_minutes to_months to_quarters
    to_seconds to_timestamp to_weeks to_years try_strptime week weekday weekofyear year yearweek
    """.split()  # noqa: SIM905 - a list would fill four pages
)


class _QueryError(Exception):
    """Why a query has no answer."""


class _RefusedError(_QueryError):
    """What DuckDB says of a query; it waits for the next one."""


class _SqlEngine:
    """A process that runs DuckDB; for one query at a time, of the process that started it."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        # The child finds its packages where this process would.
        command = [sys.executable, "-P", child.__file__, os.pathsep.join(sys.path), str(_MEMORY)]
        self._process = subprocess.Popen(  # noqa: S603 - this Python, and a file of ours
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdin is not None  # noqa: S101 - pipes were asked for
        assert self._process.stdout is not None  # noqa: S101
        self._sink, self._source = self._process.stdin, self._process.stdout
        self._thread = ThreadPoolExecutor(1, "shardio-sql")

    def _answer(self) -> tuple[dict[str, Any], bytes] | None:
        """Return what the process says; None where it has ended."""
        head = self._source.read(child.HEAD.size)
        if len(head) < child.HEAD.size:
            return None
        told, given = child.HEAD.unpack(head)
        text, values = self._source.read(told), self._source.read(given)
        return (json.loads(text), values) if len(text) + len(values) == told + given else None

    @property
    def is_usable(self) -> bool:
        """Whether it is this process's own, and there."""
        return self._owner == os.getpid() and self._process.poll() is None

    def ask(self, request: dict[str, Any], data: Any, waiting: Callable[[], None]) -> tuple[Any, bytes]:
        """Return the answer to a request.

        Raises:
            _QueryError: the query failed, took too long, or ended the process.
        """
        text = json.dumps({**request, "seconds": _SECONDS}).encode()
        with contextlib.suppress(BrokenPipeError):  # why it ended is said below
            self._sink.write(child.HEAD.pack(len(text), len(data)) + text)
            self._sink.write(data)
            self._sink.flush()
        answering = self._thread.submit(self._answer)
        for _ in range(round(_SECONDS * _BUSY / _WAIT)):
            with contextlib.suppress(TimeoutError):
                found = answering.result(_WAIT)
                break
            waiting()
        else:
            raise _QueryError(_OVER_TIME)
        if found is None:
            raise self._death()
        answer, values = found
        if "error" in answer:
            raise _QueryError(_OVER_MEMORY) if answer["memory"] else _RefusedError(answer["error"])
        return answer, values

    def _death(self) -> _QueryError:
        code = self._process.wait()
        if code < 0 and signal.Signals(-code).name == "SIGXCPU":
            return _QueryError(_OVER_TIME)
        # What libraries do that ask for memory and do not look whether they have it.
        if code in (-signal.SIGABRT, -signal.SIGSEGV):
            return _QueryError(f"{_OVER_MEMORY}; or DuckDB failed ({signal.Signals(-code).name})")
        return _QueryError(f"the process that ran DuckDB ended, with code {code}")

    def end(self) -> None:
        """End the process, whatever it does."""
        if self._owner != os.getpid():
            return  # of before a fork: its pipes and its lock are the parent's
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._sink.close()
        self._thread.shutdown()
        self._source.close()


_OVER_MEMORY = (
    f"it needs more than {_MEMORY >> 30} GB of memory for {_ROWS:,} records or fewer; leave out functions "
    "that make long text or long lists, such as repeat"
)
_OVER_TIME = (
    f"it took more than {_SECONDS:.0f} seconds for {_ROWS:,} records or fewer; write a condition that costs "
    "less for each record"
)
_waiting_engines: list[_SqlEngine] = []


def _engine() -> _SqlEngine:
    while _waiting_engines:
        with contextlib.suppress(IndexError):  # another thread was quicker
            engine = _waiting_engines.pop()
            if engine.is_usable:
                return engine
            engine.end()
    return _SqlEngine()


@atexit.register
def _end_engines() -> None:
    while _waiting_engines:
        _waiting_engines.pop().end()


def _ask(
    sql: str,
    parameters: list[Any] | None = None,
    *,
    table: Any = None,
    rows: bool = True,
    waiting: Callable[[], None] = lambda: None,
) -> Any:
    """Return the rows of a query, or where `rows` is False the bools of its one column, as bytes.

    Raises:
        _QueryError: it failed; it took too long, or too much.
    """
    data: Any = b""
    if table is not None:
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        data = sink.getvalue()
    engine, waits = _engine(), False
    try:
        answer, values = engine.ask({"sql": sql, "parameters": parameters or [], "rows": rows}, data, waiting)
        waits = True
    except _RefusedError:
        waits = True
        raise
    finally:
        if waits and len(_waiting_engines) < _KEPT:
            _waiting_engines.append(engine)
        else:
            engine.end()
    return answer["rows"] if rows else values


class _Functions(NamedTuple):
    """DuckDB's functions by name: those that a condition may call, all others, and those that return text."""

    pure: frozenset[str]
    others: frozenset[str]
    text: frozenset[str]


@functools.cache
def _functions() -> _Functions:
    rows = _ask(
        "SELECT lower(function_name), bool_and(function_type = 'scalar' AND stability = 'CONSISTENT' AND "
        "NOT coalesce(has_side_effects, true)), coalesce(bool_or(return_type = 'VARCHAR'), false) "
        "FROM duckdb_functions() WHERE function_type IN ('scalar', 'aggregate', 'window', 'macro') GROUP BY 1"
    )
    pure = frozenset(name for name, consistent, _ in rows if consistent and name in _PURE)
    return _Functions(
        pure,
        frozenset(name for name, _, _ in rows) - pure,
        frozenset(name for name, _, text in rows if text),
    )


class Condition:
    """A condition in SQL, over the columns of a dataset.

    Names of classes stand for their numbers, as in `label = 'robin'`. Safe to share among threads.

    Args:
        text: what comes after WHERE in a query.
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
        names: dict[str, str] = {}
        for name, place in found:
            names.setdefault(self._resolve(name, place, schema), name)
        if not names:
            raise self._refuse("it names no feature", None)
        folded = [name.casefold() for name in names.values()]
        if len(set(folded)) != len(folded):
            raise self._refuse("two of its columns differ in case alone, which SQL does not see", None)
        # As the condition writes them: SQL does not see case.
        self._names_in_sql = list(names.values())
        self.columns = choose_columns(schema, list(names), what="a condition in SQL")
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
        table = table.rename_columns(self._names_in_sql)
        table = table.cast(_widened(table.schema))
        rows = max(1, min(_ROWS, len(table) * _BYTES // max(table.nbytes, 1)))
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
            return _ask(sql, parameters, **options)
        except _QueryError as error:
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
        allowed = _functions().pure
        if name == "age" and len(node.get("arguments", node.get("children", ()))) == 1:
            raise self._refuse("age of one time is reckoned from today; give it two", place)
        if name in allowed:
            return
        if name in _functions().others:
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

    def _number_classes(self, expression: dict[str, Any]) -> None:
        """Put the numbers of classes in the query where the text has their names beside a label.

        Text beside a label is always the name of a class, also where it spells a number.

        Raises:
            ValueError: there is no such class, or the text is not a constant.
        """
        columns = {
            name.casefold(): column
            for name, column in zip(self._names_in_sql, self.columns, strict=True)
            if not column.derived
        }
        labels = {name: each.feature for name, each in columns.items() if each.feature.classes is not None}
        texts = {name for name, each in columns.items() if each.feature.kind in ("text", "json")}
        text = self._text.encode()
        for place, name, label in sorted(_compared(expression, labels, texts), reverse=True):
            classes = labels[label.casefold()].classes or ()
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

        fields = [
            pa.field(name, column.type) for name, column in zip(self._names_in_sql, self.columns, strict=True)
        ]
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


def _known(schema: Schema) -> list[str]:
    from shardio.reader._columns import LENGTH

    return [*schema, *(f"{name}{LENGTH}" for name in schema)]


@functools.cache
def _plain_node() -> dict[str, Any]:
    """Return what the parser makes of one expression alone."""
    text = _ask("SELECT json_serialize_sql('SELECT TRUE')")[0][0]
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
    if kind == "FUNCTION" and str(node["function_name"]).lower() in _functions().text:
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
