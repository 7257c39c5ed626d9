"""Documents in rows of one length: nothing lost or doubled, no row too long, rows full, always the same."""

from __future__ import annotations

import functools
import itertools
import json
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, strategies as st

import shardio
from shardio.codecs import RaggedColumn
from shardio.errors import BadRecord, SchemaError
from shardio.packing import best_fit
from tests.streaming.datasets import flat, plan
from tests.suites.errors import refused

LENGTH = st.integers(1, 40)


@st.composite
def documents(draw, most=60):
    """Lengths of documents that fit into a row, and that row's length."""
    length = draw(LENGTH)
    return draw(st.lists(st.integers(1, length), max_size=most)), length


def made(lengths):
    """Return a document for each length, no token of which occurs twice."""
    ends = np.cumsum(lengths, dtype=np.int64)
    return [np.arange(end - n, end) + 1 for n, end in zip(lengths, ends, strict=True)]


def runs(row):
    """Return the documents of a row by its segments, one after another, and check all else in it."""
    segments, positions = row["segment_ids"], row["position_ids"]
    assert segments.dtype == positions.dtype == np.int32
    count = int(segments.max(initial=0))
    used = int((segments > 0).sum())
    assert segments[:used].tolist() == sorted(segments[:used].tolist())
    assert not segments[used:].any(), "padding is at the end"
    assert not positions[used:].any()
    found = []
    for number in range(1, count + 1):
        here = segments == number
        assert here.any()
        assert positions[here].tolist() == list(range(int(here.sum())))
        found.append(row["tokens"][here])
    return found


def one_by_one(lengths, length):
    """Best-fit decreasing as the textbook has it; return how full the rows are, sorted."""
    rows: list[int] = []
    for size in sorted(lengths, reverse=True):
        fitting = [row for row in range(len(rows)) if rows[row] + size <= length]
        if fitting:
            rows[max(fitting, key=rows.__getitem__)] += size
        else:
            rows.append(size)
    return sorted(rows)


@given(documents())
def test_best_fit_decreasing_is_that_of_the_textbook(given):
    lengths, length = given
    row = best_fit(np.array(lengths, np.int64), length)
    assert sorted(np.bincount(row, lengths).astype(int).tolist()) == one_by_one(lengths, length)
    # Rows are numbered by their first documents.
    assert list(dict.fromkeys(row.tolist())) == list(range(len(set(row.tolist()))))


@given(documents(), st.integers(0, 3))
def test_every_document_comes_once_and_whole(given, spare):
    """In any buffer: nothing is lost, doubled or cut, and documents stand in order within rows."""
    lengths, length = given
    rows = shardio.pack(
        made(lengths), length, features={"tokens": "int32"}, pad=-1, buffer_tokens=length << spare
    )
    found = []
    last = 0
    for row in rows:
        assert sorted(row) == ["position_ids", "segment_ids", "tokens"]
        for array in row.values():
            assert (array.dtype.name, array.shape) == ("int32", (length,))
        assert (row["tokens"][row["segment_ids"] == 0] == -1).all()
        own = runs(row)
        firsts = [int(document[0]) for document in own]
        assert own
        assert firsts == sorted(firsts)
        found += own
        last += 1
    assert sorted(map(tuple, found)) == sorted(tuple(document.tolist()) for document in made(lengths))
    report = rows.report
    assert (report.records, report.tokens, report.rows) == (len(lengths), sum(lengths), last)
    assert report.fill == (sum(lengths) / (last * length) if last else 1.0)
    assert report.records_skipped == report.records_cut == 0


