"""Tables of small features: what they hold, what uses them, and what happens when something is wrong."""

from __future__ import annotations

import concurrent.futures
import errno
import itertools
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardio
from shardio import Feature
from shardio.catalog import Catalog
from shardio.cli import main as cli
from shardio.codecs import arrow_array
from shardio.errors import FormatError, NotFoundError, StorageError
from shardio.metadata import Schema, naming
from shardio.sql import _engine
from shardio.storage import connect
from shardio.tables import parse_condition
from tests.lifecycle.overtaken import before_commit, collect_before_commit
from tests.suites.errors import refused
from tests.suites.processes import answer_of_child

SCHEMA = {
    "label": "int64",
    "caption": "text",
    "score": Feature("float32", optional=True),
    "city": Feature("text", optional=True),
    "tags": "int32[?]",
    "ok": "bool",
    "half": "bfloat16",
    "extra": "json",
    "blob": "bytes",
    "box": "float32[2]",
    "kind": Feature("int8", default=7),
}
SMALL = [
    "label",
    "caption",
    "score",
    "city",
    "tags_length",
    "ok",
    "half",
    "extra",
    "blob",
    "kind",
    "caption_length",
]


def value(n):
    made = {
        "label": n % 5,
        "caption": "ü" * (n % 7),
        "tags": list(range(n % 4)),
        "ok": n % 2 == 0,
        "half": n / 4,
        "extra": {"n": n},
        "blob": bytes(n % 3),
        "box": [n, n],
    }
    if n % 3:
        made["score"] = n / 2
        made["kind"] = n % 100
    if n % 4:
        made["city"] = f"city {n % 4}"
    return made


def row(n):
    """Return what a table holds of a value."""
    made = value(n)
    found = {name: made.get(name) for name in SMALL if name in made or name in ("score", "city")}
    found["extra"] = f'{{"n":{n}}}'
    found["kind"] = made.get("kind", 7)
    found |= {"tags_length": len(made["tags"]), "caption_length": len(made["caption"])}
    return {name: found[name] for name in SMALL}


def write(url, numbers, *, mode="create", schema=SCHEMA, **options):
    with shardio.DatasetWriter(
        url, schema=schema, mode=mode, shard_bytes=4096, block_bytes=1024, **options
    ) as out:
        for n in numbers:
            out.write(value(n) if schema is SCHEMA else {"label": n, "caption": str(n)})


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    url = str(tmp_path_factory.mktemp("written") / "birds")
    write(url, range(100))
    return url


@pytest.fixture(scope="module")
def built(written):
    """A dataset with a table, which nothing may change."""
    url = f"{written}-built"
    shutil.copytree(written, url)
    build(url)
    return url


@pytest.fixture
def url(written, tmp_path):
    return shutil.copytree(written, str(tmp_path / "birds"))


def build(url, features=SMALL, **options):
    return shardio.build_table(url, features, workers=1, **options)


def tables(url):
    return sorted(info.key for info in connect(url).list(naming.TABLES))


