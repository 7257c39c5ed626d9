"""Nothing is dropped or changed in silence; every piece of advice in a message works when followed."""

from __future__ import annotations

import datetime
import io
import json
import shlex
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import shardio
from shardio.cli import main
from shardio.errors import FormatError, SchemaError, ShardioError
from tests.convert.conftest import FOREIGN, library_samples, picture
from tests.suites.errors import refused


def tar(path: Path, members: list[tuple[Any, bytes]]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return path


PARTS = st.sampled_from(["a", "b", "__a", "__a__", "a__", ".a", "__", ".", "..a", "ü", "A", "./a", "x" * 120])
NAMES = st.builds(
    lambda folder, stem, ending: folder + stem + ending,
    st.sampled_from(["", "", "d/", "__m__/", "d/__m__/", ".d/", "./"]),
    PARTS,
    st.sampled_from([".txt", ".TXT", ".bin", ".seg.bin", "", ".", ".a b"]),
)


@settings(
    max_examples=max(16, settings().max_examples // 5), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(members=st.lists(st.tuples(NAMES, st.binary(max_size=3)), min_size=1, max_size=6))
def test_samples_are_those_of_the_library(tmp_path_factory, members) -> None:
    """Over odd names: the library's samples, or a refusal; members without a sample are counted.

    To the library `d/._0.jpg`, which macOS stores beside `d/0.jpg`, is a sample with the key `d/`.
    """
    folder = tmp_path_factory.mktemp("tar")
    path = tar(folder / "x.tar", members)
    shown = [member for member in members if not member[0].rpartition("/")[2].startswith(".")]
    try:
        wanted = library_samples(tar(folder / "shown.tar", shown))
    except ValueError:
        wanted = None
    names = {name for sample in wanted or [] for name in sample if name != "__key__"}
    schema = {name: shardio.Feature("bytes", optional=True) for name in sorted(names)}
    if wanted is None:
        # A member before the one that the library refuses may hold bytes that cannot be text.
        with pytest.raises((FormatError, SchemaError)):
            shardio.convert_dataset(path, folder / "out")
        return
    if "" in names or not wanted:
        return
    whole = shardio.Schema.parse({"__key__": "text", **schema})
    report = shardio.convert_dataset(path, folder / "out", schema=whole, on_error="skip")
    found = [
        {name: item for name, item in value.items() if item is not None}
        for value in shardio.open(folder / "out")
    ]
    assert found == wanted
    outside = len(members) - sum(len(sample) - 1 for sample in wanted)
    listed = len(report.skipped) + sum(
        int(note.rpartition(": ")[2])
        for note in report.notes
        if "members without a key" in note or "folders, links and devices" in note
    )
    assert listed == outside


def test_resource_forks_of_macos_are_no_samples(convert, tmp_path) -> None:
    members = [("d/._0.jpg", b"fork"), ("d/0.txt", b"a"), ("d/._0.cls", b"fork"), ("d/0.cls", b"1")]
    path = tar(tmp_path / "x.tar", [*members, ("__MACOSX/d/._0.jpg", b"fork")])
    assert convert(path) == [{"__key__": "d/0", "txt": "a", "cls": 1}]
    assert "members without a key: 3" in " | ".join(convert.report.notes)
    shardio.adopt(path, into=tmp_path / "adopted")
    ds = shardio.open(tmp_path / "adopted", allow_roots={str(tmp_path): {}})
    assert [value["__key__"] for value in ds] == ["d/0"]


def test_a_tar_file_that_claims_a_terabyte(convert, tmp_path) -> None:
    """It is read to its end and no further: headers are counted, not believed."""
    info = tarfile.TarInfo("a.bin")
    info.size = 1 << 40
    for size in (1 << 40, 100 << 20, 2000):
        info.size = size
        path = tmp_path / f"{size}.tar"
        path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
        convert.refused(path, FormatError, "ends within a member|damaged")  # not after hours of empty reads


def test_one_error_page_among_photographs(convert, tmp_path) -> None:
    members = [(f"{n}.jpg", picture(n)) for n in range(5)]
    page = ("7.jpg", b"<html>404</html>")
    path = tar(tmp_path / "x.tar", [*members[:3], page, *members[3:]])
    convert.refused(path, SchemaError, r"'jpg' is not jpeg .*unreadable image")
    values = convert(path, on_error="skip")
    assert [value["jpg"] for value in values] == [data for _, data in members]
    assert convert.report.schema["jpg"].short == "jpeg"
    assert [each.where.split()[1] for each in convert.report.skipped] == ["7"]
    assert convert(path, schema={"jpg": "bytes"})[3]["jpg"] == page[1]


def test_broken_photographs(convert, tmp_path) -> None:
    whole = picture(1, size=(64, 64))
    path = tar(tmp_path / "x.tar", [("a.jpg", whole), ("b.jpg", whole[:700]), ("c.jpg", b"")])
    convert.refused(path, SchemaError, "unreadable image")
    assert [value["__key__"] for value in convert(path, on_error="skip")] == ["a"]
    assert len(convert.report.skipped) == 2
    unchecked = {"options": {"check_images": False}, "schema": {"jpg": "jpeg"}}
    convert.refused(path, SchemaError, "'jpg'.*found 0 bytes", **unchecked)
    assert len(convert(path, on_error="skip", **unchecked)) == 2


def test_photographs_of_which_none_is_one(convert, tmp_path) -> None:
    convert(tar(tmp_path / "x.tar", [("a.jpg", b"1"), ("b.jpg", b"2")]))
    assert convert.report.schema["jpg"].short == "bytes"
    assert "is an image: they are kept as bytes" in convert.report.notes[0]


@pytest.mark.parametrize(
    ("ending", "good", "bad"),
    [
        ("json", b'{"a": 1}', b'{"a": 1, "a": 2}'),
        ("json", b'{"a": 1}', b'{"a": NaN}'),
        ("json", b"[]", b"nope"),
        ("txt", b"one", b"\xff"),
        ("npy", None, b"\x93NUMPY nothing"),
    ],
)
def test_one_bad_member_among_good_ones(convert, tmp_path, ending, good, bad) -> None:
    """It is told, by name; it does not turn the feature of all into bytes, nor lose a value."""
    if good is None:
        buffer = io.BytesIO()
        np.save(buffer, np.arange(3))
        good = buffer.getvalue()
    path = tar(tmp_path / "x.tar", [(f"a.{ending}", good), (f"b.{ending}", bad)])
    convert.refused(path, SchemaError, f"member '{ending}' is no")
    assert len(convert(path, on_error="skip")) == 1
    assert len(convert.report.skipped) == 1
    assert [value[ending] for value in convert(path, schema={ending: "bytes"})] == [good, bad]


@pytest.mark.parametrize("compression", ["", ".gz"])
def test_lines_that_other_readers_take(convert, tmp_path, compression) -> None:
    import gzip

    path = tmp_path / f"a.jsonl{compression}"
    write = gzip.compress if compression else bytes
    path.write_bytes(write(b'\xef\xbb\xbf{"a": 1}\n\n \t\r\n{"a": 2}\r\n'))
    assert [int(value["a"]) for value in convert(path)] == [1, 2]
    path.write_bytes(write('{"a": 1}\n'.encode("utf-16")))
    convert.refused(path, FormatError, "UTF-16.*write the file as UTF-8")
    path.write_bytes(write(b'{"a": 1}\n{"a": NaN}\n'))
    convert.refused(path, FormatError, "NaN is not JSON")
    path.write_bytes(write(b'{"a": 1}\n\xef\xbb\xbf{"a": 2}\n'))
    convert.refused(path, FormatError, "byte order mark")
    path.write_bytes(b"")
    convert.refused(path, shardio.errors.NotFoundError, "nothing")


def test_a_pattern_of_any_depth(convert, tmp_path) -> None:
    for number, folder in enumerate(("", "x/", "x/y/", "z/")):
        (tmp_path / "s" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "s" / folder / f"{number}.jsonl").write_text(f'{{"n": {number}}}\n')
    assert sorted(int(value["n"]) for value in convert(str(tmp_path / "s" / "**/*.jsonl"))) == [0, 1, 2, 3]
    assert [int(value["n"]) for value in convert(str(tmp_path / "s" / "x/**/*.jsonl"))] == [1, 2]
    assert [int(value["n"]) for value in convert(str(tmp_path / "s" / "*/*.jsonl"))] == [1, 3]


def test_lines_of_a_list_end_at_line_feeds(convert, tmp_path) -> None:
    """U+2028 and form feeds are text of a line, as they are to every other reader."""
    (tmp_path / "a.txt").write_bytes("a\u2028b\x0cc\r\nd\n".encode())
    values = convert(tmp_path / "a.txt", kind="list", options={"fn": line_alone})
    assert [value["line"] for value in values] == ["a\u2028b\x0cc", "d"]


def line_alone(line: str) -> dict[str, str]:
    return {"line": line}


def photos(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "1.jpg").write_bytes(picture(len(name)))
    return root


def test_appending_other_classes(convert, tmp_path) -> None:
    """A class keeps its number whatever the source would give it; new ones get those that follow."""
    convert(photos(tmp_path / "a", "cat", "dog"))
    for name, classes in (("b", ["dog"]), ("c", ["zebra", "dog"]), ("d", ["ant", "cat"])):
        shardio.convert_dataset(photos(tmp_path / name, *classes), convert.url, mode="append")
    (tmp_path / "list.csv").write_text("path,label\nb/dog/1.jpg,dog\nc/dog/1.jpg,dog\n")
    shardio.convert_dataset(tmp_path / "list.csv", convert.url, mode="append")
    reader = shardio.open(convert.url)
    names = reader.schema["label"].classes
    assert names == ("cat", "dog", "zebra", "ant")
    named = [names[value["label"]] for value in reader]
    assert named == ["cat", "dog", "dog", "dog", "zebra", "ant", "cat", "dog", "dog"]
    assert named[:7] == [value["path"].partition("/")[0] for value in reader[:7]]


def test_appending_with_classes_in_another_order(convert, tmp_path) -> None:
    """What the caller says of the order is followed, or refused."""
    convert(photos(tmp_path / "a", "cat", "dog"))
    other = photos(tmp_path / "b", "dog")
    with refused(SchemaError, "'cat'", "'dog'"):
        shardio.convert_dataset(other, convert.url, mode="append", options={"classes": ["dog", "cat"]})
    given = {"label": shardio.Feature("int64", classes=["dog"])}
    with refused(SchemaError, "'cat'", "'dog'"):
        shardio.convert_dataset(other, convert.url, mode="append", schema=given)
    assert len(shardio.open(convert.url)) == 2
    shardio.convert_dataset(other, convert.url, mode="append", options={"classes": ["cat", "dog", "eel"]})
    assert shardio.open(convert.url).schema["label"].classes == ("cat", "dog", "eel")
    assert [int(value["label"]) for value in shardio.open(convert.url)] == [0, 1, 1]


def test_appending_with_a_program(tmp_path, capsys) -> None:
    url = str(tmp_path / "dataset")
    assert main(["convert", str(photos(tmp_path / "a", "cat", "the dog")), url]) == 0
    assert main(["convert", str(photos(tmp_path / "b", "the dog", "bee")), url, "--mode", "append"]) == 0
    assert "label: int64 (3 classes: cat, the dog, bee)" in capsys.readouterr().out
    assert [int(value["label"]) for value in shardio.open(url)] == [0, 1, 2, 1]
    again = ["convert", str(photos(tmp_path / "c", "bee")), url, "--mode", "append", "--class", "bee"]
    assert main(again) == 1
    assert "class 0 changes from 'cat' to 'bee'" in capsys.readouterr().err
    assert main([*again[:-2], "--class", "cat", "--class", "the dog", "--class", "bee"]) == 0


def test_appending_names_to_numbers(tmp_path) -> None:
    """Which number of the dataset is which class is not known until the caller says so."""
    url = tmp_path / "dataset"
    with shardio.DatasetWriter(url, {"image": "jpeg", "label": "int64", "path": "text"}) as out:
        out.write({"image": picture(1), "label": 1, "path": "x"})
    other = photos(tmp_path / "b", "dog")
    with pytest.raises(SchemaError):
        shardio.convert_dataset(other, url, mode="append")
    shardio.convert_dataset(other, url, mode="append", options={"classes": ["cat", "dog"]})
    assert [int(value["label"]) for value in shardio.open(url)] == [1, 1]


def test_appending_words_to_classes(tmp_path) -> None:
    """Lines whose labels are words get the numbers that the dataset has for them."""
    url = tmp_path / "dataset"
    with shardio.DatasetWriter(url, {"label": shardio.Feature("int64", classes=["cat", "dog"])}) as out:
        out.write({"label": 0})
    (tmp_path / "more.jsonl").write_text('{"label": "dog"}\n{"label": "cat"}\n')
    shardio.convert_dataset(tmp_path / "more.jsonl", url, mode="append")
    (tmp_path / "zebra.jsonl").write_text('{"label": "zebra"}\n')
    with refused(SchemaError, "'zebra'"):
        shardio.convert_dataset(tmp_path / "zebra.jsonl", url, mode="append")
    (tmp_path / "high.jsonl").write_text('{"label": 2}\n')
    with pytest.raises(SchemaError):
        shardio.convert_dataset(tmp_path / "high.jsonl", url, mode="append")
    assert [int(value["label"]) for value in shardio.open(url)] == [0, 1, 0]


def test_records_of_another_numbering(tmp_path) -> None:
    """Labels of another dataset become those of this one; plain numbers are held against its classes."""
    one, other, third = (str(tmp_path / name) for name in "abc")
    for url, classes in ((one, ["cat", "dog"]), (other, ["dog", "cat"]), (third, None)):
        with shardio.DatasetWriter(url, {"label": shardio.Feature("int64", classes=classes)}) as out:
            out.write({"label": 1})
            if classes is None:
                out.write({"label": 7})
    shardio.convert_dataset(other, one, mode="append")
    with pytest.raises(SchemaError):
        shardio.convert_dataset(third, one, mode="append")
    assert [int(value["label"]) for value in shardio.open(one)] == [1, 0]


@pytest.fixture(name="sources", params=["shardio", "tfrecord"])
def sources_fixture(request, tmp_path) -> Any:
    """Return a function that writes records of a schema, and returns where they can be converted from."""

    def make(name: str, schema: dict[str, Any], *values: dict[str, Any], **change: Any) -> str:
        url = str(tmp_path / name)
        with shardio.DatasetWriter(url, schema) as out:
            for value in values:
                out.write(value)
        if change:
            shardio.set_schema(url, **change)
        if request.param == "shardio":
            return url
        shardio.export_dataset(url, url + ".files", kind="tfrecord")
        return url + ".files"

    return make


def test_a_schema_changes_what_it_names(sources, tmp_path) -> None:
    """Features that a mapping does not name stay; what it leaves out of records that are copied is said."""
    source = sources("a", {"label": "int64", "k": "int64", "t": "text"}, {"label": 1, "k": 2, "t": "x"})
    label = shardio.Feature("int64", classes=["cat", "dog"])
    report = shardio.convert_dataset(source, tmp_path / "b", schema={"label": label, "t": None})
    assert report.schema == shardio.Schema.parse({"label": label, "k": "int64"})
    assert list(shardio.open(tmp_path / "b")) == [{"label": 1, "k": 2}]
    hidden = [note for note in report.notes if "still hold 't', which no reader sees" in note]
    assert bool(hidden) == source.endswith(".files")
    whole = shardio.Schema.parse({"k": "int64"})
    assert shardio.convert_dataset(source, tmp_path / "c", schema=whole).schema == whole


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"label": "text"}, "'label'"),
        ({"label": shardio.Feature("int64", classes=["cat"])}, "'label'"),
        ({"new": "int64"}, "'new'"),
    ],
)
def test_a_schema_that_does_not_read_the_records(sources, tmp_path, change, name) -> None:
    source = sources("a", {"label": "int64", "k": "int64"}, {"label": 1, "k": 2})
    with refused(SchemaError, name):
        shardio.convert_dataset(source, tmp_path / "b", schema=change)
    assert not (tmp_path / "b" / "_shardio").exists()