@given(documents(), st.integers(0, 3))
def test_the_buffer_alone_decides_which_documents_share_rows(given, spare):
    """Each buffer is packed by itself, its rows in the order of their first documents; twice the same."""
    lengths, length = given
    buffer = length << spare

    def packed():
        rows = shardio.pack(made(lengths), length, features={"tokens": "int64"}, buffer_tokens=buffer)
        return [[tuple(document) for document in runs(row)] for row in rows]

    found = packed()
    assert found == packed()
    expected, held = [], []
    for number, document in enumerate(made(lengths)):
        held.append(document)
        if sum(map(len, held)) >= buffer or number == len(lengths) - 1:
            where = best_fit(np.array([*map(len, held)], np.int64), length).tolist()
            part = [
                [tuple(d) for d, r in zip(held, where, strict=True) if r == row]
                for row in range(max(where) + 1)
            ]
            assert [row[0][0] for row in part] == sorted(row[0][0] for row in part)
            expected += part
            held = []
    assert found == expected


@given(st.lists(st.integers(1, 100), max_size=20), LENGTH)
def test_long_documents_are_cut_where_asked(lengths, length):
    rows = shardio.pack(made(lengths), length, features={"tokens": "int64"}, cut=True)
    found = sorted(tuple(piece) for row in rows for piece in runs(row))
    pieces = [tuple(d[k : k + length].tolist()) for d in made(lengths) for k in range(0, len(d), length)]
    assert found == sorted(pieces)
    assert rows.report.records == len(lengths)
    assert rows.report.records_cut == sum(n > length for n in lengths)


def test_features_stay_together():
    records = [
        {"ids": np.arange(n, dtype=np.int32), "loss": np.arange(n) % 2 == 0, "url": "x"} for n in (3, 4, 2)
    ]
    rows = shardio.pack(records, 5, features=["ids", "loss"], pad={"ids": 9})
    assert rows.schema == {
        "ids": "int32[5]", "loss": "bool[5]", "segment_ids": "int32[5]", "position_ids": "int32[5]",
    }  # fmt: skip
    first, second = rows
    assert first["ids"].tolist() == [0, 1, 2, 0, 1]
    assert first["loss"].tolist() == [True, False, True, True, False]
    assert second["ids"].tolist() == [0, 1, 2, 3, 9]
    assert second["loss"].tolist() == [True, False, True, False, False]


def test_values_of_several_numbers_are_packed_too():
    rows = shardio.pack([{"x": np.full((n, 2), n, np.float16)} for n in (2, 1, 3)], 3)
    assert rows.schema["x"] == "float16[3,2]"
    assert [row["x"][:, 1].tolist() for row in rows] == [[2, 2, 1], [3, 3, 3]]


def test_a_producer_may_use_its_array_again():
    def documents():
        array = np.zeros(2, np.int64)
        for n in range(6):
            array[:] = n
            yield array

    found = [row["tokens"].tolist() for row in shardio.pack(documents(), 4)]
    assert found == [[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]]


def test_endless_inputs_need_bounded_memory():
    def endless():
        rng = np.random.default_rng(0)
        while True:
            yield np.zeros(int(rng.integers(1, 500)), np.int32)

    rows = shardio.pack(endless(), 1024, buffer_tokens=1 << 16)
    tracemalloc.start()
    try:
        for _ in itertools.islice(rows, 200):
            pass
        early = tracemalloc.get_traced_memory()[1]
        for _ in itertools.islice(rows, 1000):
            pass
        assert tracemalloc.get_traced_memory()[1] < early + (1 << 18)
    finally:
        tracemalloc.stop()
    assert rows.report.fill > 0.98


def test_a_dataset_of_rows(tmp_path):
    """From one dataset into another, and from many processes; what is read is what was packed."""
    lengths = [5, 1, 7, 3, 3, 8, 2, 2, 6]
    with shardio.DatasetWriter(tmp_path / "documents", schema={"tokens": "uint16[?]"}) as out:
        for document in made(lengths):
            out.write({"tokens": document})
    rows = shardio.pack(shardio.open(tmp_path / "documents"), 8)
    with shardio.DatasetWriter(tmp_path / "rows", schema=rows.schema, compression="zstd") as out:
        for row in rows:
            out.write(row)
    ds = shardio.open(tmp_path / "rows")
    assert ds.schema["tokens"].short == "uint16[8]"
    assert sorted(len(run) for row in ds for run in runs(row)) == sorted(lengths)
    column = shardio.unpack(*(ds.read_batch(range(len(ds)))[name] for name in ("tokens", "segment_ids")))
    assert sorted(tuple(row.tolist()) for row in column) == sorted(tuple(d.tolist()) for d in made(lengths))
    schema = shardio.pack([], 8, features={"tokens": "uint16"}).schema
    assert schema == rows.schema
    report = shardio.write_dataset(
        tmp_path / "twice", [lengths, lengths], packed_item, schema=schema, workers=2
    )
    assert report.records == {"train": 2 * len(ds)}