@pytest.fixture
def silent():
    """Fail on the warning that records are read."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("compression", [None, "zstd", "gzip"])
def test_a_table_holds_what_the_records_hold(tmp_path, compression):
    """A table MUST have as many rows as its shard, ascending from 0."""
    url = str(tmp_path / "birds")
    write(url, range(100), compression=compression)
    ds = shardio.open(url)
    assert ds.num_shards > 2
    with pytest.warns(UserWarning, match="records are read, because no shard has a table"):
        before = ds.to_arrow(SMALL, positions=True)
    report = build(url)
    assert (report.built, report.records, report.version) == (ds.num_shards, 100, 2)
    again = shardio.open(url)
    after = again.to_arrow(SMALL, positions=True)
    assert after == before
    assert after.drop_columns("_position").to_pylist() == [row(n) for n in range(100)]
    assert after["_position"].to_pylist() == list(range(100))
    assert again.stats["blocks_opened"] == 0


def test_other_programs_read_the_files_as_they_are(built):
    """DuckDB, Polars, pandas and pyarrow, without shardio."""
    ds = shardio.open(built)
    files = ds.table_files()
    assert len(files) == ds.num_shards
    expected = [row(n) for n in range(100)]
    places = [(ds.locate(n).shard, ds.locate(n).row) for n in range(100)]
    found = [
        duckdb.read_parquet(files).arrow().read_all().to_pylist(),
        pl.read_parquet(files).to_dicts(),
        pa.concat_tables(map(pq.read_table, files)).to_pylist(),
    ]
    for rows in found:
        assert [(each.pop("shard"), each.pop("row")) for each in rows] == places
        assert rows == expected
    frame = pd.concat(map(pd.read_parquet, files))
    assert list(zip(frame["shard"], frame["row"], strict=True)) == places
    assert frame["caption"].tolist() == [each["caption"] for each in expected]
    hits = duckdb.sql(
        f"SELECT shard, row FROM read_parquet({files}) WHERE label = 3 AND caption_length < 3"
    ).fetchall()
    positions = ds.positions_of([shard for shard, _ in hits], [row for _, row in hits])
    assert positions.tolist() == [n for n in range(100) if n % 5 == 3 and n % 7 < 3]


CONDITIONS = {
    "label = 3": lambda v: v["label"] == 3,
    "label = 3 AND caption_length < 3": lambda v: v["label"] == 3 and len(v["caption"]) < 3,
    "LABEL IN (1, 2) OR NOT ok": lambda v: v["label"] in (1, 2) or not v["ok"],
    "score > 10": lambda v: v.get("score", -1) > 10,
    "score IS NULL": lambda v: "score" not in v,
    "NOT (score > 10)": lambda v: "score" in v and v["score"] <= 10,
    "city LIKE '%1' AND kind <> 7": lambda v: v.get("city", "").endswith("1") and v.get("kind", 7) != 7,
    "length(caption) BETWEEN 2 AND 3": lambda v: 2 <= len(v["caption"]) <= 3,
    "tags_length = 2": lambda v: len(v["tags"]) == 2,
    "half * 4 % 2 = 0": lambda v: int(v["half"] * 4) % 2 == 0,
    "CAST(extra->>'n' AS INT) > 90": lambda v: v["extra"]["n"] > 90,
    "octet_length(blob) = 1": lambda v: len(v["blob"]) == 1,
    "label = 99": lambda _: False,
    "label >= 0": lambda _: True,
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_chooses_the_same_from_the_table_and_from_the_records(written, built, condition):
    expected = [n for n in range(100) if CONDITIONS[condition](value(n))]
    with pytest.warns(UserWarning, match="records are read"):
        found = shardio.open(written).filter(condition)
    assert np.asarray(found.selection).tolist() == expected
    ds = shardio.open(built)
    again = ds.filter(condition)
    assert np.asarray(again.selection).tolist() == expected
    assert ds.stats["blocks_opened"] == 0
    if expected:
        assert again[0]["extra"] == {"n": expected[0]}


def test_conditions_over_parts_of_a_dataset(built):
    ds = shardio.open(built)
    for part in (ds[10:90:3], ds.select([70, 3, 3, 20]), ds.filter("ok"), ds[5:5], ds.select(range(1, 99))):
        numbers = np.asarray(part.selection).tolist()
        found = part.filter("label = 3")
        assert [v["extra"]["n"] for v in found] == [n for n in numbers if n % 5 == 3]
        table = part.to_arrow(["label"], positions=True)
        assert table["label"].to_pylist() == [n % 5 for n in numbers]
        assert table["_position"].to_pylist() == list(range(len(numbers)))


def test_new_shards_are_read_until_they_have_a_table(url):
    first = build(url)
    write(url, range(100, 160), mode="append")
    expected = [n for n in range(160) if n % 5 == 3]
    ds = shardio.open(url)
    with pytest.warns(UserWarning, match=r"of \d+ shards do not have a table of label"):
        assert np.asarray(ds.filter("label = 3").selection).tolist() == expected
    with pytest.warns(UserWarning, match="do not have"):
        assert ds.to_arrow(SMALL).to_pylist() == [row(n) for n in range(160)]
    with pytest.warns(UserWarning, match="do not have"):
        assert np.asarray(ds[50:].filter("label = 3").selection).tolist() == [n for n in expected if n >= 50]
    before = tables(url)
    second = shardio.build_table(url, workers=1)
    assert second.features == first.features
    assert second.built == second.shards - first.shards
    assert set(before) < set(tables(url))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(shardio.open(url).filter("label = 3")) == len(expected)
    third = build(url)
    assert (third.built, third.version) == (0, second.version)


def test_a_table_of_other_features_takes_its_place(url):
    build(url, ["label"])
    report = build(url, ["caption_length", "label"])
    assert report.built == report.shards
    assert shardio.open(url).to_arrow(["caption_length"]).column_names == ["caption_length"]
    with pytest.warns(UserWarning, match="no shard has a table of ok"):
        shardio.open(url).to_arrow(["ok"])
    assert len(shardio.open(url, version=2).filter("label = 3")) == 20


def test_features_that_no_table_has_are_read_and_vectors_too(built):
    with pytest.warns(UserWarning, match="records are read") as caught:
        found = shardio.open(built)[:3].to_arrow(["box", "tags", "label"])
    assert "shardio table" not in str(caught[0].message)  # no table can hold them
    assert found.to_pylist() == [
        {"box": [n, n], "tags": list(range(n % 4)), "label": n % 5} for n in range(3)
    ]


def test_to_pandas(built, silent):
    frame = shardio.open(built)[:10].to_pandas(["label", "city"], positions=True)
    assert frame["label"].tolist() == [n % 5 for n in range(10)]
    assert frame["_position"].tolist() == list(range(10))
    assert frame["city"].isna().tolist() == [n % 4 == 0 for n in range(10)]


WRONG = {
    "": "is empty",
    "label": "not a condition but a value of the type BIGINT",
    "lable = 3": "at character 1: there is no feature 'lable'; did you mean 'label'",
    "label = 3 and lenght(caption) > 1": "at character 15: there is no function lenght; did you mean length",
    "box_length = 1": "has no length",
    "label = ": "syntax error",
    "label = 3; DROP TABLE x": "more than one expression",
    "label = 3; SELECT true": "more than one expression",
    "label = 3;": 'syntax error at or near ";"',
    "label = 3 FROM x": "more than one expression",
    "label = 3 x": "more than one expression",
    "ok, ok": "more than one expression",
    "1) FROM x WHERE (1": "at character 2: syntax error",
    "ok), (ok": "at character 3: syntax error",
    "label=1) OR (1=1": "at character 8: syntax error",
    "caption = 'é' AND )": "at character 19: syntax error",
    "label = 3) UNION SELECT (true": "at character 10: syntax error",
    "label IN (SELECT 3)": "a query within the condition is not allowed",
    "(SELECT count(*) FROM read_csv('/etc/passwd')) > label": "a query within the condition",
    "(SELECT count(*) FROM glob('/*')) > label": "a query within the condition",
    "label = (FROM x)": "a query within the condition",
    "random() < 0.5 AND ok": "the function random is not allowed",
    "label = getvariable('x')": "the function getvariable is not allowed",
    "current_setting('threads') = caption": "the function current_setting is not allowed",
    "nextval('x') = label": "the function nextval is not allowed",
    "json_serialize_plan('SELECT 1')::text = caption": "the function json_serialize_plan is not allowed",
    "json_serialize_sql('SELECT 1')::text = caption": "the function json_serialize_sql is not allowed",
    "json_deserialize_sql(caption) = caption": "the function json_deserialize_sql is not allowed",
    "current_localtimestamp()::text = caption": "the function current_localtimestamp is not allowed",
    "current_localtime()::text = caption": "the function current_localtime is not allowed",
    "now()::text = caption": "the function now is not allowed",
    "current_timestamp::text = caption": "current_timestamp",
    "age(caption::timestamp) > to_days(1)": "age of one time is reckoned from today",
    "(caption::timestamp).age() > to_days(1)": "age of one time is reckoned from today",
    "version() = caption": "the function version is not allowed",
    "timezone(make_timestamp(label))::text = caption": "the function timezone is not allowed",
    "get_type(caption) = caption": "the function get_type is not allowed",
    "__internal_barrier(caption) = caption": "the function __internal_barrier is not allowed",
    "sum(label) > 3": "the function sum is not allowed",
    "row_number() OVER () = label": "a window function is not allowed",
    "label = ?": "a parameter is not allowed",
    "x.label = 3": "a column has one name",
    "*": "a star is not allowed",
    "true": "names no feature",
    "caption + 1": "",
    "CAST(caption AS INT) = 3": "Conversion Error",
    "label = 3 \0": "NUL",
}


@pytest.mark.parametrize("condition", WRONG)
def test_conditions_that_are_none_are_refused_and_name_what_is_wrong(built, condition):
    with pytest.raises(ValueError, match=r".") as caught:
        shardio.open(built).filter(condition)
    assert WRONG[condition] in str(caught.value)
    assert not isinstance(caught.value, shardio.ShardioError)


def test_a_condition_reaches_no_file(tmp_path):
    """Even where the parser's rules were wrong, the engine has no access to anything outside."""
    (tmp_path / "secret.csv").write_text("a\n1\n")
    _engine.ask("SELECT 1")
    engine = _engine._waiting_engines[-1]
    for statement in (
        f"SELECT * FROM read_csv('{tmp_path}/secret.csv')",
        f"COPY (SELECT 1) TO '{tmp_path}/out.csv'",
        f"ATTACH '{tmp_path}/x.db'",
        "SET enable_external_access = true",
        "SET memory_limit = '1TB'",
        "INSTALL httpfs",
    ):
        with pytest.raises(_engine.QueryError):
            _engine.ask(statement)
        assert _engine._waiting_engines[-1] is engine, "what was refused costs no new process"
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.slow
def test_conditions_in_threads_see_the_rows_that_they_were_given():
    schema = Schema.parse({"label": "int64"})
    shared, _ = parse_condition("label % 7 = 3", schema)
    together = threading.Barrier(3)

    def work(number):
        own, _ = parse_condition(f"label > {number * 100}", schema)
        table = pa.table({"label": range(number * 100, number * 100 + 50)})
        together.wait()
        return [(own.evaluate(table).sum(), shared.evaluate(table).tolist()) for _ in range(5)]

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        found = list(pool.map(work, range(3)))
    for number, answers in enumerate(found):
        assert answers == [(49, [k % 7 == 3 for k in range(number * 100, number * 100 + 50)])] * 5