def test_classes_keep_their_names(tmp_path) -> None:
    """In another order labels get other numbers; a class that is not there is refused."""
    label = {"label": shardio.Feature("int64", classes=["cat", "dog"])}
    with shardio.DatasetWriter(tmp_path / "a", label) as out:
        out.write({"label": "dog"})
    for number, classes in enumerate((["dog", "cat"], ["cat", "dog", "eel"])):
        given = {"label": shardio.Feature("int64", classes=classes)}
        shardio.convert_dataset(tmp_path / "a", tmp_path / f"b{number}", schema=given)
        found = shardio.open(tmp_path / f"b{number}")
        assert found.schema == shardio.Schema.parse(given)
        assert classes[int(found[0]["label"])] == "dog"
    with refused(SchemaError, "'label'"):
        given = {"label": shardio.Feature("int64", classes=["cat", "eel"])}
        shardio.convert_dataset(tmp_path / "a", tmp_path / "c", schema=given)


NEW = shardio.Feature("int64", optional=True)
ADDED = {"new": NEW, "k": "int64"}
SEVEN = shardio.Feature("int64", default=7)


@pytest.mark.parametrize(
    ("dataset", "source", "record", "wanted"),
    [
        # (schema, change of the schema) of both, and what the source's record is in the dataset.
        (({"old": NEW, "k": "int64"}, {"rename": {"old": "new"}}), (ADDED, {}), {"new": 3, "k": 4}, None),
        (
            ({"new": "int64", "k": "int64"}, {"rename": {"new": "k", "k": "new"}}),
            ({"new": "int64", "k": "int64"}, {}),
            {"new": 3, "k": 4},
            None,
        ),
        ((ADDED, {}), (ADDED, {"features": {"new": None}}), {"new": 3, "k": 4}, {"new": None, "k": 4}),
        (({"new": NEW, "k": "int64"}, {}), ({"new": SEVEN, "k": "int64"}, {}), {"k": 4}, {"new": 7, "k": 4}),
        (({"k": "int64"}, {}), (ADDED, {"rename": {"k": "n"}}), {"k": 4}, SchemaError),
        (({"new": "int64", "k": "int64"}, {}), ({"k": "int64"}, {}), {"k": 4}, SchemaError),
    ],
)
def test_a_dataset_is_added_by_its_values(tmp_path, dataset, source, record, wanted) -> None:
    """What its readers see is added, whatever its records hold and under which names; or refused."""
    for name, (schema, change) in (("a", dataset), ("b", source)):
        with shardio.DatasetWriter(tmp_path / name, schema) as out:
            out.write(dict.fromkeys(schema, 5) if name == "a" else record)
        if change:
            shardio.set_schema(tmp_path / name, **change)
    before = list(shardio.open(tmp_path / "a"))
    if wanted is SchemaError:
        with pytest.raises(SchemaError):
            shardio.convert_dataset(tmp_path / "b", tmp_path / "a", mode="append")
        assert list(shardio.open(tmp_path / "a")) == before
        return
    shardio.convert_dataset(tmp_path / "b", tmp_path / "a", mode="append")
    assert list(shardio.open(tmp_path / "a")) == [*before, wanted or record]


