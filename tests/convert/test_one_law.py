"""One law for all formats: a file is converted, or adopted, into the values that its own library reads.

The libraries of the test environment read the files here: pyarrow, pandas, datasets, webdataset, Pillow.  The
others have read the golden files once: mosaicml-streaming, TensorFlow, tfds, codewithgpu, and torchrecord.
Megatron's files have no library of their own; they are written here by the published layout.
"""

from __future__ import annotations

import base64
import bz2
import csv
import gzip
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import csv as arrow_csv, feather, parquet

import shardio
from shardio import codecs
from tests.convert.conftest import FOREIGN, TENSORFLOW, library_samples, picture
from tests.convert.test_megatron import write as write_megatron
from tests.format.test_streams import with_window
from tests.indexer.shards import tar, tfrecord
from tests.sources.test_tfds import NOTHING, SPLITS, VALUES, VERSION, as_bytes, flat

ROWS = 40
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.uint16()),
        "small": pa.array([n / 4 for n in range(ROWS)], pa.float32()),
        "name": [f'naïve, "{n}"\nline' for n in range(ROWS)],
        "data": [bytes([n]) * n for n in range(ROWS)],
        "tokens": pa.array([[1] * (n % 4) for n in range(ROWS)], pa.list_(pa.int32())),
        "box": pa.array([[n, 1, 2, 3] for n in range(ROWS)], pa.list_(pa.float64(), 4)),
        "maybe": [None if n % 5 == 0 else n for n in range(ROWS)],
        "words": [["a", str(n)] for n in range(ROWS)],
        "flag": [n % 2 == 0 for n in range(ROWS)],
        "place": [{"x": n, "y": str(n)} for n in range(ROWS)],
    }
)
SHORTS = {
    "id": "uint16", "small": "float32", "name": "text", "data": "bytes", "tokens": "int32[?]",
    "box": "float64[4]", "maybe": "int64", "words": "text[?]", "flag": "bool", "place.x": "int64",
    "place.y": "text",
}  # fmt: skip
PLAIN = TABLE.select(["id", "small", "name", "maybe", "flag"])
Records = list[dict[str, Any]]


class Format(NamedTuple):
    """How a source of a format is made, and what its own library reads of it.

    Attributes:
        kind: as reports name it.
        make: makes the source in an empty folder and returns it.
        read: reads the source with the library; values by feature.
        options: of the conversion.
        adopted: the source can be read in place, too; False, or what `adopt` is told about it.
        types: types of features, or None.
    """

    kind: str
    make: Callable[[Path], Path]
    read: Callable[[Path], Records]
    options: dict[str, Any] | None = None
    adopted: dict[str, Any] | bool = False
    types: dict[str, str] | None = None


def raw(text: str) -> bytes:
    return base64.b64decode(text)


def golden(name: str, expected: str, values_of: Callable[[Any], dict[str, Any]]) -> tuple[Any, Any]:
    """Return how a golden folder is copied, and what its own library has read of it."""

    def make(folder: Path) -> Path:
        source, place = FOREIGN / name, folder / Path(name).name
        return Path((shutil.copytree if source.is_dir() else shutil.copy)(source, place))

    def read(_: Path) -> Records:
        return list(map(values_of, json.loads((FOREIGN / expected).read_text(encoding="utf-8"))))

    return make, read


def arrow_file(new: Callable[..., Any], table: pa.Table) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        with pa.OSFile(str(folder / "a.arrow"), "wb") as file, new(file, table.schema) as out:
            out.write_table(table, max_chunksize=8)
        return folder / "a.arrow"

    return make


