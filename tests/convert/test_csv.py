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
        (["0.5", "1e+3", ".5", "2.0"], "float64", [0.5, 1000.0, 0.5, 2.0]),
        (["1.50e-05", "1.0E3"], "float64", [1.5e-5, 1000.0]),
        (["1", "2.5", "-inf"], "float64", [1.0, 2.5, float("-inf")]),
        (["true", "False", ""], "bool?", [True, False, None]),
        (["x", "", "NA"], "text?", ["x", None, "NA"]),
        (["NA", "NA"], "text", ["NA", "NA"]),
        # What would not come back as it was written is text.
        (["01234", "12345"], "text", ["01234", "12345"]),
        (["+1", "2"], "text", ["+1", "2"]),
        (["+4915112345678", "+14155550100"], "text", ["+4915112345678", "+14155550100"]),
        (["1.10", "1.1"], "text", ["1.10", "1.1"]),
        (["1E5", "2E3"], "text", ["1E5", "2E3"]),
        (["12e4", "7"], "text", ["12e4", "7"]),
        (["-0", "1"], "text", ["-0", "1"]),
        (["0.1234567890123456789", "1"], "text", ["0.1234567890123456789", "1"]),
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


def test_a_type_is_that_of_all_rows(convert, tmp_path):
    """The last row of the last file decides, too, whatever the first said."""
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
    error = convert.refused(path, FormatError)
    assert (error.url, error.row) == (str(path), 5)
    assert [value["a"] for value in convert(path, on_error="skip")] == [1, 7]
    lines = [each.where.rpartition(" ")[2] for each in convert.report.skipped]
    assert lines == ["5", "6", "7"]
    # A quote that is never closed would take the rest of the file with it.
    path = table(tmp_path / "b.csv", 'a,b\n1,"x\n2,y\n3,z\n')
    error = convert.refused(path, FormatError)
    assert (error.url, error.row) == (str(path), 2)


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
    assert convert(path, kind="csv") == [{"path": "x.jpg", "label": 3}]
    for text in ("path,label\nx.wav,3\n", "path,size\nx.jpg,3\n", "name,label\nx.jpg,3\n"):
        convert(table(tmp_path / "b.csv", text))
        assert convert.report.kind == "csv"
    for form in ({"options": {"fn": len}}, {"fn": len}):  # a source's options, in either form
        assert convert(path, **form, schema={"n": "int64"}, on_error="skip") == []
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


def test_a_quote_between_tabs_is_a_character(convert, tmp_path):
    rows = [('"I came here.', "0"), ("He was fine.", "1"), ('I saw it."', "1"), ('"The end."', "0")]
    text = "text\tlabel\n" + "".join(f"{one}\t{two}\n" for one, two in rows)
    found = convert(table(tmp_path / "train.tsv", text))
    assert [(value["text"], str(value["label"])) for value in found] == rows
    told = convert(table(tmp_path / "told.tsv", 'text\tlabel\n"a\tb"\t0\n'), kind="csv")
    assert told[0]["text"] == "a\tb"


@pytest.mark.parametrize(
    ("first", "second", "read"),
    [
        ("zip\n01234\n", "zip\n10115\n", ["01234", "10115"]),
        ("zip\nyes\n", "zip\ntrue\n", ["yes", "true"]),
        ("id,zip\n1,\n", "id,zip\n2,5\n", [None, "5"]),
        ("zip\n1.5\n", "zip\n2\n", [1.5, 2.0]),
        ("zip\n1\n", "zip\n2.0\n", [1, 2]),
    ],
)
def test_an_append_takes_the_types_of_the_dataset(tmp_path, first, second, read):
    for number, text in enumerate((first, second)):
        path = table(tmp_path / f"{number}.csv", text)
        shardio.convert_dataset(path, tmp_path / "ds", mode="append" if number else "create")
    assert [value["zip"] for value in shardio.open(tmp_path / "ds")] == read


NUMERALS = {"label": shardio.Feature("int64", classes=["1", "10", "2"])}


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["10", "2"], ["10", "2"]),  # all of them are names of classes
        (["0", "1"], ["1", "10"]),  # not all: they are numbers
    ],
)
@pytest.mark.parametrize("ending", ["csv", "list.csv", "lst"])
def test_labels_are_names_or_numbers_for_the_whole_column(convert, tmp_path, labels, classes, ending):
    (tmp_path / "x.jpg").write_bytes(picture(0))
    header = {"csv": "path,label\n", "list.csv": "path,label\n", "lst": ""}[ending]
    between = " " if ending == "lst" else ","
    text = header + "".join(f"x.jpg{between}{label}\n" for label in labels)
    kind = {"kind": "csv"} if ending == "csv" else {}
    found = convert(table(tmp_path / f"a.{ending}", text), schema=NUMERALS, **kind)
    assert [NUMERALS["label"].classes[value["label"]] for value in found] == classes


@pytest.mark.parametrize("ending", ["csv", "lst"])
def test_labels_that_are_real_numbers_stay_so(convert, tmp_path, ending):
    labels = [9.5, 10.25, 0.5, 3.0]
    (tmp_path / "x.jpg").write_bytes(picture(0))
    between, header = (",", "path,label\n") if ending == "csv" else (" ", "")
    path = table(tmp_path / f"a.{ending}", header + "".join(f"x.jpg{between}{x}\n" for x in labels))
    for options, short in (({}, "float64"), ({"schema": {"label": "float32"}}, "float32")):
        found = convert(path, **options)
        label = convert.report.schema["label"]
        assert (label.short, label.classes) == (short, None)
        assert [value["label"] for value in found] == labels
    assert [v["label"] for v in convert(path, schema={"label": "text"})] == [str(x) for x in labels]


def test_a_type_that_is_given_means_the_label_itself(convert, tmp_path):
    for name in ("1", "10", "2"):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "x.jpg").write_bytes(picture(0))
    found = convert(tmp_path / "images")
    assert convert.report.schema["label"].classes == ("1", "10", "2")
    assert [value["label"] for value in found] == [0, 1, 2]
    assert [v["label"] for v in convert(tmp_path / "images", schema={"label": "int64"})] == [1, 10, 2]
    assert [v["label"] for v in convert(tmp_path / "images", schema={"label": "text"})] == ["1", "10", "2"]


def test_a_table_of_too_many_columns_is_refused_by_its_header(tmp_path) -> None:
    names = ",".join(f"c{number}" for number in range(200_000))
    (tmp_path / "x.csv").write_text(names + "\n" + "1," * 199_999 + "1\n")
    with pytest.raises(FormatError) as caught:
        shardio.convert_dataset(tmp_path / "x.csv", tmp_path / "ds", workers=1)
    assert "200000" in str(caught.value)
    assert not (tmp_path / "ds").exists()


@pytest.mark.parametrize("numerals", [False, True])
@pytest.mark.slow
def test_many_classes_are_named_by_their_texts(convert, tmp_path, numerals) -> None:
    names = [f"{3 * n + 1}" if numerals else f"bird{n}" for n in range(5000)]
    source = table(tmp_path / "a.csv", "n,label\n" + "".join(f"{n},{name}\n" for n, name in enumerate(names)))
    values = convert(source, schema={"label": shardio.Feature("int64", classes=names[::-1])})
    assert [value["label"] for value in values] == list(range(4999, -1, -1))