def test_files_that_hold_the_names_of_before(tmp_path) -> None:
    """Payloads are read as those of the dataset; a name that means something else there is refused."""
    with shardio.DatasetWriter(tmp_path / "a", {"old": "int64"}) as out:
        out.write({"old": 1})
    shardio.export_dataset(tmp_path / "a", tmp_path / "files", kind="tfrecord")
    shardio.set_schema(tmp_path / "a", rename={"old": "new"})
    shardio.convert_dataset(tmp_path / "files", tmp_path / "a", mode="append")
    assert list(shardio.open(tmp_path / "a")) == [{"new": 1}, {"new": 1}]
    # Files hold the names of before; that is said.
    report = shardio.export_dataset(tmp_path / "a", tmp_path / "more", kind="tfrecord")
    assert report.notes == ["records are copied as they are: they hold the feature 'new' as 'old'"]
    with shardio.DatasetWriter(tmp_path / "b", {"old": "int64", "new": "int64"}) as out:
        out.write({"old": 1, "new": 2})
    shardio.export_dataset(tmp_path / "b", tmp_path / "both", kind="tfrecord")
    with refused(SchemaError, "'new'"):
        shardio.convert_dataset(tmp_path / "both", tmp_path / "a", mode="append")


@pytest.mark.parametrize(
    ("kind", "of_dataset", "of_source", "value", "encoding"),
    [
        ("tfrecord", "text", "text", "wren", "example"),  # whose inferred type may be bytes
        ("tfrecord", "int32", "int32", 3, "example"),
        ("tfrecord", "float32[?]", "float32[2]", [1.0, 2.0], "example"),
        ("tfrecord", "int64[2]", "int64[2]", [1, 2], "array"),  # of which nothing is inferred
        ("jsonl", "json", "text", "wren", "tensors"),
        ("jsonl", "int64[2]", "int64[2]", [1, 2], "tensors"),
        ("jsonl", "float32", "float32", 0.5, "example"),
        ("shardio", "image", "jpeg", picture(1), "example"),
        ("shardio", "int64[?]", "int64[2]", [1, 2], "tensors"),
    ],
)
def test_an_append_keeps_the_types_of_the_dataset(
    tmp_path, kind, of_dataset, of_source, value, encoding
) -> None:
    """What is inferred, or a narrower type, changes nothing for readers of the records that there are."""
    for name, short in (("ds", of_dataset), ("more", of_source)):
        with shardio.DatasetWriter(tmp_path / name, {"x": short}, encoding=encoding) as out:
            out.write({"x": value})
    source = tmp_path / "more"
    if kind != "shardio":
        source = tmp_path / "files"
        shardio.export_dataset(tmp_path / "more", source, kind=kind)
    before = shardio.open(tmp_path / "ds")
    shardio.convert_dataset(source, tmp_path / "ds", mode="append")
    after = shardio.open(tmp_path / "ds")
    assert after.schema == before.schema
    assert str(after[1]) == str(after[0]) == str(before[0])