def packed_item(lengths):
    return shardio.pack(made(lengths), 8, features={"tokens": "uint16"})


@pytest.fixture
def texts(tmp_path):
    """A dataset of documents in two splits."""
    schema = {"title": "text", "tokens": "int32[?]", "weight": "float32[?]"}
    with shardio.DatasetWriter(tmp_path / "documents", schema=schema) as out:
        for number, document in enumerate(made([5, 1, 7, 3, 3, 12, 8, 2, 2, 6])):
            value = {"title": str(number), "tokens": document, "weight": document / 2}
            out.write(value, split="test" if number % 5 == 4 else "train")
    return tmp_path / "documents"


def test_a_dataset_is_packed_split_by_split(texts, tmp_path):
    shown = []
    report = shardio.pack_dataset(
        texts, tmp_path / "rows", 8, cut=True, progress=shown.append, compression="zstd"
    )
    assert (shown[-1].done, shown[-1].total, shown[-1].unit) == (2, 2, "tasks")
    assert json.loads(json.dumps(report.to_dict()))["splits"]["train"]["records_cut"] == 1
    seen = []
    for split in ("test", "train"):
        ds = shardio.open(tmp_path / "rows", split=split, version=report.version)
        assert len(ds) == report.records[split]
        columns = ds.read_batch(range(len(ds)))
        assert (columns["weight"] == columns["tokens"] / 2).all()
        seen += shardio.unpack(columns["tokens"], columns["segment_ids"]).values.tolist()
    assert sorted(seen) == list(range(1, 50))
    with pytest.raises(SchemaError):
        shardio.pack_dataset(texts, tmp_path / "other", 8)
    assert not [path for path in (tmp_path / "other").rglob("*") if path.is_file()]
    with refused(ValueError, "'x'"):
        shardio.pack_dataset(texts, tmp_path / "other", 8, features=["x"])
    for wrong in ("x", b"x", {"x": "int32"}, 5):
        with refused(TypeError, "features="):
            shardio.pack_dataset(texts, tmp_path / "other", 8, features=wrong)
        with refused(TypeError, "features="):
            shardio.pack_columns({}, 8, features=wrong)
    with pytest.raises(ValueError, match="only numbers are packed"):
        shardio.pack_dataset(texts, tmp_path / "other", 8, features=["title"])
    with pytest.raises(ValueError, match="holds numbers of differing length"):
        shardio.pack_dataset(tmp_path / "rows", tmp_path / "other", 8)


def test_parts_are_packed_wherever_there_is_room(texts, tmp_path, monkeypatch):
    whole = shardio.pack_dataset(texts, tmp_path / "whole", 8, on_error="skip")
    monkeypatch.setattr("shardio.convert._pack._PART_BYTES", 100)
    here = shardio.pack_dataset(texts, tmp_path / "here", 8, on_error="skip")
    with ThreadPoolExecutor(2) as executor:
        there = shardio.pack_dataset(texts, tmp_path / "there", 8, on_error="skip", executor=executor)
        with pytest.raises(SchemaError):
            shardio.pack_dataset(texts, tmp_path / "other", 8, executor=executor)
    assert there.splits == here.splits
    assert (
        shardio.pack_dataset(texts, tmp_path / "new", 8, on_error="skip", dry_run=True).splits == here.splits
    )
    assert here.splits["train"].skipped == whole.splits["train"].skipped
    assert here.splits["train"].tokens == whole.splits["train"].tokens
    assert here.records["train"] > whole.records["train"], "each part has a last row of its own"
    rows = [shardio.open(tmp_path / name, split="train")[:] for name in ("here", "there")]
    assert [row["tokens"].tolist() for row in rows[0]] == [row["tokens"].tolist() for row in rows[1]]