@pytest.mark.slow
def test_conditions_in_a_forked_child_have_an_engine_of_its_own():
    """Two processes that share the pipes of one engine would read each other's answers."""
    condition, _ = parse_condition("label > 1", Schema.parse({"label": "int64"}))
    table = pa.table({"label": [1, 2, 3]})
    assert condition.evaluate(table).tolist() == [False, True, True]
    (theirs,) = {each._process.pid for each in _engine._waiting_engines[-1:]}

    def child():
        assert condition.evaluate(table).tolist() == [False, True, True]
        assert _engine._waiting_engines[-1]._process.pid != theirs
        return b"well"

    assert answer_of_child(child) == b"well"
    assert condition.evaluate(table).tolist() == [False, True, True]


GREEDY = [
    "length(repeat(id, 2000000000)) > 0",
    "length(lpad(id, 2000000000, 'ab')) > 0",
    "len(range(1000000000)) > label",
    "length(" + "hex(" * 60 + "id" + ")" * 60 + ") > 0",
    "length(" + "replace(" * 40 + "id" + ", 'x', 'xxxx')" * 40 + ") > 0",
    "length([repeat(id, 100000000)]::VARCHAR) > 0",
    "repeat('x', 2000000000) = id",
]


def largest(who: int) -> int:
    """Return the most memory that this process or any of its children has had, in KB."""
    return resource.getrusage(who).ru_maxrss