def test_an_append_that_would_change_a_type_asks(tmp_path) -> None:
    for name, short, value in (("ds", "text", "a"), ("more", "bytes", b"wren")):
        with shardio.DatasetWriter(tmp_path / name, {"x": short}) as out:
            out.write({"x": value})
    with refused(SchemaError, "schema=") as caught:
        shardio.convert_dataset(tmp_path / "more", tmp_path / "ds", mode="append")
    assert shardio.open(tmp_path / "ds")[0] == {"x": "a"}
    assert '{"x": "bytes"}' in str(caught.value)
    shardio.convert_dataset(tmp_path / "more", tmp_path / "ds", mode="append", schema={"x": "bytes"})
    assert [value["x"] for value in shardio.open(tmp_path / "ds")] == [b"a", b"wren"]


def test_a_source_without_a_required_feature(tmp_path, capsys) -> None:
    """The dataset's records do not lose it; the advice works."""
    url = str(tmp_path / "ds")
    with shardio.DatasetWriter(url, {"k": "int64", "label": "int64"}) as out:
        out.write({"k": 1, "label": 2})
    (tmp_path / "more.jsonl").write_text('{"k": 3}\n')
    with refused(SchemaError, "'label'") as caught:
        shardio.convert_dataset(tmp_path / "more.jsonl", url, mode="append")
    words = shlex.split(str(caught.value).partition("shardio schema set URL ")[2])
    assert main(["schema", "set", url, *words]) == 0
    shardio.convert_dataset(tmp_path / "more.jsonl", url, mode="append")
    assert list(shardio.open(url)) == [{"k": 1, "label": 2}, {"k": 3, "label": None}]


def test_files_of_tensors_are_not_taken_without_their_names(tmp_path) -> None:
    """Names in records may be others than the dataset's: what would be read as missing is refused."""
    for name in ("ds", "more"):
        with shardio.DatasetWriter(tmp_path / name, {"a": "int64", "b": NEW}, encoding="tensors") as out:
            out.write({"a": 1, "b": 2})
    shardio.export_dataset(tmp_path / "more", tmp_path / "files", kind="tfrecord")
    shardio.set_schema(tmp_path / "ds", rename={"b": "c"})
    with refused(SchemaError, "'tensors'", "schema="):
        shardio.convert_dataset(tmp_path / "files", tmp_path / "ds", mode="append")
    assert len(shardio.open(tmp_path / "ds")) == 1
    # The advice.
    whole = shardio.open(tmp_path / "ds").schema
    shardio.convert_dataset(tmp_path / "files", tmp_path / "ds", mode="append", schema=whole)
    assert list(shardio.open(tmp_path / "ds")) == [{"a": 1, "c": 2}] * 2
    # Records of their own dataset are their bytes, and not samples of no features.
    shardio.convert_dataset(tmp_path / "files", tmp_path / "new")
    assert list(shardio.open(tmp_path / "new")) == [shardio.open(tmp_path / "more", decode=False)[0]]


def test_values_go_into_a_dataset_of_another_encoding(tmp_path) -> None:
    """But for feature lists, which other values do not have."""
    nested = {"context": {"a": "int64"}, "feature_lists": {}}
    for name, features, encoding in (
        ("tensors", {"a": "int64"}, "tensors"),
        ("sequence", nested, "sequence_example"),
        ("more", {"a": "int64"}, "example"),
    ):
        with shardio.DatasetWriter(tmp_path / name, features, encoding=encoding) as out:
            out.write({"a": 1} if "a" in features else {"context": {"a": 1}, "feature_lists": {}})
    shardio.convert_dataset(tmp_path / "more", tmp_path / "tensors", mode="append")
    assert list(shardio.open(tmp_path / "tensors")) == [{"a": 1}, {"a": 1}]
    with refused(SchemaError, "sequence_example"):
        shardio.convert_dataset(tmp_path / "more", tmp_path / "sequence", mode="append")
    assert len(shardio.open(tmp_path / "sequence")) == 1


def test_labels_of_steps(tmp_path) -> None:
    """Payloads of sequence examples are held against the classes of both parts."""
    for number, lists in enumerate(({}, {"s": "int64"})):
        schema = {"context": {"l": "int64"}, "feature_lists": lists}
        url = tmp_path / str(number)
        with shardio.DatasetWriter(url, schema, encoding="sequence_example") as out:
            out.write({"context": {"l": 0}, "feature_lists": {name: [0, 7] for name in lists}})
        named = shardio.Feature("int64", classes=["x", "y"])
        given = {"context": {"l": named}, "feature_lists": dict.fromkeys(lists, named)}
        if lists:
            with refused(SchemaError, "'s'"):
                shardio.convert_dataset(url, tmp_path / "out", schema=given)
        else:
            shardio.convert_dataset(url, tmp_path / "out0", schema=given)


def test_no_label_is_not_the_default_class(tmp_path) -> None:
    """-1 stands for none; where records without a label have that of a class it is refused."""
    label = shardio.Feature("int64", classes=["cat", "dog"], default=0)
    with shardio.DatasetWriter(tmp_path / "ds", {"label": label, "n": "int64"}) as out:
        out.write({"n": 1})
    more = labels_file(tmp_path / "a.parquet", [1, -1], ["cat", "dog"])
    with pytest.raises(SchemaError):
        shardio.convert_dataset(more, tmp_path / "ds", mode="append")


def test_classes_of_other_kinds_are_not_ignored(tmp_path) -> None:
    (tmp_path / "more.jsonl").write_text('{"label": "dog"}\n')
    with refused(ValueError, "schema="):
        shardio.convert_dataset(tmp_path / "more.jsonl", tmp_path / "out", options={"classes": ["dog"]})
    given = {"label": shardio.Feature("int64", classes=["cat", "dog"])}
    shardio.convert_dataset(tmp_path / "more.jsonl", tmp_path / "out", schema=given)
    assert int(shardio.open(tmp_path / "out")[0]["label"]) == 1