def table_file(write: Callable[[Path], Any], name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        write(folder / name)
        return folder / name

    return make


def flat_rows(table: pa.Table) -> Records:
    """Return the rows of a table with its structs taken apart."""
    return [dict(row) for row in table.flatten().to_pylist()]


def frame_rows(frame: pd.DataFrame) -> Records:
    return [
        {name: None if item is pd.NA else item for name, item in row.items()}
        for row in frame.to_dict("records")
    ]


def write_csv(delimiter: str) -> Callable[[Path], None]:
    """Return what writes a table; in TSV nothing is quoted."""

    def write(path: Path) -> None:
        if delimiter == ",":
            arrow_csv.write_csv(PLAIN, path)
            return
        columns = PLAIN.set_column(2, "name", pa.array([f'"naïve {n}' for n in range(ROWS)]))
        columns.to_pandas().to_csv(path, sep="\t", index=False, quoting=csv.QUOTE_NONE)

    return write


def read_csv(path: Path, **options: Any) -> Records:
    return frame_rows(pd.read_csv(path, dtype_backend="numpy_nullable", **options))


def write_lines(path: Path) -> None:
    PLAIN.to_pandas().convert_dtypes().to_json(path, orient="records", lines=True)


def read_lines(path: Path) -> Records:
    return frame_rows(pd.read_json(path, lines=True, dtype_backend="numpy_nullable"))


def read_datasets(path: Path) -> Records:
    from datasets import Dataset

    return [dict(row) for row in Dataset.from_parquet(str(path), cache_dir=str(path.parent / "cache"))]


TABLES = {
    "parquet": Format(
        "parquet", table_file(lambda path: parquet.write_table(TABLE, path, row_group_size=7), "a.parquet"),
        lambda path: flat_rows(parquet.read_table(path)), types=SHORTS,
    ),
    "parquet of datasets": Format(
        "parquet", table_file(lambda path: parquet.write_table(PLAIN, path), "a.parquet"), read_datasets,
    ),
    "feather": Format(
        "parquet", table_file(lambda path: feather.write_feather(TABLE, path, "zstd"), "a.feather"),
        lambda path: flat_rows(feather.read_table(path)), types=SHORTS,
    ),
    "arrow file": Format(
        "parquet", arrow_file(pa.ipc.new_file, TABLE),
        lambda path: flat_rows(pa.ipc.open_file(path).read_all()), types=SHORTS,
    ),
    "arrow stream": Format(
        "parquet", arrow_file(pa.ipc.new_stream, TABLE),
        lambda path: flat_rows(pa.ipc.open_stream(path.read_bytes()).read_all()), types=SHORTS,
    ),
    "csv": Format("csv", table_file(write_csv(","), "a.csv"), read_csv),
    "tsv": Format(
        "tsv", table_file(write_csv("\t"), "a.tsv"),
        lambda path: read_csv(path, sep="\t", quoting=csv.QUOTE_NONE),
    ),
    "jsonl": Format("jsonl", table_file(write_lines, "a.jsonl"), read_lines, adopted=True),
}  # fmt: skip


def image_folder(folder: Path) -> Path:
    for n in range(6):
        path = folder / "photos" / ("cat" if n % 2 else "dog") / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(n, "PNG"))
    return folder / "photos"


def read_images(folder: Path) -> Records:
    classes = sorted(path.name for path in folder.iterdir())
    return [
        {"image": np.asarray(Image.open(path)), "label": classes.index(path.parent.name)}
        for path in sorted(folder.rglob("*.png"))
    ]


def image_list(folder: Path) -> Path:
    paths = [path.relative_to(folder) for path in sorted(image_folder(folder).rglob("*.png"))]
    frame = pd.DataFrame({"path": map(str, paths), "label": [path.parts[1] for path in paths]})
    frame.to_csv(folder / "list.csv", index=False)
    return folder / "list.csv"


def read_list(path: Path) -> Records:
    frame = pd.read_csv(path)
    labels = frame["label"].astype("category").cat.codes
    images = [np.asarray(Image.open(path.parent / name)) for name in frame["path"]]
    return [{"image": image, "label": label} for image, label in zip(images, labels, strict=True)]


def text_folder(folder: Path) -> Path:
    for name in ("a.txt", "deep/b.txt", "ü.md"):
        path = folder / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"\ufeffnaïve {name}\r\nend".encode())
    return folder / "texts"


def read_texts(folder: Path) -> Records:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [
        {"path": path.relative_to(folder).as_posix(), "text": path.read_bytes().decode()} for path in paths
    ]


def megatron(folder: Path) -> Path:
    return Path(f"{write_megatron(folder / 'corpus', [[[1, 2, 3]], [[]], [[7, 9]]])}.idx")


def read_megatron(path: Path) -> Records:
    tokens = np.fromfile(path.with_suffix(".bin"), "<u2")
    count = int(np.fromfile(path, "<u8", 1, offset=18)[0])
    lengths = np.fromfile(path, "<i4", count, offset=34)
    return [{"tokens": each} for each in np.split(tokens, np.cumsum(lengths)[:-1])]