@pytest.mark.sampled(3)
@pytest.mark.parametrize("text", GREEDY)
@pytest.mark.slow
def test_a_condition_has_no_more_memory_than_its_bound(text):
    """The engine's own limit does not count what its functions make."""
    schema = Schema.parse({"id": "text", "label": "int64"})
    table = pa.table({"label": range(200), "id": [f"x{n}" for n in range(200)]})
    table = table.select(["label"] if "label" in text else ["id"])
    mine, earlier = largest(resource.RUSAGE_SELF), largest(resource.RUSAGE_CHILDREN)
    with pytest.raises(ValueError, match="needs more than 1 GB of memory") as caught:
        parse_condition(text, schema)[0].evaluate(table)
    assert text[:50] in str(caught.value)
    assert (after := largest(resource.RUSAGE_SELF)) - mine < 64 << 10
    # Children of other tests count too, and of each program what its starter had.
    assert largest(resource.RUSAGE_CHILDREN) < max(2 << 20, earlier + 1, after + 1)
    assert parse_condition("id = 'x7'", schema)[0].evaluate(pa.table({"id": ["x7", "x8"]})).sum() == 1


# A function of DuckDB does not look whether it was interrupted before it has ended.
ENDLESS = "levenshtein(id, reverse(id)) > 3"
LONG = pa.table({"id": ["ab" * 10_000] * 200})