def labels_file(path: Path, values: list[int], names: list[str]) -> Path:
    """Write a Parquet file as `datasets.Dataset.to_parquet` does."""
    import pyarrow as pa

    label = {"names": names, "_type": "ClassLabel"}
    features = {"label": label, "n": {"dtype": "int64", "_type": "Value"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    columns = {"label": pa.array(values, pa.int64()), "n": pa.array(values, pa.int64())}
    return table_file(path, pa.table(columns).replace_schema_metadata(metadata))


def test_class_labels_of_datasets(tmp_path) -> None:
    """Names come along; another file numbers them in its own way; -1 is not a label."""
    url = tmp_path / "dataset"
    shardio.convert_dataset(labels_file(tmp_path / "a.parquet", [0, 1], ["cat", "dog"]), url)
    assert shardio.open(url).schema["label"] == shardio.Feature("int64", classes=["cat", "dog"])
    assert shardio.open(url).schema["n"] == shardio.Feature("int64")
    names = ["zebra", "dog", "cat"]
    more = labels_file(tmp_path / "b.parquet", [0, 1, 2, 1], names)
    shardio.convert_dataset(more, url, mode="append")
    reader = shardio.open(url)
    assert reader.schema["label"].classes == ("cat", "dog", "zebra")
    assert reader.read_batch(range(6))["label"].tolist() == [0, 1, 2, 1, 0, 1]
    with pytest.raises(SchemaError):
        shardio.convert_dataset(labels_file(tmp_path / "c.parquet", [3], names), url, mode="append")
    test = labels_file(tmp_path / "test.parquet", [1, -1], ["cat", "dog"])
    shardio.convert_dataset(test, tmp_path / "test")
    reader = shardio.open(tmp_path / "test")
    assert reader.schema["label"] == shardio.Feature("int64", classes=["cat", "dog"], default=-1)
    assert reader.read_batch([0, 1])["label"].tolist() == [1, -1]


def test_numbers_of_webdataset(tmp_path) -> None:
    """The numbers of `cls` are those of the names that the caller gives, whatever the dataset's are."""
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number, text in enumerate((b"0", b"2", b"dog")):
            info = tarfile.TarInfo(f"{number}.cls")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    url = tmp_path / "dataset"
    label = shardio.Feature("int64", classes=["eel", "dog"])
    with shardio.DatasetWriter(url, {"__key__": "text", "cls": label}) as out:
        out.write({"__key__": "x", "cls": "eel"})
    classes = ["cat", "dog", "eel"]
    shardio.convert_dataset(tmp_path / "a.tar", url, mode="append", options={"classes": classes})
    reader = shardio.open(url)
    assert reader.schema["cls"].classes == ("eel", "dog", "cat")
    assert [int(value["cls"]) for value in reader] == [0, 2, 0, 1]


def table_file(path: Path, table: Any) -> Path:
    import pyarrow.parquet as pq

    pq.write_table(table, path)
    return path


def test_columns_that_collide(convert, tmp_path) -> None:
    import pyarrow as pa

    inner = pa.array([{"b": 2}], pa.struct([("b", pa.int64())]))
    beside = pa.table([pa.array([1]), inner, pa.array([3])], names=["a.b", "a", "c"])
    twice = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["a.b", "a.b", "c"])
    for number, table in enumerate((beside, twice)):
        path = tmp_path / f"{number}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
            out.write_table(table)
        convert.refused(path, SchemaError, r"two columns of .* are called 'a\.b'")
        assert convert(path, schema={"a.b": None}) == [{"c": 3}]
        schema = shardio.Schema.parse({"a.b": "int64", "c": "int64"})
        convert.refused(path, SchemaError, r"two columns of .* are called 'a\.b'", schema=schema)


def arrow_columns() -> dict[str, tuple[Any, str, list[Any]]]:
    """Return arrays of types that others write, the feature each becomes, and its values."""
    import datetime
    import decimal

    import pyarrow as pa

    day = np.datetime64(1, "s").astype(datetime.datetime)
    d = decimal.Decimal
    return {
        "decimals": (pa.array([[d("1.50")], [d("2.25"), None]]), "text[?]", [["1.50"], "json"]),
        "decimal lists": (pa.array([[d("1.50")], [d("2.25")]]), "text[?]", [["1.50"], ["2.25"]]),
        "times": (pa.array([[day], []], pa.list_(pa.timestamp("us"))), "int64[?]", [[1000000], []]),
        "dates": (pa.array([[1], [2]], pa.list_(pa.date32())), "int32[?]", [[1], [2]]),
        "durations": (pa.array([5, 6], pa.duration("ms")), "int64", [5, 6]),
        "binary view": (pa.array([b"a", b"bc"], pa.binary_view()), "bytes", [b"a", b"bc"]),
        "text view": (pa.array(["a", "bc"], pa.string_view()), "text", ["a", "bc"]),
        "large list": (pa.array([["a"], []], pa.large_list(pa.string())), "text[?]", [["a"], []]),
        "list view": (pa.array([[1], [2, 3]], pa.list_view(pa.int8())), "int8[?]", [[1], [2, 3]]),
        "uuid": (
            pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16, b"1" * 16], pa.binary(16))),
            "bytes",
            [b"0" * 16, b"1" * 16],
        ),
        "json": (
            pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": [1]}', "null"])),
            "json",
            [{"a": [1]}, None],
        ),
        "tensor": (
            pa.ExtensionArray.from_storage(
                pa.fixed_shape_tensor(pa.int32(), [2, 2]),
                pa.array([[1, 2, 3, 4]] * 2, pa.list_(pa.int32(), 4)),
            ),
            "int32[2,2]",
            [[[1, 2], [3, 4]]] * 2,
        ),
        "tensor in another order": (
            pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12).reshape(2, 2, 3).transpose(0, 2, 1)),
            "int64[3,2]",
            np.arange(12).reshape(2, 2, 3).transpose(0, 2, 1).tolist(),
        ),
        "bool8": (
            pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0], pa.int8())),
            "bool",
            [True, False],
        ),
        "runs": (
            pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), pa.array([7, 8])),
            "int64",
            [7, 8],
        ),
        "dictionary": (pa.array(["a", "b"]).dictionary_encode(), "text", ["a", "b"]),
        "large uint64": (pa.array([[0, 2**63], [1]], pa.list_(pa.uint64())), "uint64[?]", [[0, 2**63], [1]]),
        "struct list": (pa.array([[{"a": 1, "t": day}], []]), "json", [[{"a": 1, "t": 1000000}], []]),
        "map": (pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())), "json", [[["a", 1]], []]),
    }


@pytest.mark.parametrize("name", arrow_columns())
def test_arrow_types(convert, tmp_path, name) -> None:
    """Each type is read, or the advice of the refusal is followed and works."""
    import pyarrow as pa

    array, short, wanted = arrow_columns()[name]
    table = pa.table({"x": array, "n": [1, 2]})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)
    if wanted[-1] == "json":
        convert.refused(tmp_path / "a.arrow", SchemaError, r'schema=\{"x": "json"\}')
        values = convert(tmp_path / "a.arrow", schema={"x": "json"})
        assert [value["x"] for value in values] == [["1.50"], ["2.25", None]]
        return
    values = convert(tmp_path / "a.arrow")
    assert convert.report.schema["x"].short == short
    found = [value["x"].tolist() if hasattr(value["x"], "tolist") else value["x"] for value in values]
    assert found == wanted