def test_the_command_packs_and_lists_what_it_left_out(texts, tmp_path, capsys):
    from shardio.cli import main

    arguments = [
        "pack",
        str(texts),
        str(tmp_path / "rows"),
        "--length",
        "8",
        "--features",
        "tokens",
        "--quiet",
    ]
    assert main([*arguments, "--skip"]) == 1
    said = capsys.readouterr().out
    assert "split train, record 4: a document is longer than the row" in said
    assert "  train: 7 documents, 28 tokens, 4 rows of 8, 87.50% full; 1 left out" in said
    assert main([*arguments, "--cut", "--mode", "overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == {"test": 2, "train": 5}
    assert main([*arguments, "--mode", "overwrite"]) in (1, 2, 3)
    assert "cut=True" in capsys.readouterr().err


BAD = {
    "too long": (np.arange(1, 7), "longer than the row .* expected at most 5 tokens, found 6"),
    "empty": ([], "has no tokens"),
    "other type": ([0.5], "value of feature 'tokens' does not fit"),
    "text": ("abc", "value of feature 'tokens' does not fit"),
    "two dimensions": (np.zeros((2, 2), int), "does not fit"),
    "missing": ({"ids": [1]}, "lacks the feature 'tokens'"),
    "one more": ({"tokens": [1], "mask": [1]}, "would be lost"),
    "none": (None, "does not fit"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_document_that_cannot_be_packed(name):
    """An error that names its number; or left out, counted and listed, where that was asked for."""
    bad, reason = BAD[name]
    records = [[1, 2], bad, [3, 4, 5]]
    with pytest.raises(SchemaError, match=rf"(?s){reason}") as caught:
        list(shardio.pack(records, 5))
    assert caught.value.row == 1
    rows = shardio.pack(records, 5, on_error="skip")
    assert [row["tokens"].tolist() for row in rows] == [[1, 2, 3, 4, 5]]
    report = rows.report
    assert (report.records, report.records_skipped) == (2, 1)
    assert isinstance(report.skipped[0], BadRecord)
    assert report.skipped[0].where == "record 1"
    assert json.loads(json.dumps(report.to_dict()))["skipped"][0]["where"] == "record 1"
    assert str(report) == "2 documents, 5 tokens, 1 rows of 5, 100.00% full; 1 left out"


def test_features_that_are_not_packed_may_be_empty():
    """A title without words says nothing about the tokens, which the first record gives a type to."""
    records = [{"tokens": [1, 2, 3], "title": ""}, {"tokens": [4], "title": "x"}]
    for on_error in ("raise", "skip"):
        rows = shardio.pack(records, 4, features=["tokens"], on_error=on_error)
        assert rows.schema["tokens"] == "int64[4]"
        assert [row["tokens"].tolist() for row in rows] == [[1, 2, 3, 4]]
        assert (rows.report.records, rows.report.records_skipped) == (2, 0)
        rows = shardio.pack(records, 4, features=["tokens"], on_error=on_error)
        assert [row["tokens"].tolist() for row in rows] == [[1, 2, 3, 4]]
    # Of what is packed it still tells no type.
    rows = shardio.pack([{"tokens": [], "title": "x"}, *records], 4, features=["tokens"], on_error="skip")
    assert rows.schema["tokens"] == "int64[4]"
    assert [row["tokens"].tolist() for row in rows] == [[1, 2, 3, 4]]
    assert [each.where for each in rows.report.skipped] == ["record 0"]


def test_differing_lengths_in_one_document():
    with refused(SchemaError, "'b'", "'a'") as caught:
        list(shardio.pack([{"a": [1], "b": [2]}, {"a": [1, 2, 3], "b": [1, 2]}], 5))
    assert caught.value.row == 1


def test_many_are_counted_and_the_first_are_listed():
    rows = shardio.pack(([1] * 9 for _ in range(2500)), 5, on_error="skip")
    assert list(rows) == []
    assert (rows.report.records_skipped, len(rows.report.skipped), rows.report.fill) == (2500, 1000, 1.0)


def test_nothing_makes_no_rows():
    assert list(shardio.pack([], 5)) == []
    with pytest.raises(ValueError, match="there are no records to tell the types by"):
        _ = shardio.pack([], 5).schema
    rows = shardio.pack([[], [1.5], []], 2, on_error="skip")
    assert rows.schema["tokens"] == "float64[2]"
    assert [row["tokens"].tolist() for row in rows] == [[1.5, 0.0]]
    assert [bad.where for bad in rows.report.skipped] == ["record 0", "record 2"]


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"length": 0}, ValueError, "length=0 must be"),
        ({"length": 4, "features": "tokens"}, TypeError, r"features=\['tokens'\]"),
        ({"length": 4, "features": [1]}, TypeError, "takes a list of names, found .1,"),
        ({"length": 4, "features": 5}, TypeError, "takes a list of names, found 5"),
        ({"length": 4, "features": []}, ValueError, "names no feature"),
        ({"length": 4, "features": {"tokens": "text"}}, ValueError, "only numbers are packed"),
        ({"length": 4, "features": {"tokens": "int32[3]"}}, ValueError, r"may differ: int32\[\?\]"),
        ({"length": 4, "features": {"segment_ids": "int32"}}, ValueError, "rename"),
        ({"length": 4, "features": ["other"]}, ValueError, "lacks the feature 'other'"),
        ({"length": 4, "features": {"tokens": "uint8"}, "pad": -1}, ValueError, "pad=-1 does not fit"),
        ({"length": 4, "pad": {"other": 1}}, ValueError, "names 'other'"),
        ({"length": 4, "on_error": "ignore"}, ValueError, "on_error='ignore'"),
        ({"length": 4, "buffer_tokens": 3}, ValueError, "at least length=4"),
    ],
)
def test_options_that_make_no_sense(options, error, reason):
    with pytest.raises(error, match=reason):
        list(shardio.pack([[1, 2]], **options))


