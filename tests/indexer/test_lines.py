"""Lines: what a reader makes of a line decides what adoption takes; one decoder says it everywhere."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import shardio
import shardio_indexer
from shardio.adoption._commit import Changeset, commit_shards
from shardio.catalog import Catalog
from shardio.errors import FormatError
from shardio.storage import connect
from shardio_indexer._lines import LineFramer
from tests.indexer.shards import frames_of, scan

BAD = {
    "cut": b'{"a": 1}\n{"a": 2',
    "not json": b'{"a": 1}\nhello\n',
    "NaN": b'{"a": 1}\n{"a": NaN}\n',
    "twice": b'{"a": 1}\n{"a": 1, "a": 2}\n',
    "latin-1": b'{"a": 1}\n"\xe9"\n',
    "mark inside": b'{"a": 1}\n\xef\xbb\xbf{"a": 2}\n',
    "deep": b'{"a": 1}\n' + b"[" * 300 + b"]" * 300 + b"\n",
    "nul": b'{"a": 1}\n\x00\n',
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_what_cannot_be_read_is_refused(tmp_path, data, packed) -> None:
    """A line that the reader would refuse is refused with its place; conversion skips it, as advised."""
    path = tmp_path / ("x.jsonl.gz" if packed else "x.jsonl")
    path.write_bytes(gzip.compress(data) if packed else data)
    report = shardio_indexer.adopt(path, into=tmp_path / "a")
    (refusal,) = report.refused
    assert refusal.url == str(path)
    assert (refusal.error.row, refusal.error.start) == (1, 9)
    assert "convert --skip" in refusal.error.advice
    report = shardio.convert_dataset(path, tmp_path / "b", on_error="skip")
    assert len(report.skipped) == 1
    assert list(shardio.open(tmp_path / "b")) == [{"a": 1}]


@pytest.mark.parametrize("packed", [False, True])
def test_a_mark_and_blank_lines_are_no_records(tmp_path, packed) -> None:
    """What convert steps over adoption steps over, too, and counts it."""
    data = b'\xef\xbb\xbf\n{"a": 1}\r\n \t\r\n\n[2]\n\n'
    path = tmp_path / ("x.jsonl.gz" if packed else "x.jsonl")
    path.write_bytes(gzip.compress(data) if packed else data)
    report = shardio_indexer.adopt(path)
    assert (report.ok, report.records) == (True, 2)
    assert "blank lines left out: 4" in report.notes
    ds = shardio.open(tmp_path)
    assert [value["a"] for value in ds] == [1, None]
    assert ds[1]["value"].tolist() == [2]
    assert shardio.open(tmp_path, decode=False)[0] == b'{"a": 1}'
    assert shardio.verify(tmp_path).ok


@pytest.mark.parametrize("name", ["x.jsonl", "x.txt"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_wide_encodings_are_named(tmp_path, name, encoding) -> None:
    (tmp_path / name).write_text('{"a": 1}\n', encoding=encoding)
    (refusal,) = shardio_indexer.adopt(tmp_path / name).refused
    assert encoding.upper() in str(refusal.error)
    assert "iconv" in str(refusal.error)


def test_text_is_utf_8_unless_it_is_declared_to_be_bytes(tmp_path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes("\ufeffwren\n\nröbin\n".encode() + b"caf\xe9\n")
    (refusal,) = shardio_indexer.adopt(path, into=tmp_path / "a").refused
    assert (refusal.error.row, refusal.error.start) == (3, 16)
    options = {"allow_roots": {str(tmp_path): {}}}
    shardio_indexer.adopt(path, into=tmp_path / "c", schema={"line": "bytes"})
    assert shardio.open(tmp_path / "c", **options)[3] == b"caf\xe9"


def test_jsonl_may_be_declared_to_be_text(tmp_path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"no json\n\n")
    said = ({"schema": {"line": "text"}, "encoding": "bytes"}, {"schema": False},
            {"scan": shardio_indexer.ScanOptions(format="text")})  # fmt: skip
    for number, options in enumerate(said):
        into = tmp_path / str(number)
        assert shardio_indexer.adopt(path, into=into, **options).ok
        assert list(shardio.open(into, allow_roots={str(tmp_path): {}})) == ["no json", ""]


LINES = st.lists(
    st.sampled_from(
        [
            b"1",
            b"",
            b" ",
            b'{"a":"\xc3\xa9"}',
            b"[1,2]\r",
            b'{"\\u0061":1}',
        ]
    ),
    max_size=12,
)


@given(LINES, st.booleans(), st.booleans(), st.lists(st.integers(0, 60), max_size=6))
def test_pieces_do_not_matter(lines, mark, ended, cuts) -> None:
    """However the bytes arrive: records are the lines that Python reads, and every byte is in one run."""
    data = (b"\xef\xbb\xbf" if mark else b"") + b"\n".join(lines) + (b"\n" if ended and lines else b"")
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    framer = LineFramer(content="json")
    runs = [run for a, b in itertools.pairwise(places) for run in framer.feed(data[a:b])]
    runs += framer.end()
    assert b"".join(bytes(run.data) for run in runs) == data
    wanted = []
    for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        try:
            wanted.append(json.loads(line.decode()))
        except ValueError:
            continue
    found, begun = [], b""
    for run in runs:
        if run.reason is not None:
            begun = b""
        elif run.stops is None:
            begun += run.data
        else:
            start = 0
            for stop in run.stops.tolist():
                found.append(json.loads(begun + bytes(run.data[start:stop])))
                begun, start = b"", stop
    assert found == wanted


@pytest.mark.slow
def test_the_number_of_gaps_is_bounded() -> None:
    data = b"1\n\n" * 70_000
    with pytest.raises(FormatError):
        scan(data, "x.jsonl")
    head, frames = frames_of(scan(b"1\n\n" * 1000, "x.jsonl").index.read())
    assert (head.rows, len(frames)) == (1000, 1000)


@pytest.mark.parametrize(
    "schema",
    [
        shardio.Schema({"json": shardio.Feature("json")}, encoding="bytes"),
        shardio.Schema({"a": shardio.Feature("int64")}),
    ],
    ids=["whole lines", "objects"],
)
def test_verify_reads_json_as_the_reader_does(tmp_path, schema) -> None:
    """Lines that were adopted before they were looked at: what cannot be read is found."""
    path = Path(tmp_path / "x.txt")
    path.write_bytes(b'{"a": 1}\nno json\n{"a": NaN}\n')
    shardio_indexer.adopt(path, schema=False)
    assert shardio.verify(tmp_path).ok
    catalog = Catalog(connect(str(tmp_path)))
    commit_shards(catalog, Changeset(additions=[], schema=schema, replaces=True), base=catalog.latest())
    report = shardio.verify(tmp_path)
    assert [(finding.kind, finding.row, finding.row_stop) for finding in report.findings] == [
        ("record", 1, 3)
    ]
    assert report.good_records == 1