def test_arrow_types_that_no_feature_has(convert, tmp_path) -> None:
    import pyarrow as pa

    table = pa.table({"x": pa.array([[{"a": b"1"}]]), "n": [1]})
    path = table_file(tmp_path / "a.parquet", table)
    convert.refused(path, SchemaError, r"column 'x' is of the type list.*holds bytes.*schema=\{\"x\": None\}")
    assert convert(path, schema={"x": None}) == [{"n": 1}]
    ragged = table_file(tmp_path / "b.parquet", pa.table({"x": [[[1], [2, 3]], [[4]]]}))
    convert.refused(ragged, SchemaError, r'schema=\{"x": "json"\}')
    assert [value["x"] for value in convert(ragged, schema={"x": "json"})] == [[[1], [2, 3]], [[4]]]


NOON = datetime.datetime(2020, 1, 2, 12)  # noqa: DTZ001 - a time without a zone is meant


def two_files(folder: Path, one: Any, other: Any) -> Path:
    """Write two files of a column each, or without one where it is None."""
    import pyarrow as pa

    folder.mkdir()
    for number, column in enumerate((one, other)):
        table = {"n": pa.array([number])} | ({} if column is None else {"a": column})
        with (
            pa.OSFile(str(folder / f"{number}.arrow"), "wb") as sink,
            pa.ipc.new_file(sink, pa.table(table).schema) as writer,
        ):
            writer.write(pa.table(table))
    return folder