def test_records_of_text_are_told_what_to_name():
    with refused(ValueError, "'url'", "features="):
        list(shardio.pack([{"tokens": [1], "url": "x"}], 4))


def column_of(lengths, dtype=np.int32):
    return RaggedColumn.of_rows(made(lengths), np.dtype(dtype))


@given(st.lists(st.integers(0, 60), max_size=30), LENGTH)
def test_a_step_is_packed_as_a_dataset_is(lengths, length):
    """The same rows as `pack` makes of the documents in one buffer; other columns stay."""
    columns = {
        "tokens": column_of(lengths),
        "mask": column_of(lengths, np.float32),
        "n": np.arange(len(lengths)),
    }
    packed = shardio.pack_columns(columns, length, cut=True, pad={"tokens": -1})
    rows = [document for document in made(lengths) if len(document)]
    expected = list(shardio.pack(rows, length, features={"tokens": "int32"}, cut=True, pad=-1))
    assert packed["n"].tolist() == list(range(len(lengths)))
    for name in ("tokens", "segment_ids", "position_ids"):
        assert packed[name].dtype == np.int32
        assert packed[name].shape == (len(expected), length)
        assert packed[name].tolist() == [row[name].tolist() for row in expected]
    assert (packed["mask"] == np.where(packed["segment_ids"] > 0, packed["tokens"], 0)).all()
    back = shardio.unpack(packed["tokens"], packed["segment_ids"])
    assert [run.tolist() for run in back] == [run.tolist() for row in expected for run in runs(row)]