def member(name: str, text: str) -> Any:
    """Return what a member of a tar file becomes by its ending."""
    read = {"__key__": str, "cls": lambda data: int(raw(data)), "json": lambda data: json.loads(raw(data))}
    return read.get(name, raw)(text)


FILES = {
    "image folder": Format("images", image_folder, read_images),
    "list of images": Format("list", image_list, read_list),
    "text files": Format("text", text_folder, read_texts),
    "megatron": Format("megatron", megatron, read_megatron, types={"tokens": "uint16[?]"}),
    "webdataset": Format(
        "webdataset",
        *golden("webdataset", "webdataset/expected.json", lambda each: {
            name: member(name, text) for name, text in each.items()
        }),
        adopted=True,
    ),
    "webdataset as bytes": Format(
        "webdataset", golden("webdataset/shard-0001.tar", "", dict)[0], library_samples,
        options={"schema": {"json": "bytes", "cls": "bytes"}}, adopted={"schema": False},
    ),
    "torchrecord": Format(
        "torchrecord",
        *golden("torchrecord/db", "torchrecord/expected.json", lambda each: {
            "image": np.frombuffer(raw(each["rgb"]), np.uint8).reshape(each["height"], each["width"], 3),
            "label": each["label"],
        }),
    ),
    "codewithgpu": Format(
        "codewithgpu",
        *golden("codewithgpu", "codewithgpu/expected.json", lambda each: {
            "image": raw(each["image"]), "label": each["label"], "weights": each["weights"],
            **{f"meta.{name}": item for name, item in each["meta"].items()},
        }),
    ),
}  # fmt: skip