def engines(pid):
    """Return the processes that a process has as its own and that run."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in found if b"sql/_child" in Path(f"/proc/{each}/cmdline").read_bytes()]


@pytest.mark.slow
def test_a_condition_has_no_more_time_than_its_bound(monkeypatch):
    condition, _ = parse_condition(ENDLESS, Schema.parse({"id": "text"}))  # which has started an engine
    monkeypatch.setattr(_engine, "_SECONDS", 1.0)
    waiting = list(_engine._waiting_engines)
    with pytest.raises(ValueError, match=r"took more than \d+ seconds for 65,536 records or fewer; write"):
        condition.evaluate(LONG)
    assert waiting[-1] not in _engine._waiting_engines
    assert not waiting[-1].is_usable


@pytest.mark.slow
def test_a_condition_is_not_refused_for_what_others_take_of_the_processor(monkeypatch):
    """Here it stands still for longer than its bound."""
    condition, _ = parse_condition(ENDLESS, Schema.parse({"id": "text"}))
    monkeypatch.setattr(_engine, "_SECONDS", 2.0)
    monkeypatch.setattr(_engine, "_WAIT", 0.02)
    engine = _engine._waiting_engines[-1]._process.pid
    looks = itertools.count()

    def stand_still():
        look = next(looks)
        if look in (0, 120):
            os.kill(engine, signal.SIGCONT if look else signal.SIGSTOP)

    assert condition.evaluate(LONG[:1], stand_still).tolist() == [False]


@pytest.mark.slow
def test_what_progress_raises_ends_a_condition(url):
    """So that a page that was closed, or Ctrl-C, ends what would take long."""
    seen = []

    class Enough(Exception):  # noqa: N818
        pass

    def look(progress):
        seen.append(progress)
        if len(seen) == 3:
            raise Enough

    url = url + "-endless"
    with shardio.DatasetWriter(url, schema={"id": "text"}) as out:
        for value in LONG["id"].to_pylist():
            out.write({"id": value})
    shardio.build_table(url, ["id"], workers=1)
    with pytest.raises(Enough):
        shardio.open(url).filter(ENDLESS, progress=look)
    assert len(seen) == 3


ORPHAN = """
import threading
import pyarrow as pa
from shardio.metadata import Schema
from shardio.tables import parse_condition
from shardio.sql import _engine
condition, _ = parse_condition({text!r}, Schema.parse({{"id": "text"}}))
table = pa.table({{"id": ["ab" * 10_000] * 200}})
condition.evaluate(table, lambda: print("under way", flush=True))
"""


@pytest.mark.slow
def test_an_engine_ends_with_the_process_that_asked_it():
    command = [sys.executable, "-c", ORPHAN.format(text=ENDLESS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"under way\n"
        (engine,) = engines(process.pid)
        handle = os.pidfd_open(engine)
        process.kill()
    ready, _, _ = select.select([handle], [], [], 60)
    os.close(handle)
    assert ready


def test_float16_is_compared_as_a_number():
    schema = Schema.parse({"x": "float16", "v": "float16[2]"})
    vectors = arrow_array(np.array([[0.5, 0], [1.5, 0]], np.float16), schema["v"])
    table = pa.table({"x": pa.array(np.array([0.5, 1.5], np.float16)), "v": vectors})
    assert parse_condition("x > 1", schema)[0].evaluate(table.select(["x"])).tolist() == [False, True]
    assert parse_condition("v[1] > 1", schema)[0].evaluate(table.select(["v"])).tolist() == [False, True]


BIRDS = ["robin", "wren", "tit"]
NAMED = {
    "label = 'wren'": [1, 4],
    "'wren' = LABEL": [1, 4],
    "label <> 'wren' AND n < 3": [0, 2],
    "label IN ('robin', 'tit')": [0, 2, 3, 5],
    "label NOT IN ('robin', 1)": [2, 5],
    "label BETWEEN 'wren' AND 'tit'": [1, 2, 4, 5],
    "label = 2 OR other = 'wren'": [2, 5],
    "caption = 'é''wren' OR label = 'robin'": [0, 3],
    "label IN ['robin', 'tit']": [0, 2, 3, 5],
    "coalesce(label, 0) = 'wren'": [1, 4],
}


def test_names_of_classes_stand_for_their_numbers(tmp_path):
    schema = Schema(
        {
            "label": Feature("int64", classes=BIRDS),
            "n": Feature("int64"),
            "other": Feature("text"),
            "caption": Feature("text"),
        }
    )
    with shardio.DatasetWriter(str(tmp_path / "birds"), schema=schema) as out:
        for n in range(6):
            out.write({"label": BIRDS[n % 3], "n": n, "other": "x", "caption": "wren"})
    shardio.build_table(str(tmp_path / "birds"), ["label", "n", "other", "caption"], workers=1)
    ds = shardio.open(str(tmp_path / "birds"))
    assert {text: [value["n"] for value in ds.filter(text)] for text in NAMED} == NAMED


NUMERALS = ("1", "10", "2", "inf", "1.5")


@pytest.mark.parametrize(
    ("text", "classes"),
    [
        ("label = '10'", ["10"]),
        ("label = 2", ["2"]),
        ("label IN ('2', 'inf')", ["2", "inf"]),
        ("label IN ['1']", ["1"]),
        ("list_contains(['1.5'], label)", ["1.5"]),
        ("coalesce(label, 0) = '2'", ["2"]),
        ("label <> '10' AND label <= '2'", ["1", "2"]),
    ],
)
def test_text_beside_a_label_is_the_name_of_a_class_also_where_it_spells_a_number(text, classes):
    condition, _ = parse_condition(text, Schema({"label": Feature("int64", classes=NUMERALS)}))
    held = condition.evaluate(pa.table({"label": np.arange(len(NUMERALS))}))
    assert [name for name, holds in zip(NUMERALS, held, strict=True) if holds] == classes


@pytest.mark.parametrize(
    "text", ["label = '3'", "label = lower('2')", "label = caption", "label LIKE '1%'", "label || '' = '2'"]
)
def test_text_beside_a_label_that_is_no_class_is_refused(text):
    schema = Schema({"label": Feature("int64", classes=NUMERALS), "caption": Feature("text")})
    with refused(ValueError, "'label'"):
        parse_condition(text, schema)


def test_deleting_a_class_that_is_called_by_a_number_deletes_that_class(tmp_path):
    url = str(tmp_path / "numerals")
    with shardio.DatasetWriter(url, schema={"label": Feature("int64", classes=NUMERALS)}) as out:
        for name in NUMERALS:
            out.write({"label": name})
    assert cli(["delete", url, "--where", "label = '2'"]) == 0
    kept = [NUMERALS[value["label"]] for value in shardio.open(url)]
    assert kept == ["1", "10", "inf", "1.5"]


def test_a_class_that_is_none_is_refused():
    schema = Schema({"label": Feature("int64", classes=BIRDS)})
    with refused(ValueError, "'label'", "'robn'", "'robin'"):
        parse_condition("label = 'robn'", schema)


REFUSED = {
    "box": "holds single values",
    "tags": "holds single values; tags_length is one",
    "lable": "did you mean 'label'",
    "label_length": "has no length",
}


@pytest.mark.parametrize("feature", REFUSED)
def test_features_that_are_not_small_are_refused_by_name(url, feature):
    with pytest.raises(ValueError, match=feature) as caught:
        build(url, ["ok", feature])
    assert REFUSED[feature] in str(caught.value)
    assert tables(url) == []


def test_more_that_is_refused(url, tmp_path):
    for features, text in [([], "at least one"), (["ok", "ok"], "twice"), (None, "no table yet")]:
        with pytest.raises(ValueError, match=text):
            build(url, features)
    with pytest.raises(TypeError, match="a list of names"):
        build(url, "label")
    images = str(tmp_path / "images")
    with shardio.DatasetWriter(images, schema={"image": "jpeg", "row": "int64"}) as out:
        out.write({"image": b"\xff\xd8\xff", "row": 1})
    with refused(ValueError, "'image'", "image_length"):
        build(images, ["image"])
    with refused(ValueError, "'row'"):
        build(images, ["row"])
    assert build(images, ["image_length"]).records == 1
    assert shardio.open(images).to_arrow(["image_length"])["image_length"].to_pylist() == [3]
    bare = str(tmp_path / "bare")
    with shardio.DatasetWriter(bare) as out:
        out.write(b"x")
    for call in (
        lambda: build(bare, ["x"]),
        lambda: shardio.open(bare).filter("x = 1"),
        shardio.open(bare).to_arrow,
    ):
        with refused(ValueError, "schema"):
            call()
    with pytest.raises(NotFoundError):
        build(str(tmp_path / "nothing"))
    with refused(ValueError, "functions"):
        shardio.open(url).filter("ok", features=["ok"])


def test_an_empty_dataset_has_an_empty_table(tmp_path):
    url = str(tmp_path / "empty")
    write(url, [])
    report = build(url)
    assert (report.built, report.records) == (0, 0)
    ds = shardio.open(url)
    assert len(ds.filter("label = 3")) == 0
    assert ds.to_arrow(["label", "city"]).num_rows == 0
    assert ds.table_files() == []


def test_a_dry_run_changes_nothing(url):
    report = build(url, dry_run=True)
    assert (report.built, report.records, report.dry_run) == (report.shards, 100, True)
    assert tables(url) == []
    assert shardio.open(url).version == 1


@pytest.mark.parametrize(
    ("flipped", "kind"), [(None, "missing"), (0, "table"), (9999, "table"), (-1, "table")]
)
def test_a_table_that_is_gone_or_damaged_is_said_and_made_again(url, flipped, kind):
    """A reader MUST compare size and SHA-256 of a table with the list before it uses any of it."""
    build(url)
    path = Path(shardio.open(url).table_files()[0])
    content = bytearray(path.read_bytes())
    path.unlink()
    if flipped is not None:
        content[flipped % len(content)] ^= 1
        path.write_bytes(content)
    for read in (lambda ds: ds.filter("label = 3"), lambda ds: ds.to_arrow(["label"])):
        with pytest.raises((NotFoundError, FormatError)):
            read(shardio.open(url))
    assert [finding.kind for finding in shardio.verify(url).findings] == [kind]
    build(url, rebuild=True)
    assert shardio.verify(url).ok


def test_a_table_of_another_shard_is_not_used(url):
    """A table MUST be used only where its name begins with the address of shard and columns."""
    from dataclasses import replace

    from shardio.catalog import commit_change
    from shardio.metadata import ShardTable

    build(url)
    catalog = Catalog(connect(url))
    seen = catalog.load()

    def swap(base, lists):
        entries = list(catalog.table(base))
        names = ("table_key", "table_bytes", "table_sha256")
        one, two = ({name: getattr(entry, name) for name in names} for entry in entries[:2])
        entries[:2] = [replace(entries[0], **two), replace(entries[1], **one)]
        return replace(
            base.manifest, lists=lists.extend(catalog, (), ShardTable.from_entries(entries), merge=False)
        )

    commit_change(catalog, swap, operation="test", seen=seen)
    ds = shardio.open(url)
    with pytest.warns(UserWarning, match="2 of"):
        assert np.asarray(ds.filter("label = 3").selection).tolist() == [n for n in range(100) if n % 5 == 3]


def test_gc_keeps_tables_of_live_versions_and_removes_orphans(url):
    build(url, ["label"])
    old = set(tables(url))
    build(url, ["ok"])
    assert {info.key for info in shardio.gc(url).doomed} == set()
    connect(url).put_if_absent(f"{naming.TABLES}{'0' * 32}-{'1' * 16}.parquet", b"left by a killed build")
    report = shardio.gc(url, dry_run=False)
    assert [info.key for info in report.doomed] == [f"{naming.TABLES}{'0' * 32}-{'1' * 16}.parquet"]
    report = shardio.gc(url, expire=[1, 2], dry_run=False)
    assert old <= {info.key for info in report.doomed}
    assert len(shardio.open(url).filter("ok")) == 50
    assert shardio.verify(url).ok


def test_a_build_that_gc_overtook_makes_its_tables_again(url, monkeypatch):
    ran = collect_before_commit(url, monkeypatch)
    report = build(url)
    assert ran[0].doomed
    assert report.built == report.shards
    assert shardio.verify(url).ok
    assert len(shardio.open(url).filter("ok")) == 50


def test_appends_meanwhile_stay_and_have_no_table_yet(url, monkeypatch):
    before_commit(lambda: write(url, range(100, 110), mode="append"), monkeypatch)
    build(url)
    ds = shardio.open(url)
    assert len(ds) == 110
    with pytest.warns(UserWarning, match="do not have a table"):
        assert len(ds.filter("ok")) == 55


def test_a_schema_that_changed_makes_the_table_stale(tmp_path):
    url = str(tmp_path / "birds")
    write(url, range(5), schema={"label": "int64", "caption": "text"})
    build(url, ["label"])
    with shardio.DatasetWriter(
        url, schema={"label": Feature("int64", default=-1), "caption": "text"}, mode="append"
    ) as out:
        out.write({"caption": "x"})
    ds = shardio.open(url)
    with pytest.warns(UserWarning, match="no shard has"):
        assert ds.to_arrow(["label"])["label"].to_pylist() == [0, 1, 2, 3, 4, -1]
    assert shardio.build_table(url, workers=1).built == 2
    assert shardio.open(url).to_arrow(["label"])["label"].to_pylist() == [0, 1, 2, 3, 4, -1]


def test_a_schema_that_changes_meanwhile(tmp_path, monkeypatch):
    url = str(tmp_path / "birds")
    write(url, range(5), schema={"label": "int64", "caption": "text"})

    def change():
        changed = {"label": Feature("int64", default=-1), "caption": "text"}
        with shardio.DatasetWriter(url, schema=changed, mode="append") as out:
            out.write({"caption": "x"})

    before_commit(change, monkeypatch)
    assert build(url, ["label"]).built == 2
    assert shardio.open(url).to_arrow(["label"])["label"].to_pylist() == [0, 1, 2, 3, 4, -1]


def test_a_feature_that_was_renamed_is_found_by_its_new_name(tmp_path, silent):
    """Names are those of today; what is stored keeps its own."""
    url = str(tmp_path / "birds")
    write(url, range(5), schema={"label": "int64", "caption": "text"})
    renamed = {"name": Feature("text", stored_name="caption"), "label": "int64"}
    with shardio.DatasetWriter(url, schema=renamed, mode="append") as out:
        out.write({"name": "5", "label": 5})
    shardio.build_table(url, ["name", "name_length"], workers=1)
    shardio.build_keys(url, "name", workers=1)
    ds = shardio.open(url)
    assert ds.to_arrow(["name"])["name"].to_pylist() == [str(n) for n in range(6)]
    assert ds.find("4") == 4
    assert ds.key_features == {"name": "text"}
    assert len(ds.filter("name = '5' AND name_length = 1")) == 1


def test_a_table_follows_the_names_of_its_features(tmp_path, silent):
    """Files that say something else than readers see are not handed to other programs; the advice helps."""
    url = str(tmp_path / "birds")
    write(url, range(5), schema={"label": "int64", "caption": "text", "kind": Feature("int8", default=7)})
    shardio.build_table(url, ["label", "caption_length", "kind"], workers=1)

    def told() -> list[dict[str, object]]:
        assert shardio.build_table(url, workers=1).built
        shown = shardio.open(url).to_arrow(shardio.build_table(url, workers=1).features).to_pylist()
        (file,) = shardio.open(url).table_files()
        assert pq.read_table(file).drop(["shard", "row"]).to_pylist() == shown
        return shown

    for change, why in (
        ({"rename": {"label": "kind", "kind": "label"}}, "'label' is now 'kind'"),
        ({"rename": {"caption": "text"}}, "'caption_length' is now 'text_length'"),
        ({"features": {"label": Feature("int8", default=8)}}, "'label' is of another type or default"),
    ):
        shardio.set_schema(url, **change)
        with pytest.raises(shardio.errors.SchemaError, match=why + r".*make it again.*shardio table URL"):
            shardio.open(url).table_files()
        assert told()
    assert told_names(url) == ["kind", "text_length", "label"]
    # What is no longer read is no longer in the table, and no reason to refuse it.
    shardio.set_schema(url, {"label": None})
    assert len(shardio.open(url).table_files()) == 1
    shardio.build_table(url, workers=1)
    assert told_names(url) == ["kind", "text_length"]


def told_names(url):
    (file,) = shardio.open(url).table_files()
    return [name for name in pq.read_schema(file).names if name not in ("shard", "row")]


def test_positions_of_places(built):
    ds = shardio.open(built)
    places = [ds.locate(n) for n in (17, 3, 99)]
    shards, rows = [place.shard for place in places], [place.row for place in places]
    assert ds.positions_of(shards, rows).tolist() == [17, 3, 99]
    part = ds[3:50]
    with pytest.raises(NotFoundError, match=places[2].shard):
        part.positions_of(shards, rows)
    assert part.positions_of(shards, rows, default=-1).tolist() == [14, 0, -1]
    with pytest.raises(NotFoundError):
        ds.positions_of(["data/none"], [0])
    with pytest.raises(NotFoundError):
        ds.positions_of([places[0].shard], [10**6])
    with pytest.raises(ValueError, match="as many"):
        ds.positions_of(shards, rows[:2])


@pytest.mark.parametrize("rows", [[0, 1], [0, 1, 2, 3], [0, 2, 1], [1, 2, 3]])
def test_rows_of_a_table(rows):
    """A table MUST have as many rows as its shard, ascending from 0."""
    from shardio.metadata import Schema
    from shardio.reader import choose_columns
    from shardio.reader._columns import _parse_table

    columns = choose_columns(Schema.parse({"n": "int64"}), ["n"], what="a test")
    out = pa.BufferOutputStream()
    pq.write_table(pa.table({"row": pa.array(rows, pa.uint32()), "n": rows}), out)
    with pytest.raises(FormatError):
        _parse_table(out.getvalue().to_pybytes(), 3, columns, url="x", shard="y", most=1 << 20)


@pytest.mark.parametrize("make", ["table", "keys"])
def test_temporary_files_that_cannot_be_written(tmp_path, monkeypatch, make):
    """A bare OSError of Arrow or of the system, which says neither where nor what to do."""
    url = tmp_path / "d"
    with shardio.DatasetWriter(url, {"n": "int64"}) as out:
        out.write({"n": 1})
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    call = shardio.build_table if make == "table" else shardio.build_keys
    options = {"features": ["n"]} if make == "table" else {"feature": "n"}
    with pytest.raises(StorageError) as caught:
        call(url, **options)
    assert caught.value.url == str(tmp_path / "scratch")
    assert "TMPDIR" in str(caught.value.advice)
    assert shardio.open(url).version == 1
    monkeypatch.undo()  # room was made
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "other"))
    call(url, **options)
    assert shardio.open(url).version == 2