def test_a_number_of_rows():
    packed = shardio.pack_columns({"tokens": column_of([2, 3])}, 4, rows=3)
    assert packed["tokens"].tolist() == [[1, 2, 0, 0], [3, 4, 5, 0], [0, 0, 0, 0]]
    assert packed["segment_ids"][2].tolist() == [0, 0, 0, 0]
    assert shardio.pack_columns({"tokens": column_of([])}, 4, rows=2)["tokens"].shape == (2, 4)
    with refused(ValueError, "rows="):
        shardio.pack_columns({"tokens": column_of([2, 3])}, 4, rows=1)


@pytest.mark.parametrize(
    ("columns", "options", "error", "reason"),
    [
        ({"tokens": column_of([2, 9])}, {}, SchemaError, "row 1.*expected at most 8 tokens, found 9"),
        ({"a": column_of([2, 3]), "b": column_of([2, 4])}, {}, SchemaError, "row 1.*expected 3 of 'b'"),
        (
            {"a": column_of([2]), "b": column_of([2, 4])},
            {},
            SchemaError,
            "numbers of documents: found 1 of 'a', 2 of 'b'",
        ),
        ({"n": np.arange(3)}, {}, ValueError, r"no ragged column to pack among \['n'\]"),
        ({"n": np.arange(3)}, {"features": ["n"]}, TypeError, "column 'n' is not a ragged column"),
        ({"n": ["a"]}, {"features": ["n"]}, TypeError, "column 'n' is not a ragged column"),
        ({"t": [np.zeros(2), np.zeros(1, int)]}, {"features": ["t"]}, TypeError, "of different types"),
        ({"t": column_of([1])}, {"features": ["s"]}, ValueError, "no column 's'"),
        ({"t": column_of([1]), "segment_ids": 0}, {}, ValueError, "rename"),
        ({"t": RaggedColumn(np.arange(3), np.array([0, 3, 1]))}, {}, ValueError, "negative length"),
        ([column_of([1])], {}, TypeError, "found list"),
    ],
)
def test_steps_that_cannot_be_packed(columns, options, error, reason):
    with pytest.raises(error, match=f"(?s){reason}"):
        shardio.pack_columns(columns, 8, **options)


@pytest.mark.parametrize(("values", "segments"), [((2, 3), (2, 4)), ((3,), (3,))])
def test_what_cannot_be_unpacked(values, segments):
    with pytest.raises(ValueError, match="must begin with the same two sizes"):
        shardio.unpack(np.zeros(values), np.zeros(segments, int))


def test_packed_steps_stay_exact_on_any_number_of_ranks(tmp_path):
    """The documents of step s are the same on one rank and on three, before and after a resume."""
    url = tmp_path / "d"
    lengths = (np.random.default_rng(0).integers(1, 9, 200)).tolist()
    with shardio.DatasetWriter(url, schema={"tokens": "int64[?]"}, block_bytes=256) as out:
        for document in made(lengths):
            out.write({"tokens": document})
    transform = functools.partial(shardio.pack_columns, length=16)

    def stream(rank=0, world_size=1):
        return shardio.stream(
            shardio.open(url), global_batch=12, seed=5, plan=plan(ranks=3, workers=2), remainder="keep",
            rank=rank, world_size=world_size, batch_transform=transform,
        )  # fmt: skip

    def documents_of(batch):
        return [tuple(row.tolist()) for row in shardio.unpack(batch["tokens"], batch["segment_ids"])]

    alone = stream()
    expected = [sorted(documents_of(batch)) for batch in alone]
    assert sorted(flat(expected)) == sorted(tuple(document.tolist()) for document in made(lengths))
    state = None
    for ranks, until in ((3, 5), (2, 11), (1, len(expected))):
        streams = [stream(rank, ranks) for rank in range(ranks)]
        for each in streams:
            if state is not None:
                each.load_state_dict(state)
            assert len(each) == len(expected)
        start = streams[0].step
        shares = [
            [documents_of(batch) for batch in itertools.islice(each, until - start)] for each in streams
        ]
        for step, share in enumerate(zip(*shares, strict=True), start):
            assert sorted(flat(share)) == expected[step]
        state = streams[0].state_dict()
        assert state["step"] == until