def packed(algorithm: str, compress: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    """Return what compresses the shards as MDSWriter does: beside `raw_data` the index has `zip_data`."""

    def make(folder: Path) -> Path:
        folder = shutil.copytree(FOREIGN / "mds" / "plain", folder / "mds")
        index = json.loads((folder / "index.json").read_text())
        for shard in index["shards"]:
            plain = folder / shard["raw_data"]["basename"]
            stored = compress(plain.read_bytes())
            name = f"{plain.name}.{algorithm}"
            (folder / name).write_bytes(stored)
            plain.unlink()
            about = {"basename": name, "bytes": len(stored), "hashes": {}}
            shard |= {"compression": algorithm, "zip_data": about}
        (folder / "index.json").write_text(json.dumps(index))
        return folder

    return make


def mds_sample(each: dict[str, Any]) -> dict[str, Any]:
    return {**each, "image": raw(each["image"]), "tokens": np.array(each["tokens"], np.int32)}


def pixels(data: bytes) -> Any:
    """Return the pixels of an image file, or of what the library has read as one."""
    if isinstance(data, dict):
        return np.frombuffer(raw(data["pixels"]), np.uint8).reshape(data["shape"])
    return np.asarray(Image.open(io.BytesIO(data)))


def typed(value: Any) -> Any:
    """Return an array that a golden file describes; other values as they are."""
    if isinstance(value, dict) and "data" in value:
        return np.frombuffer(raw(value["data"]), value["dtype"]).reshape(value["shape"])
    return value


def mds_types(each: dict[str, Any]) -> dict[str, Any]:
    # A pickle is not loaded.
    return {name: typed(value) for name, value in each.items() if name != "obj"}


MDS = {
    **{
        f"mds {name}": Format(
            "mds", *golden(f"mds/{name}", "mds/expected.json", mds_sample), adopted=name == "plain",
        )
        for name in ("plain", "zstd", "br", "snappy")
    },
    **{
        f"mds {name}": Format(
            "mds", packed(name, compress), golden("mds/plain", "mds/expected.json", mds_sample)[1]
        )
        for name, compress in (("gz", gzip.compress), ("bz2", bz2.compress))
    },
    "mds types": Format(
        "mds", *golden("mds/types", "mds/types-expected.json", mds_types),
        options={"schema": {"obj": "bytes"}}, adopted=True,
        types={
            "dyn": "int16[2,?]", "gray": "uint8[3,?,1]", "i8": "int8", "obj": "bytes",
            "photo": "uint8[2,3,3]", "sdec": "text", "sfloat": "float64", "shaped": "float64[3]",
            "sint": "int64", "u16": "uint16",
        },
    ),
    # JPEG and PNG files as they are, raw images as PNG files with the same pixels.
    "mds lists": Format(
        "mds",
        *golden("mds/lists", "mds/lists-expected.json", lambda each: {
            "array": [raw(text) for text in each["array"]], "jpegs": [raw(text) for text in each["jpegs"]],
            **{name: list(map(pixels, each[name])) for name in ("pils", "pngs")},
        }),
        adopted=True,
        types={"array": "jpeg[?]", "jpegs": "jpeg[?]", "pils": "png[?]", "pngs": "png[?]"},
    ),
}  # fmt: skip


def of_tensorflow(name: str) -> Any:
    return json.loads((TENSORFLOW / "expected.json").read_text(encoding="utf-8"))[name]


def tensorflow_file(name: str) -> Callable[[Path], Path]:
    return lambda folder: Path(shutil.copy(TENSORFLOW / f"{name}.tfrecord", folder))


def feature(value: Any) -> list[Any]:
    """Return the items of a feature of expected.json: bytes, integers, or the bits of floats."""
    if value is None:
        return []
    ((kind, items),) = value.items()
    return [raw(item) if kind == "bytes" else int(item) for item in items]


def read_sequences() -> Records:
    return [
        {
            "length": int(each["context"]["length"]["int64"][0]),
            **{name: len(steps) for name, steps in each["feature_lists"].items()},
        }
        for each in of_tensorflow("sequences")
    ]


TFRECORDS = {
    "tfrecord": Format(
        "tfrecord",
        *golden("tfrecord-with-index", "tfrecord-with-index/expected.json", lambda each: {
            **each, "image": raw(each["image"])
        }),
        adopted=True,
    ),
    **{
        f"{name} of TensorFlow, {compression}": Format(
            "tfrecord", tensorflow_file(f"{name}-{compression}"),
            {
                "examples": lambda _: [
                    {name: feature(value) for name, value in each.items()}
                    for each in of_tensorflow("examples")
                ],
                "sequences": lambda _: read_sequences(),
                "raw": lambda _: [{"": raw(text)} for text in of_tensorflow("raw")],
                "none": lambda _: [],
            }[name],
            adopted={"schema": False},
        )
        for name in ("examples", "sequences", "raw", "none")
        for compression in ("plain", "gzip", "zlib")
    },
}  # fmt: skip


def read_tfds() -> Records:
    """Return the values of tfds; it has no tensors of strings, and other forms of nested lists."""
    read = [flat(each) for split in sorted(SPLITS) for each in VALUES[split]]
    return [
        {
            name: None if name in NOTHING and np.all(value == NOTHING[name]) else value
            for name, value in each.items()
            if name != "tensors"
        }
        for each in read
    ]


TFRECORDS["tfds"] = Format(
    "tfds", lambda folder: Path(shutil.copytree(VERSION, folder / "1.0.0")), lambda _: read_tfds()
)


def loose(value: Any, name: str) -> dict[str, Any]:
    """Return a record of TensorFlow's as its own library shows it: features as they lie in the message."""
    if name == "tfds":
        return {part: as_bytes(item) for part, item in value.items()}
    if isinstance(value, bytes) and name.startswith("examples"):
        value = codecs.decode_example(value)
        return {
            name: (item.view("<u4") if getattr(item, "dtype", None) == np.float32 else item)
            for name, item in value.items()
        }
    if isinstance(value, bytes) and name.startswith("sequences"):
        value = codecs.decode_sequence_example(value)
        steps = {name: len(items or []) for name, items in value["feature_lists"].items()}
        return {"length": int(value["context"]["length"][0]), **steps}
    return value if isinstance(value, dict) else {"": value}


FORMATS = {**TABLES, **FILES, **MDS, **TFRECORDS}
CASES = [
    (name, way)
    for name, each in FORMATS.items()
    for way in ("convert", *(["adopt"] if each.adopted is not False else []))
]


def compare(found: Any, wanted: Any) -> None:
    """Compare a value with the library's; arrays by their type, too, and images by their pixels."""
    if isinstance(wanted, bytes | str | None.__class__):
        assert found == wanted
        return
    if isinstance(wanted, list) and not any(isinstance(item, np.ndarray) for item in wanted):
        assert (found.tolist() if isinstance(found, np.ndarray) else list(found)) == wanted
        return
    if isinstance(found, bytes):
        found = pixels(found)
    if isinstance(found, list):
        for item, other in zip(found, wanted, strict=True):
            compare(item, other)
        return
    if isinstance(wanted, np.ndarray):
        # Grey images have one channel in some libraries, and none in others.
        grey = wanted.dtype == np.uint8 and 1 in (*found.shape[2:], *wanted.shape[2:])
        found = found.reshape(wanted.shape) if grey else found
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("name", "way"), CASES)
@pytest.mark.filterwarnings("ignore:.*is one compressed stream")
def test_a_file_is_what_its_own_library_reads(tmp_path: Path, name: str, way: str) -> None:
    form = FORMATS[name]
    (tmp_path / "source").mkdir()
    source = form.make(tmp_path / "source")
    of_bytes = "of TensorFlow" in name
    if way == "adopt":
        told = form.adopted if isinstance(form.adopted, dict) else {}
        into = source if source.is_dir() else source.parent
        report = shardio.adopt(source, into=into, **told)
        assert report.ok
        ds = shardio.open(into, split="all", decode=not of_bytes)
    else:
        report = shardio.convert_dataset(source, tmp_path / "converted", **(form.options or {}))
        assert report.kind == form.kind
        ds = shardio.open(tmp_path / "converted", split="all", decode=not of_bytes)
    if form.types is not None:
        assert {name: feature.short for name, feature in report.schema.items()} == form.types
    for value, wanted in zip([loose(each, name) for each in ds], form.read(source), strict=True):
        assert value.keys() >= wanted.keys()
        for part, item in wanted.items():
            compare(value[part], item)


