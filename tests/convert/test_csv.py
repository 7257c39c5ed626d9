"""CSV and TSV as tables: types from all fields, rows named by their lines, nothing read as something else."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings, strategies as st

import shardio
from shardio.cli import main
from shardio.convert import _csv
from shardio.errors import FormatError, SchemaError
from tests.convert.conftest import picture


def table(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def types(convert: Any) -> dict[str, str]:
    return {
        name: feature.short + ("?" if feature.optional else "")
        for name, feature in convert.report.schema.items()
    }


@pytest.mark.parametrize(
    ("fields", "type_", "values"),
    [
        (["1", "-2", "0"], "int64", [1, -2, 0]),
        (["1", "", " 3 "], "int64?", [1, None, 3]),
        (["1", "NA", "null"], "int64?", [1, None, None]),
        (["0.5", "1e3", ".5"], "float64", [0.5, 1000.0, 0.5]),
        (["1", "2.5", "-inf"], "float64", [1.0, 2.5, float("-inf")]),
        (["true", "False", ""], "bool?", [True, False, None]),
        (["x", "", "NA"], "text?", ["x", None, "NA"]),
        (["NA", "NA"], "text", ["NA", "NA"]),
        # What would not come back as it was written is text.
        (["01234", "12345"], "text", ["01234", "12345"]),
        (["+1", "2"], "float64", [1.0, 2.0]),
        (["18446744073709551615", "0"], "uint64", [2**64 - 1, 0]),
        (["18446744073709551615", "-1"], "text", ["18446744073709551615", "-1"]),
        (["9007199254740993", "0.5"], "text", ["9007199254740993", "0.5"]),
        (["123456789012345678901", "1"], "text", ["123456789012345678901", "1"]),
        (["1e999", "1"], "text", ["1e999", "1"]),
        (["1_000", "2"], "text", ["1_000", "2"]),
        (["٣", "2"], "text", ["٣", "2"]),
        (["2020-01-02", "2020-01-03"], "text", ["2020-01-02", "2020-01-03"]),
        (["true", "1"], "text", ["true", "1"]),
    ],
    ids=itertools.count(),
)
def test_the_type_of_a_column(convert, tmp_path, fields, type_, values):
    path = table(tmp_path / "a.csv", "n,x\n" + "".join(f"0,{text}\n" for text in fields))
    assert [value["x"] for value in convert(path)] == values
    assert types(convert)["x"] == type_
    assert convert.report.kind == "csv"


def test_a_type_is_that_of_all_rows(convert, tmp_path, monkeypatch):
    """The last row of the last file decides, too, whatever the first said; so it is with runs of a file."""
    monkeypatch.setattr(_csv, "_ROWS", 7)
    monkeypatch.setattr(_csv, "RUN_BYTES", 100)
    rows = [f"{n},{n},{n}" for n in range(300)]
    (tmp_path / "p").mkdir()
    table(tmp_path / "p" / "a.csv", "\n".join(["a,b,c", *rows]))
    table(tmp_path / "p" / "b.csv", "\n".join(["c,b,a", *rows, "300,x,0.5"]))
    values = convert(tmp_path / "p")
    assert types(convert) == {"a": "float64", "b": "text", "c": "int64"}
    assert [value["c"] for value in values] == [*range(300), *range(301)]
    assert values[-1] == {"a": 0.5, "b": "x", "c": 300}


def test_the_caller_knows_better(convert, tmp_path):
    path = table(tmp_path / "a.csv", 'id,zip,when,doc,label\n1.0,01234,5,"[1, {}]",dog\n,2,6,3,cat\n')
    schema = {
        "id": shardio.Feature("int64", optional=True),
        "zip": "int64",
        "when": "text",
        "doc": "json",
        "label": shardio.Feature("int64", classes=["cat", "dog"]),
    }
    values = convert(path, schema=schema)
    assert values[0] == {"id": 1, "zip": 1234, "when": "5", "doc": [1, {}], "label": 1}
    assert values[1] == {"id": None, "zip": 2, "when": "6", "doc": 3, "label": 0}
    convert.refused(path, SchemaError, r'"zip": "text"', schema={"zip": "bool"})
    convert.refused(path, SchemaError, "line 2", schema={"doc": "int64"})
    assert "zip" not in convert(path, schema={"zip": None})[0]


def test_rows_that_are_none_are_named_by_their_lines(convert, tmp_path):
    text = 'a,b\n1,"x\ny"\n\n2\n3,"x" y\n4,5,6\n7,z\n'
    path = table(tmp_path / "a.csv", text)
    convert.refused(path, FormatError, r"1 field, and the header 2 \(.*a\.csv line 5\)")
    assert [value["a"] for value in convert(path, on_error="skip")] == [1, 7]
    lines = [each.where.rpartition(" ")[2] for each in convert.report.skipped]
    assert lines == ["5", "6", "7"]
    # A quote that is never closed would take the rest of the file with it.
    path = table(tmp_path / "b.csv", 'a,b\n1,"x\n2,y\n3,z\n')
    convert.refused(path, FormatError, r"opened and never closed \(.*line 2\)")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "empty"),
        ("1,2\n3,4\n", "does not name the columns.*put a row of names"),
        ("a,a\n1,2\n", "names the column 'a' twice"),
        (b"a,b\n1,\xe9\n", "line 2 is not UTF-8.*iconv"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16, not UTF-8"),
        (b"a,b\r1,2\r", "new-line character"),
    ],
    ids=["empty", "no names", "twice", "latin", "wide", "carriage returns"],
)
def test_files_that_are_no_tables(convert, tmp_path, data, reason):
    path = table(tmp_path / "a.csv", data)
    for kind in (None, "csv"):
        convert.refused(path, FormatError, reason, kind=kind)


def test_headers(convert, tmp_path):
    assert convert(table(tmp_path / "a.csv", "\ufeff,b \r\n0,x\r\n")) == [{"column0": 0, "b": "x"}]
    assert any("column 0 has no name" in note for note in convert.report.notes)
    assert convert(table(tmp_path / "b.csv", "year;2019\nx;1,5\n")) == [{"year": "x", "2019": "1,5"}]
    assert any("separated by ';'" in note for note in convert.report.notes)
    assert convert(table(tmp_path / "c.csv", "name\nx\n")) == [{"name": "x"}]
    assert convert(table(tmp_path / "d.tsv", "a\tb\n1\t2,5\n")) == [{"a": 1, "b": "2,5"}]
    assert convert(table(tmp_path / "e.txt", "a\tb\n1\t2,5\n"), kind="tsv") == [{"a": 1, "b": "2,5"}]
    assert convert(table(tmp_path / "f.csv", "a,b\n")) == []
    assert types(convert) == {"a": "text", "b": "text"}


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gz", "zst"])
def test_compressed_tables(convert, tmp_path, pack):
    name = "a.csv.gz" if pack is gzip.compress else "a.csv.zst"
    text = "a,b\n" + "".join(f"{n},x\n" for n in range(5000))
    assert [value["a"] for value in convert(table(tmp_path / name, pack(text.encode())))] == list(range(5000))


def test_files_of_different_columns(convert, tmp_path):
    (tmp_path / "p").mkdir()
    table(tmp_path / "p" / "1.csv", "a,b\n1,2\n")
    table(tmp_path / "p" / "2.csv", "a,c\n3,x\n")
    table(tmp_path / "p" / "README.md", "# Birds\n")
    assert convert(tmp_path / "p") == [{"a": 1, "b": 2, "c": None}, {"a": 3, "b": None, "c": "x"}]
    assert sum("is missing in 1 of 2 files" in note for note in convert.report.notes) == 2
    assert convert.report.ignored == ["README.md"]


def test_a_list_of_images_stays_one(convert, tmp_path):
    """A path and a label, and the first path is that of an image; the caller may say otherwise."""
    (tmp_path / "x.jpg").write_bytes(picture(1))
    path = table(tmp_path / "a.csv", "path,label\nx.jpg,3\n")
    assert convert(path)[0]["image"] == picture(1)
    assert any('kind="csv" makes a table' in note for note in convert.report.notes)
    assert convert(path, kind="csv") == [{"path": "x.jpg", "label": 3}]
    for text in ("path,label\nx.wav,3\n", "path,size\nx.jpg,3\n", "name,label\nx.jpg,3\n"):
        convert(table(tmp_path / "b.csv", text))
        assert convert.report.kind == "csv"
    assert convert(path, fn=len, schema={"n": "int64"}, on_error="skip") == []
    assert convert.report.kind == "list"


def test_by_the_command(tmp_path, capsys):
    path = table(tmp_path / "a.csv", "id,zip\n1,01234\n2,NA\n")
    assert main(["convert", str(path), str(tmp_path / "d"), "--type", "id=float32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "csv"
    assert list(shardio.open(tmp_path / "d")) == [{"id": 1, "zip": "01234"}, {"id": 2, "zip": "NA"}]


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=12)
CELLS = st.one_of(
    TEXTS, st.integers().map(str), st.floats().map(repr), st.sampled_from(["", "01", "true", "NA"])
)


@settings(max_examples=max(16, settings().max_examples // 10), deadline=None)
@given(rows=st.lists(st.tuples(CELLS, CELLS), max_size=12), delimiter=st.sampled_from(",;\t"))
def test_what_python_wrote_comes_back(tmp_path_factory, rows, delimiter):
    """Text as it was written; a number has the value that Python gives its text; an empty field is None."""
    folder = tmp_path_factory.mktemp("csv")
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter).writerows([("first", "second"), *rows])
    path = table(folder / "a.csv", out.getvalue())
    schema = shardio.convert_dataset(path, folder / "d").schema
    found = list(shardio.open(folder / "d"))
    assert len(found) == len(rows)
    for row, value in zip(rows, found, strict=True):
        for name, text in zip(("first", "second"), row, strict=True):
            if schema[name].type == "text":
                assert value[name] == (text or None)
            elif value[name] is None:
                assert text.strip() in ("", "NA", "nan")
            elif schema[name].type == "bool":
                assert text.strip().lower() == str(bool(value[name])).lower()
            elif schema[name].type == "float64":
                assert float(text) == value[name]
            else:
                assert str(int(value[name])) == text.strip()