def harmless() -> list[Any]:
    """Return two columns, the type of the feature, and its values."""
    import pyarrow as pa

    array = pa.array
    seconds, micro = 1577966400, 1577966400000000
    return [
        (array([None]), array([3]), "int64", [None, 3]),
        (array([3]), None, "int64", [3, None]),
        (None, array(["x"]), "text", [None, "x"]),
        (array([1]), array([2.5]), "float64", [1.0, 2.5]),
        (array([1], pa.int8()), array([1 << 40]), "int64", [1, 1 << 40]),
        (array([[1, 2]]), array([[1.5]]), "float64[?]", [[1.0, 2.0], [1.5]]),
        (array([[]]), array([["x"]]), "text[?]", [[], ["x"]]),
        (array(["x"]).dictionary_encode(), array(["y"], pa.large_string()), "text", ["x", "y"]),
        (array(["x"]), array([b"y"]), "bytes", [b"x", b"y"]),
        (array([NOON], pa.timestamp("s")), array([NOON], pa.timestamp("us")), "int64", [micro, micro]),
        (array([NOON], pa.timestamp("s")), array([NOON], pa.timestamp("s")), "int64", [seconds, seconds]),
        (
            array([NOON], pa.timestamp("s", "UTC")), array([NOON], pa.timestamp("us", "Asia/Tokyo")), "int64",
            [micro, micro],
        ),
        (
            array([[NOON]], pa.list_(pa.timestamp("s"))), array([[NOON]], pa.list_(pa.timestamp("us"))),
            "int64[?]", [[micro], [micro]],
        ),
        (
            array([[{"b": 1}]]), array([[{"b": 2, "c": 3}]]), "json",
            [[{"b": 1, "c": None}], [{"b": 2, "c": 3}]],
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(14))
def test_arrow_files_that_differ_harmlessly(convert, tmp_path, number) -> None:
    """They become what `pyarrow.unify_schemas` makes of them, in either order of the files."""
    one, other, short, wanted = harmless()[number]
    for columns, values in (((one, other), wanted), ((other, one), wanted[::-1])):
        found = [value["a"] for value in convert(two_files(tmp_path / f"p{convert.count}", *columns))]
        assert [each.tolist() if hasattr(each, "tolist") else each for each in found] == values
        assert convert.report.schema["a"].short == short
        # Another type, another unit, or a missing column, is said; no values and another layout are not.
        notes = [note for note in convert.report.notes if "column 'a'" in note]
        assert len(notes) == (number in (1, 2, 3, 4, 5, 6, 8, 9, 11, 12))
        if number in (9, 11, 12):
            assert f"it is {short} (timestamp[us" in notes[0]


def test_structs_that_lack_fields(convert, tmp_path) -> None:
    import pyarrow as pa

    whole = pa.array([{"b": 1, "c": "x"}])
    for number, (part, wanted) in enumerate(
        [(pa.array([{"b": 2}]), 2), (pa.array([None]), None), (None, None)]
    ):
        values = convert(two_files(tmp_path / f"p{number}", part, whole))
        assert [(value["a.b"], value["a.c"]) for value in values] == [(wanted, None), (1, "x")]


def test_arrow_files_that_differ(convert, tmp_path) -> None:
    """What Arrow has no common type for is refused with both types, both files and a schema that works."""
    import pyarrow as pa

    one = pa.array([1])
    for number, (other, value) in enumerate(
        [(pa.array(["x"]), "x"), (pa.array([True]), True), (pa.array([[1]]), [1])]
    ):
        folder = two_files(tmp_path / f"p{number}", one, other)
        reason = rf"int64 in .*0\.arrow, {other.type} in .*1\.arrow.*schema=".replace("<", "\\<")
        convert.refused(folder, SchemaError, rf"'a' is not the same in all files: {reason}")
        with pytest.raises(SchemaError) as caught:
            shardio.convert_dataset(folder, tmp_path / "x")
        assert 'schema={"a": "json"}' in str(caught.value.advice)
        assert [value["a"] for value in convert(folder, schema={"a": "json"})] == [1, value]
        assert convert(folder, schema={"a": None}) == [{"n": 0}, {"n": 1}]
    for number, other in enumerate([pa.array([b"x"]), pa.array([{"b": 1}])]):
        folder = two_files(tmp_path / f"q{number}", one, other)
        convert.refused(folder, SchemaError, r"is not the same in all files.*leave the column out")
        assert [value["n"] for value in convert(folder, schema={"a": None})] == [0, 1]
    large = two_files(tmp_path / "large", pa.array([(1 << 53) + 1]), pa.array([0.5]))
    convert.refused(large, SchemaError, "cannot hold exactly")


def lmdb_of(folder: Path, payloads: list[bytes]) -> Path:
    import lmdb

    folder.mkdir(parents=True)
    with lmdb.open(str(folder), map_size=1 << 24) as environment, environment.begin(write=True) as writing:
        for number, payload in enumerate(payloads):
            writing.put(str(number).encode(), payload)
    (folder / "lock.mdb").unlink()
    return folder


def tensors(*items: tuple[str, bytes, list[int]]) -> bytes:
    from shardio.v1 import tensor_pb2

    message = tensor_pb2.TensorProtos()
    for name, data, dims in items:
        proto = message.protos.add(data_type=tensor_pb2.TensorProto.DataType.BYTE, byte_data=data, dims=dims)
        if name:
            proto.name = name
    return bytes(message.SerializeToString())


@pytest.mark.slow
def test_bytes_stay_bytes(convert, tmp_path) -> None:
    named = lmdb_of(tmp_path / "named", [tensors(("x", text, [])) for text in (b"000123", b"7", b"\xff")])
    assert [value["x"] for value in convert(named)] == [b"000123", b"7", b"\xff"]
    digits = lmdb_of(tmp_path / "digits", [tensors(("x", text, [])) for text in (b"12", b"7")])
    assert [value["x"] for value in convert(digits)] == [b"12", b"7"]
    assert [value["x"] for value in convert(digits, schema={"x": "int64"})] == [12, 7]
    assert [value["x"] for value in convert(digits, schema={"x": "text"})] == ["12", "7"]
    convert.refused(
        named, SchemaError, r"'x' is not int64.*schema=\{\"x\": \"bytes\"\}", schema={"x": "int64"}
    )
    matrix = np.arange(6, dtype=np.uint8)
    (value,) = convert(lmdb_of(tmp_path / "matrix", [tensors(("m", matrix.tobytes(), [2, 3]))]))
    assert value["m"].tolist() == matrix.reshape(2, 3).tolist()


@pytest.mark.slow
def test_labels_of_pairs(convert, tmp_path) -> None:
    """TorchRecord's own layout: integers where all are; nothing that would not come back."""
    pixels = bytes(range(12))
    pairs = [tensors(("", pixels, [2, 2]), ("", label, [])) for label in (b"3", b"-12")]
    assert [int(value["label"]) for value in convert(lmdb_of(tmp_path / "a", pairs))] == [3, -12]
    values = convert(tmp_path / "a", schema={"label": "bytes", "image": "bytes"})
    assert [(value["label"], value["image"]) for value in values] == [(b"3", pixels), (b"-12", pixels)]
    odd = [*pairs, tensors(("", pixels, [2, 2]), ("", b"000123", []))]
    assert [value["label"] for value in convert(lmdb_of(tmp_path / "b", odd))] == [b"3", b"-12", b"000123"]


@pytest.mark.slow
def test_a_damaged_lmdb_is_an_error_and_no_death(convert, tmp_path) -> None:
    """Noise in each page in turn: the records, or an error that names the file; this process lives."""
    source = lmdb_of(tmp_path / "good", [tensors(("x", bytes([n]) * 3000, [])) for n in range(12)])
    data = (source / "data.mdb").read_bytes()
    deaths = 0
    for page in range(2, len(data) // 4096):
        for noise in (b"\xff", b"\x7f"):
            bad = tmp_path / "bad"
            shutil.rmtree(bad, ignore_errors=True)
            bad.mkdir()
            damaged = bytearray(data)
            damaged[page * 4096 + 16 : page * 4096 + 40] = noise * 24
            (bad / "data.mdb").write_bytes(damaged)
            try:
                convert(bad)
            except ShardioError as error:
                assert isinstance(error, FormatError)  # noqa: PT017
                assert "data.mdb" in str(error) or "key" in str(error)  # noqa: PT017
                deaths += "ended by SIG" in str(error)
    assert deaths, "no page was damaged in a way that ends its reader: the test shows nothing"


def test_files_of_no_split_are_all_listed(tmp_path) -> None:
    """Not their indexes alone, and not only where no other folder has a file of the same name."""
    for name in ("a", "b"):
        shutil.copytree(FOREIGN / "mds/plain", tmp_path / "mds" / name)
    source = tmp_path / "mds"
    shards = {str(path.relative_to(source)) for path in (source / "b").rglob("*") if path.is_file()}
    for number, places in enumerate([source, [source / "a", source / "b"]]):
        report = shardio.convert_dataset(
            places, tmp_path / f"out{number}", kind="mds", split={"train": "a/*"}
        )
        assert set(report.ignored) >= shards
    source = FOREIGN / "codewithgpu"
    report = shardio.convert_dataset(source, tmp_path / "out", split={"train": "00001*"})
    assert set(report.ignored) == {"expected.json", "00000.data", "00000.index", "00002.data", "00002.index"}


def test_columns_of_pickles_can_be_left_out(convert, tmp_path) -> None:
    source = tmp_path / "source"
    shutil.copytree(FOREIGN / "mds/plain", source)
    index = json.loads((source / "index.json").read_text())
    name = index["shards"][0]["column_names"][0]
    for shard in index["shards"]:
        shard["column_encodings"][0] = "pkl"
    (source / "index.json").write_text(json.dumps(index))
    convert.refused(source, SchemaError, rf'would run code.*schema=\{{"{name}": "bytes"\}}.*None')
    assert name not in convert(source, schema={name: None})[0]
    original = convert(FOREIGN / "mds/plain", schema={name: "bytes"})
    found = convert(source, schema={name: "bytes"})
    assert [value[name] for value in found] == [value[name] for value in original]


def field(number: int, data: bytes) -> bytes:
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def feature_map(**features: bytes) -> bytes:
    return b"".join(field(1, field(1, name.encode()) + field(2, item)) for name, item in features.items())


def test_lists_of_maps(convert, tmp_path) -> None:
    boxes = [{"x": 3, "name": "a"}, {"x": -1, "name": "b"}]
    maps = [
        feature_map(x=b"\x18" + varint(box["x"]), name=field(1, str(box["name"]).encode())) for box in boxes
    ]
    payload = feature_map(boxes=field(4, b"".join(field(1, field(5, one)) for one in maps)))
    metadata = {"features": {"boxes": [{"x": "INT64", "name": "STRING"}]}, "entries": 1}
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "METADATA").write_text(json.dumps(metadata))
    (tmp_path / "g" / "0.data").write_bytes(payload)
    (tmp_path / "g" / "0.index").write_text(f"0 {len(payload)}\n")
    assert convert(tmp_path / "g") == [{"boxes": boxes}]
    metadata["features"] = {"boxes": [{"x": "BYTES"}]}
    (tmp_path / "g" / "METADATA").write_text(json.dumps(metadata))
    convert.refused(tmp_path / "g", SchemaError, r"JSON holds no bytes.*schema=\{\"boxes\": None\}")


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize(
    ("schema", "value", "match"),
    [
        ({"a": "text", "a.txt": "text"}, {"a": "1", "a.txt": "2"}, "'a' and 'a.txt' would both"),
        ({"A": "text", "a": "text"}, {"A": "1", "a": "2"}, "'A' and 'a' would both"),
        ({"__key__": "text", "a": "text"}, {"__key__": "k", "a": "1"}, "'__key__'.*second time"),
        ({"__key__": "text", "a": "text"}, {"__key__": "__k__/a", "a": "1"}, "pass over.*'__key__'"),
        ({"a": shardio.Feature("text", optional=True)}, {}, "'a'"),
        ({"a": "bytes[2]"}, {"a": [b"1", b"2"]}, "'a' is a list of bytes"),
    ],
)
def test_samples_that_could_not_be_read_back(tmp_path, schema, value, match) -> None:
    with shardio.DatasetWriter(tmp_path / "d", schema=schema) as out:
        for _ in range(2):
            out.write(value)
    with pytest.raises((SchemaError, ValueError), match=match):
        shardio.export_dataset(tmp_path / "d", tmp_path / "out", kind="webdataset")
    assert not (tmp_path / "out").exists()


def test_records_that_a_kind_cannot_hold_may_be_left_out(tmp_path, capsys) -> None:
    """The advice of an export, followed."""
    with shardio.DatasetWriter(tmp_path / "d", schema={"__key__": "text", "n": "int64"}) as out:
        for n, key in enumerate(("a", "b", "b", "__c__/d")):
            out.write({"__key__": key, "n": n})
    words = ["export", str(tmp_path / "d"), str(tmp_path / "out"), "--kind", "webdataset"]
    assert main(words) == 1
    follow(capsys, words, 'on_error="skip"', code=1)
    assert len(list((tmp_path / "out").iterdir())) == 1
    assert [sample["__key__"] for sample in library_samples(tmp_path / "out" / "train-000000.tar")] == [
        "a",
        "b",
    ]


def follow(capsys: Any, words: list[str], advice: str, *, code: int = 0) -> None:
    """Check that the last message gives the advice, and that following it as an option works."""
    said = " ".join(capsys.readouterr().err.split())
    assert advice in said, said
    name, _, value = advice.partition("=")
    value = value.strip('"').replace("None", "null")
    assert main([*words, f"--{name.replace('_', '-')}", value]) == code
    capsys.readouterr()


SKIP = 'on_error="skip"'
ADVICE = {
    "numbers and text": ({"a.jsonl": b'{"x": 1}\n{"x": "a"}\n'}, 'schema={"x": "json"}', 0),
    "or left out": ({"a.jsonl": b'{"x": 1}\n{"x": 2}\n{"x": "a"}\n'}, SKIP, 1),
    "bytes and numbers": ({"a.jsonl": b'{"n": 1, "x y": {"$base64": "aGk="}}\n{"n": 1, "x y": 1}\n'},
                          'schema={"x y": None}', 0),
    "a number too large": ({"a.jsonl": b'{"x": 1}\n' * 1200 + b'{"x": 1.5}\n'}, 'schema={"x": "float64"}', 0),
    "a new key": ({"a.jsonl": b'{"x": 1}\n' * 1200 + b'{"x": 1, "y": 2}\n'}, SKIP, 1),
    "not JSON": ({"a.jsonl": b'{"x": 1}\noops\n'}, SKIP, 1),
    "an integer that is none": ({"a.tar": [("a.cls", b"7"), *((f"{n}.cls", b"7") for n in range(1100)),
                                           ("z.cls", b"07")]}, 'schema={"cls": "bytes"}', 0),
    "no image": ({"p/c/1.jpg": picture(1), "p/c/2.jpg": b"404"}, SKIP, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", ADVICE)
def test_advice_works(tmp_path, capsys, name) -> None:
    files, advice, code = ADVICE[name]
    source = tmp_path / "source"
    for key, data in files.items():
        (source / key).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, list):
            tar(source / key, data)
        else:
            (source / key).write_bytes(data)
    words = ["convert", str(source), str(tmp_path / "out")]
    assert main(words) == 1
    follow(capsys, words, advice, code=code)


def test_the_kind_of_a_folder_of_two_is_asked_for(tmp_path, capsys) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.jsonl").write_bytes(b'{"x": 1}\n')
    tar(tmp_path / "source" / "b.tar", [("a.txt", b"1")])
    words = ["convert", str(tmp_path / "source"), str(tmp_path / "out")]
    assert main(words) in (1, 2)
    assert "kind" in capsys.readouterr().err
    assert main([*words, "--kind", "jsonl"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    "twice",
    [
        ["--type", "x=int64", "--type", "x=text"],
        ["--split", "a=0.5", "--split", "a=0.5"],
        ["--metadata", "a=1", "--metadata", "a=2"],
    ],
)
def test_an_option_given_twice(tmp_path, capsys, twice) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    assert main(["convert", str(tmp_path / "a.jsonl"), str(tmp_path / "out"), *twice]) == 2
    assert "given twice" in capsys.readouterr().err


def test_a_sample_keeps_its_split_where_a_tar_is_packed_again(convert, tmp_path) -> None:
    members = [(f"{number:03}.txt", b"wren") for number in range(40)]
    found = []
    for number, packed in enumerate((members, [("zzz.txt", b"robin"), *members], members[::-1])):
        folder = tmp_path / f"packed{number}"
        folder.mkdir()
        tar(folder / "a.tar", packed)
        convert(folder, split={"train": 0.5, "val": 0.5}, schema={"__key__": "text", "txt": "text"})
        val = {each["__key__"] for each in shardio.open(convert.url, "val")}
        found.append(val - {"zzz"})
    assert found[0] == found[1] == found[2]
    assert 5 < len(found[0]) < 35


def test_appending_other_metadata(convert, tmp_path) -> None:
    """Metadata that a source would replace is the caller's to decide."""
    for name in ("a", "b"):
        with shardio.DatasetWriter(tmp_path / name, schema={"n": "int64"}, metadata={"from": name}) as out:
            out.write({"n": 1})
    with refused(SchemaError, "metadata="):
        shardio.convert_dataset(tmp_path / "b", tmp_path / "a", mode="append")
    shardio.convert_dataset(tmp_path / "b", tmp_path / "a", mode="append", metadata={"from": "both"})
    reader = shardio.open(tmp_path / "a")
    assert (len(reader), reader.metadata["from"]) == (2, "both")


def test_a_split_of_other_types(tmp_path, capsys) -> None:
    """Splits share one schema: what it holds without loss is taken, the rest refused, and no type changes."""
    (tmp_path / "a.jsonl").write_text('{"n": 1.5}\n')
    (tmp_path / "b.jsonl").write_text('{"n": 1}\n')
    for first, second, code, dtype in (("a", "b", 0, np.float64), ("b", "a", 1, np.int64)):
        url = str(tmp_path / f"d{first}")
        assert main(["convert", str(tmp_path / f"{first}.jsonl"), url, "--split", "train"]) == 0
        words = ["convert", str(tmp_path / f"{second}.jsonl"), url, "--split", "test", "--mode", "append"]
        assert main(words) == code
        assert ("'n'" in capsys.readouterr().err) == bool(code)
        assert [value["n"].dtype for value in shardio.open(url, split="all")] == [dtype] * (2 - code)
    assert main([*words, "--type", "n=float64"]) == 1
    assert "its type changes from int64 to float64" in capsys.readouterr().err


def test_shards_of_a_dataset_are_converted_by_its_manifests(tmp_path):
    """Deleted records, and those that were never committed, do not come with a folder or pattern."""
    with shardio.DatasetWriter(tmp_path / "in") as out:
        for k in range(3):
            out.write(b"%d" % k)
    shardio.delete(tmp_path / "in", [1])
    for url in (f"{tmp_path}/in/data/*.tfrecord", f"{tmp_path}/in/data"):
        with pytest.raises(FormatError, match=f"manifests.*convert {tmp_path}/in, or name"):
            shardio.convert_dataset(url, tmp_path / "out", workers=1)
    shardio.convert_dataset(tmp_path / "in", tmp_path / "out", workers=1)
    assert list(shardio.open(tmp_path / "out")) == [b"0", b"2"]
    (shard,) = (tmp_path / "in" / "data").glob("*.tfrecord")
    shardio.convert_dataset(shard, tmp_path / "all", workers=1)
    assert list(shardio.open(tmp_path / "all")) == [b"0", b"1", b"2"]


def test_a_function_that_would_not_be_called_is_refused(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    for function, error, says in (
        (line_alone, ValueError, "fn= says nothing to a source of kind 'jsonl'"),
        (3, TypeError, "fn= takes a function, found 3"),
    ):
        with pytest.raises(error, match=says):
            shardio.convert_dataset(tmp_path / "a.jsonl", tmp_path / "ds", options={"fn": function})
        assert not (tmp_path / "ds").exists()