def test_torchrecord_of_one_environment_a_database(convert, tmp_path) -> None:
    import lmdb

    environment = lmdb.open(str(FOREIGN / "torchrecord" / "db"), readonly=True, lock=False, max_dbs=9)
    parts: dict[str, list[tuple[bytes, bytes]]] = {}
    for number in range(4):
        database = environment.open_db(f"db{number}".encode(), create=False)
        with environment.begin(db=database) as reading:
            parts[f"db{number}"] = [(bytes(key), bytes(value)) for key, value in reading.cursor()]
    environment.close()
    for name, entries in parts.items():
        (tmp_path / "old" / name).mkdir(parents=True)
        with (
            lmdb.open(str(tmp_path / "old" / name), map_size=1 << 20) as one,
            one.begin(write=True) as writing,
        ):
            for key, value in entries:
                # Keys without zeros before them, as the later releases write them.
                writing.put(str(int(key) + 8).encode(), value)
    values = convert(tmp_path / "old")
    assert [value["label"] for value in values] == [
        wanted["label"] for wanted in FORMATS["torchrecord"].read(tmp_path)
    ]


def test_a_folder_of_folders_that_are_splits(convert, tmp_path) -> None:
    for split in ("train", "val"):
        shutil.copytree(FOREIGN / "mds" / "plain", tmp_path / "source" / split)
    assert len(convert(tmp_path / "source")) == 52
    assert convert.report.records == {"train": 26, "val": 26}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ending", ["jsonl", "tar", "tfrecord"])
def test_zstandard_windows_of_any_size(convert, tmp_path, ending):
    """A source is read once: what `zstd --ultra -22 --long=31` writes is not damaged."""
    wrens = [{"x": f"wren {n}", "y": "z" * 5000} for n in range(3000)]
    if ending == "jsonl":
        data = "".join(json.dumps(each) + "\n" for each in wrens).encode()
    elif ending == "tar":
        data = tar(
            [(f"{n}.{name}", text.encode()) for n, each in enumerate(wrens) for name, text in each.items()]
        )
    else:
        data = tfrecord([codecs.encode_example(each) for each in wrens])
    (tmp_path / f"data.{ending}.zst").write_bytes(with_window(data, 31))
    values = convert(tmp_path / f"data.{ending}.zst", schema={"x": "text", "y": "text"})
    assert [{"x": value["x"], "y": value["y"]} for value in values] == wrens
