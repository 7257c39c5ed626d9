"""The law of exports: what was exported comes back equal, from shardio and from the format's own library, or
the export is refused, with the name of the feature.  Random schemas and records, every kind of target.
"""

from __future__ import annotations

import base64
import io
import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra import numpy as npst

import shardio
from shardio.errors import SchemaError, ShardioError, StorageError
from shardio.metadata import image_type
from tests.convert.conftest import library_samples, picture

PICTURES = [picture(n, form) for n in range(2) for form in ("JPEG", "PNG", "BMP", "GIF")]
NUMBERS = (
    "bool", "int8", "int64", "uint16", "uint64", "float16", "float32", "float64", "bfloat16", "complex64",
)  # fmt: skip
NAMES = st.sampled_from(
    ["a", "A", "a.txt", "a.json", "b", "cls", "label", "id", "json", "x.npy", "x", "path", "raw", "a/b", ".c",
     "long_name", "$base64", "__key__", "a__", "ü", "a b", "__m__", "txt", "jpg"]
)  # fmt: skip
WORDS = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    ["7", "007", "null", "NaN", "\x00"]
)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS
    | st.sampled_from([{"$base64": "aGk="}, {"$float": "NaN"}, "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@st.composite
def features(draw: Any) -> shardio.Feature:
    kind = draw(st.sampled_from([*NUMBERS, "text", "bytes", "json", "jpeg", "image"]))
    sizes: Any = ()
    if kind in NUMBERS:
        sizes = draw(st.sampled_from([(), (), (2,), (None,), (None, 2), (None, None), (2, None, 3)]))
    elif kind in ("text", "bytes"):
        sizes = draw(st.sampled_from([(), (), (None,), (2,)]))
    return shardio.Feature(kind, shape=sizes, optional=draw(st.booleans()))


def values(feature: shardio.Feature, name: str) -> Any:
    if feature.kind == "number":
        dtype = np.dtype("<f4") if feature.type == "bfloat16" else feature.dtype
        assert dtype is not None
        shape = st.tuples(*(st.integers(0, 3) if size is None else st.just(size) for size in feature.shape))
        made = shape.flatmap(lambda sizes: npst.arrays(dtype, sizes))
        if feature.type == "bfloat16":
            made = made.filter(lambda array: bool((abs(np.nan_to_num(array)) < 1e38).all()))
        return made
    if feature.kind == "json":
        return DOCUMENTS
    if feature.kind == "image":
        return st.sampled_from([each for each in PICTURES if feature.type in ("image", image_type(each))])
    keys = st.sampled_from(["k", "d/k", "0", "__x__/a", "__y", "k.l", "../k", "./k", ""])
    item: Any = WORDS if feature.kind == "text" else st.binary(max_size=6)
    if not feature.shape:
        return keys | WORDS if name in ("__key__", "path") and feature.kind == "text" else item
    size = feature.shape[0]
    return st.lists(item, min_size=size or 0, max_size=3 if size is None else size)


@st.composite
def datasets(draw: Any) -> tuple[dict[str, shardio.Feature], list[dict[str, Any]]]:
    schema = draw(st.dictionaries(NAMES, features(), min_size=1, max_size=4))
    if "__key__" in schema and draw(st.booleans()):
        schema["__key__"] = shardio.Feature("text")
    record = st.fixed_dictionaries(
        {name: values(feature, name) for name, feature in schema.items() if not feature.optional},
        optional={name: values(feature, name) for name, feature in schema.items() if feature.optional},
    )
    return schema, draw(st.lists(record, min_size=1, max_size=4))


def plain(value: Any, feature: shardio.Feature | None = None) -> Any:
    """Return a value as something that `==` compares: bits of floats, with one NaN."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if feature is not None and feature.type == "bfloat16" and array.dtype.kind == "u":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        return plain(array.tolist()), list(array.shape)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, complex):
        return "complex", plain(value.real), plain(value.imag)
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (value, math.copysign(1, value))
    return (type(value).__name__, value) if isinstance(value, bool | int) else value


def compare(found: Any, wanted: Any, name: str, feature: shardio.Feature) -> None:
    assert plain(found, feature) == plain(wanted, feature), (name, feature)


class Trial:
    """One dataset, exported and read back in a folder of its own."""

    def __init__(
        self, folder: Path, kind: str, schema: dict[str, Any], records: list[dict[str, Any]]
    ) -> None:
        self.folder, self.schema = folder, shardio.Schema.parse(schema)
        with shardio.DatasetWriter(folder / "dataset", schema=self.schema) as out:
            for record in records:
                out.write(record)
        self.wanted = list(shardio.open(folder / "dataset"))
        self.exported = self._export(kind)

    def _export(self, kind: str) -> bool:
        try:
            shardio.export_dataset(self.folder / "dataset", self.folder / "out", kind=kind)
        except (ShardioError, ValueError) as error:
            refused = str(error)
            general = (
                "needs columns",
                "needs members",
                "needs records with one image",
                "lead out of the target",
            )
            wide = any(words in refused for words in (*general, "same file name", "name for a folder"))
            assert wide or any(repr(name) in refused for name in self.schema), refused
            assert not (self.folder / "out").exists()
            return False
        return True

    def converted(self, schema: Any = None) -> list[Any]:
        shardio.convert_dataset(self.folder / "out", self.folder / "back", schema=schema)
        return list(shardio.open(self.folder / "back"))


@pytest.fixture(scope="module", name="trial")
def trial_fixture() -> Iterator[Any]:
    made: list[Path] = []

    def make(kind: str, dataset: Any) -> Trial:
        while made:
            shutil.rmtree(made.pop(), ignore_errors=True)
        made.append(Path(tempfile.mkdtemp()))
        return Trial(made[-1], kind, *dataset)

    yield make
    for folder in made:
        shutil.rmtree(folder, ignore_errors=True)


LAW = settings(
    max_examples=max(8, settings().max_examples // 10),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@LAW
@given(dataset=datasets())
def test_parquet(trial, dataset) -> None:
    """Values and types by themselves, and values through pyarrow."""
    import pyarrow.parquet as pq

    one = trial("parquet", dataset)
    if not one.exported:
        return
    for found, wanted in zip(one.converted(), one.wanted, strict=True):
        for name, feature in one.schema.items():
            compare(found[name], wanted[name], name, feature)
    (file,) = (one.folder / "out").iterdir()
    back = shardio.open(one.folder / "back").schema
    assert {name: feature.short for name, feature in back.items() if feature.type != "float32"} == {
        name: feature.short
        for name, feature in one.schema.items()
        if feature.type not in ("float32", "bfloat16")
    }
    for row, wanted in zip(pq.read_table(file).to_pylist(), one.wanted, strict=True):
        for name, feature in one.schema.items():
            item = row[name]
            if feature.kind == "json":
                if item is not None or not feature.optional:
                    compare(json.loads(item), wanted[name], name, feature)
            elif feature.kind == "number" and item is not None:
                dtype = np.dtype("<f4") if feature.type == "bfloat16" else feature.dtype
                compare(np.asarray(item, dtype).reshape(np.shape(wanted[name])), wanted[name], name, feature)
            else:
                compare(item, wanted[name], name, feature)


@LAW
@given(dataset=datasets())
def test_jsonl(trial, dataset) -> None:
    """Values with the types given, and through `json` of Python as documents of strict JSON."""
    one = trial("jsonl", dataset)
    if not one.exported:
        return

    def no_constant(name: str) -> Any:
        raise AssertionError(name)

    for line, wanted in zip(
        (one.folder / "out" / "train.jsonl").read_text("utf-8").split("\n"), [*one.wanted, None], strict=True
    ):
        if wanted is None:
            assert not line
            continue
        value = json.loads(line, parse_constant=no_constant)
        for name, feature in one.schema.items():
            if feature.kind in ("json", "text") or (
                feature.kind == "number" and feature.type.startswith("i")
            ):
                expected = (
                    wanted[name].tolist() if feature.kind == "number" and name in value else wanted[name]
                )
                assert plain(value.get(name)) == plain(expected)
            elif feature.kind == "bytes" and not feature.shape and wanted[name] is not None:
                assert base64.b64decode(value[name]["$base64"]) == wanted[name]
    shown = {name for value in one.wanted for name, item in value.items() if item is not None}
    shown |= {name for name, feature in one.schema.items() if not feature.optional}
    for found, wanted in zip(one.converted(one.schema), one.wanted, strict=True):
        for name in shown:
            compare(found[name], wanted[name], name, one.schema[name])


def members(path: Path) -> list[dict[str, Any]]:
    """Return the samples of tar files as the webdataset library gives them."""
    return [sample for file in sorted(path.glob("*.tar")) for sample in library_samples(file)]


@LAW
@given(dataset=datasets())
def test_webdataset(trial, dataset) -> None:
    """Every sample and member through webdataset, and values with the types given."""
    one = trial("webdataset", dataset)
    if not one.exported:
        return
    samples = members(one.folder / "out")
    assert len(samples) == len(one.wanted)
    given: dict[str, Any] = {"__key__": shardio.Feature("text")}
    names: dict[str, str] = {}
    for sample, wanted in zip(samples, one.wanted, strict=True):
        present = [name for name in one.schema if wanted[name] is not None or not one.schema[name].optional]
        # Members stand in the order of the features: of `a.txt` and `A.cls`, which the library writes alike,
        # that tells which one was `A`.
        features_of = [name for name in present if name != "__key__"]
        members_of = [member for member in sample if member != "__key__"]
        member_by_name = dict(zip(features_of, members_of, strict=True))
        for name in present:
            member = member_by_name.get(name, "__key__")
            assert name.lower() in (member, member.rpartition(".")[0]), (name, list(sample))
            names[name] = member
            feature = one.schema[name]
            if name != "__key__":
                given[member] = feature
            if feature.kind in ("bytes", "image"):
                assert sample[member] == wanted[name]
            elif name == "__key__":
                assert sample[member] == str(wanted[name])
            elif feature.kind == "number" and member.endswith("npy"):
                compare(np.load(io.BytesIO(sample[member])), wanted[name], name, feature)
    for found, wanted in zip(one.converted(shardio.Schema.parse(given)), one.wanted, strict=True):
        for name, member in names.items():
            if name != "__key__":
                compare(found[member], wanted[name], name, one.schema[name])


@LAW
@given(
    labels=st.lists(st.sampled_from(["ant", "bee", "10", "2"]), unique=True, min_size=1),
    records=st.lists(
        st.tuples(
            st.sampled_from([*PICTURES, b"P5 1 1 255 x"]),
            st.integers(0, 4),
            st.sampled_from([None, "ant/a.jpg", "bee/b.png", "c.jpg", "ant/.h.jpg", "ant/x", "../x.jpg"]),
        ),
        min_size=1,
        max_size=4,
    ),
    split=st.sampled_from(["train", "test"]),
    named=st.booleans(),
)
def test_images(tmp_path_factory, labels, records, split, named) -> None:
    """The same files, in the folders of the classes that the labels name."""
    if named:
        records = [(image, label % len(labels), path) for image, label, path in records]
    folder = tmp_path_factory.mktemp("images")
    schema = {
        "image": "image",
        "label": shardio.Feature("int64", classes=labels) if named else "int64",
        "path": shardio.Feature("text", optional=True),
        "note": shardio.Feature("text", default="x"),
    }
    with shardio.DatasetWriter(folder / "dataset", schema=schema) as out:
        for image, label, path in records:
            value = {"image": image, "label": label}
            out.write(value | ({} if path is None else {"path": path}), split=split)
    try:
        report = shardio.export_dataset(folder / "dataset", folder / "out", kind="images")
    except (SchemaError, ShardioError) as error:
        assert any(words in str(error) for words in ("'image'", "'path'", "lead out", "same file name"))  # noqa: PT017
        return
    assert "note" in report.notes[0]
    shardio.convert_dataset(folder / "out", folder / "back", options={"check_images": False})
    back = shardio.open(folder / "back")
    found = sorted((value["image"], back.schema["label"].classes[value["label"]]) for value in back)
    name = dict(enumerate(labels)) if named else {}
    assert found == sorted((image, name.get(label, str(label))) for image, label, _ in records)


@LAW
@given(dataset=datasets())
def test_mds(trial, dataset) -> None:
    """Values with the types given, those without a type in MDS as the report says that they are there."""
    one = trial("mds", dataset)
    if not one.exported:
        return
    given = {}
    for name, feature in one.schema.items():
        kind = {"bool": "uint8", "bfloat16": "float32", "image": "bytes"}.get(feature.type, feature.type)
        kind = "json" if feature.type == "text" and feature.shape else kind
        given[name] = shardio.Feature(
            kind, shape=() if kind == "json" else feature.shape, optional=kind == "json"
        )
    for found, wanted in zip(one.converted(shardio.Schema.parse(given)), one.wanted, strict=True):
        for name, feature in one.schema.items():
            expected = wanted[name]
            if feature.type == "bool":
                expected = np.asarray(expected, np.uint8)
            compare(found[name], expected, name, feature)


@LAW
@given(dataset=datasets())
def test_tfrecord(trial, dataset) -> None:
    """The same payloads."""
    one = trial("tfrecord", dataset)
    assert one.exported
    one.converted()
    assert list(shardio.open(one.folder / "back", decode=False)) == list(
        shardio.open(one.folder / "dataset", decode=False)
    )


def test_a_place_where_no_folder_can_be_made(tmp_path) -> None:
    """A bare OSError of the system."""
    with shardio.DatasetWriter(tmp_path / "d", {"n": "int64"}) as out:
        out.write({"n": 1})
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError) as caught:
        shardio.export_dataset(tmp_path / "d", tmp_path / "file" / "in" / "out", kind="jsonl")
    assert caught.value.url == str(tmp_path / "file" / "in")
