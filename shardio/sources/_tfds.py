"""A folder that TensorFlow Datasets (tfds) wrote: its splits, and what the features of its Examples are.

`dataset_info.json` names the files of each split and their records, `features.json` the features, and
`<feature>.labels.txt` the classes of one.  Records are Examples whose features have the names of nested
dicts joined by "/".  An Example has int64, float32 and bytes only, so most types are stored as another one
(`tensorflow_datasets/core/example_serializer.py`): integers and bools as int64, uint64 by its bits; floats as
float32; images as files; sequences in sequences as values one after another beside the lengths of the rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from shardio.errors import FormatError, SchemaError
from shardio.format import parse_json
from shardio.metadata import Feature
from shardio.sources._find import FoundFile, Listing
from shardio.storage import connect

_INFO, _FEATURES, _LABELS = "dataset_info.json", "features.json", ".labels.txt"
_MOST_BYTES = 64 << 20
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_OWN_LISTS = {"int64": "int64", "float32": "float32"}
_IMAGES = {"png": "png", "jpeg": "jpeg"}

_Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class TfdsFeature:
    """A feature of a TFDS dataset, by its name in records.

    Attributes:
        name: names of nested dicts, joined by "/".
        stored: the features of records that hold it, by name: what a reader of the records as they are sees.
        typed: what it is as a value; None where there is no such feature, and `stored` are the values.
        note: how `stored` differ from the type that TFDS gives; "" where they do not.
        value: makes the value of `typed` from those of `stored`.
    """

    name: str
    stored: Mapping[str, Feature]
    typed: Feature | None
    note: str = ""
    value: Callable[[Mapping[str, Any]], Any] | None = None


class TfdsSplitFile(NamedTuple):
    """A file of a split.

    Attributes:
        name: of the file, in the folder.
        split: that it belongs to.
        rows: how many records it has; None where the folder does not say.
    """

    name: str
    split: str
    rows: int | None


@dataclass(frozen=True)
class TfdsFolder:
    """What a version folder of TFDS says of its files.

    Attributes:
        url: of the folder.
        prefix: of its files below the folder that was searched: "" or with a slash at its end.
        files: of all splits.
        features: that could be told; others are as records show them.
        unknown: features of kinds that only tfds knows, by name, each with its kind.
        labels: names of classes by feature, of a folder without `features.json`.
        metadata: what the dataset is: name, version, citation ...
    """

    url: str
    prefix: str
    files: Sequence[TfdsSplitFile]
    features: Sequence[TfdsFeature] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def file_of(self, key: str) -> TfdsSplitFile | None:
        """Return what is known of a file by its key below the folder that was searched."""
        return self._by_key.get(key)

    @cached_property
    def _by_key(self) -> dict[str, TfdsSplitFile]:
        return {self.prefix + file.name: file for file in self.files}

    def describes(self, key: str) -> bool:
        """Tell whether a file is one of those that describe the dataset."""
        name = key.removeprefix(self.prefix)
        return key.startswith(self.prefix) and (name in (_INFO, _FEATURES) or name.endswith(_LABELS))

    def as_stored(self, inferred: Mapping[str, Feature]) -> dict[str, Feature]:
        """Return the features of records as they are: as the folder says, else as they were inferred."""
        out = dict(inferred)
        for feature in self.features:
            out.update(feature.stored)
        for name, classes in self.labels.items():
            if name in out and out[name].type == "int64":
                out[name] = _labels(out[name].shape, classes)
        return out

    def notes(self) -> list[str]:
        """Return how records as they are differ from what TFDS gives, a line each."""
        told: dict[str, list[str]] = {}
        for feature in self.features:
            if feature.note:
                told.setdefault(feature.note, []).append(feature.name)
        lines = [f"{', '.join(names)}: {note}" for note, names in told.items()]
        if lines:
            lines.append("a conversion, `shardio convert`, makes values of the types of TFDS")
        return lines + [
            f"{name}: {kind} is known to tfds alone; the schema is inferred from the records"
            for name, kind in self.unknown.items()
        ]


def find_tfds(listing: Listing, storage_options: Mapping[str, Any] | None) -> TfdsFolder | None:
    """Return what a folder that was searched says as one of TFDS; None where it is none.

    Raises:
        FormatError: it is one that cannot be read.
        ValueError: it holds several.
        StorageError: a file of it cannot be read.
    """
    if listing.kind != "folder":
        return None
    folders = [_folder(file, storage_options) for file in listing.files if _name(file.key) == _INFO]
    found = [folder for folder in folders if folder is not None]
    if len(found) > 1:
        urls = ", ".join(info.url for info, _ in found)
        raise ValueError(f"{listing.url} holds several datasets or versions of TFDS: name one of {urls}")
    return _opened(*found[0], listing.files, storage_options) if found else None


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def _read(file: FoundFile, storage_options: Mapping[str, Any] | None) -> bytes:
    options = storage_options if "://" in file.root else None
    return connect(file.root, storage_options=options).get(file.key, max_bytes=_MOST_BYTES)


def _folder(
    file: FoundFile, storage_options: Mapping[str, Any] | None
) -> tuple[FoundFile, Mapping[str, Any]] | None:
    """Return the description in a file; Hugging Face's `datasets` writes files of that name, too."""
    try:
        content = parse_json(_read(file, storage_options))
    except ValueError as error:
        raise FormatError(
            "the description of a TFDS dataset is not JSON",
            url=file.url,
            found=str(error),
            advice="fetch the file again, or name the shards with a pattern to leave it out",
        ) from error
    own = isinstance(content, Mapping) and isinstance(content.get("splits"), list)
    return (file, content) if own and "name" in content else None


def _opened(
    file: FoundFile,
    content: Mapping[str, Any],
    files: Iterable[FoundFile],
    storage_options: Mapping[str, Any] | None,
) -> TfdsFolder:
    kind = content.get("fileFormat") or "tfrecord"
    if kind != "tfrecord":
        raise FormatError(
            "this TFDS dataset is not stored as TFRecord",
            url=file.url,
            expected="tfrecord",
            found=kind,
            advice="prepare it with tfds in its default format, tfrecord",
        )
    prefix = file.key.removesuffix(_INFO)
    beside = {other.key.removeprefix(prefix): other for other in files if other.key.startswith(prefix)}
    labels = {
        name.removesuffix(_LABELS): tuple(
            line.strip() for line in _read(other, storage_options).decode().split("\n") if line.strip()
        )
        for name, other in beside.items()
        if name.endswith(_LABELS) and "/" not in name
    }
    reading = _FeatureTree(labels)
    if _FEATURES in beside:
        try:
            reading.read(parse_json(_read(beside[_FEATURES], storage_options)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(
                "the features of a TFDS dataset cannot be read",
                url=beside[_FEATURES].url,
                found=f"{type(error).__name__}: {error}",
                advice="take features.json away to have the schema inferred from the records",
            ) from error
        labels = {}
    return TfdsFolder(
        url=file.url.removesuffix("/" + _INFO),
        prefix=prefix,
        files=_files(content, sorted(name for name in beside if "/" not in name)),
        features=reading.found,
        unknown=reading.unknown,
        labels=labels,
        metadata=_metadata(content),
    )


def _metadata(content: Mapping[str, Any]) -> dict[str, Any]:
    chosen = {
        name: content[name]
        for name in ("name", "configName", "version", "description", "citation", "supervisedKeys")
        if content.get(name)
    }
    urls = (content.get("location") or {}).get("urls")
    rights = (content.get("redistributionInfo") or {}).get("license")
    return {**chosen, **({"homepage": urls} if urls else {}), **({"license": rights} if rights else {})}


def _files(content: Mapping[str, Any], there: Sequence[str]) -> list[TfdsSplitFile]:
    """Return the files of all splits, as the description names them."""
    found = []
    for split in content["splits"]:
        name = split["name"]
        template = split.get("filepathTemplate") or _TEMPLATE
        lengths: list[int | None] = [int(length) for length in split.get("shardLengths") or ()]
        # Descriptions of older versions say how many files there are, and not of how many records.
        lengths = lengths or [None] * int(split.get("numShards") or 0)
        count = len(lengths) or sum(f"-{name}." in file for file in there)
        for number, rows in enumerate(lengths or [None] * count):
            words = {
                "DATASET": content["name"],
                "SPLIT": name,
                "FILEFORMAT": "tfrecord",
                "SHARD_INDEX": f"{number:05d}",
                "NUM_SHARDS": f"{count:05d}",
                "SHARD_X_OF_Y": f"{number:05d}-of-{count:05d}",
            }
            file = template
            for word, text in words.items():
                file = file.replace(f"${{{word}}}", text).replace(f"{{{word}}}", text)
            found.append(TfdsSplitFile(file, name, rows))
    return found


class _FeatureTree:
    """Features by a `features.json`, which is a tree of `tensorflow_datasets/proto/feature.proto`."""

    def __init__(self, labels: Mapping[str, tuple[str, ...]]) -> None:
        self._labels = labels
        self.found: list[TfdsFeature] = []
        self.unknown: dict[str, str] = {}

    def read(self, tree: Mapping[str, Any]) -> None:
        """Add all features.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: it is not such a tree.
        """
        root = _as_message(tree)
        if "featuresDict" not in root:
            raise ValueError("it does not begin with a FeaturesDict")
        self.add((), root, ())

    def add(self, path: tuple[str, ...], node: Mapping[str, Any], outer: _Shape) -> None:
        """Add a node of the tree, and what is below it; `outer` are the sizes of the sequences around it."""
        name = "/".join(path)
        node = _as_message(node)
        if "featuresDict" in node:
            for child, below in node["featuresDict"].get("features", {}).items():
                self.add((*path, child), below, outer)
        elif "sequence" in node:
            length = int(node["sequence"].get("length", -1))
            inner = node["sequence"]["feature"]
            self.add(path, inner, (*outer, length if length >= 0 else None))
        elif "translation" in node:
            languages = node["translation"].get("languages", [])
            if node["translation"].get("variableLanguagesPerExample"):
                languages, outer = ["language", "translation"], (*outer, None)
            for each in languages:
                self._add("/".join((*path, each)), "text", (), outer)
        elif "text" in node:
            self._add(name, "text", (), outer)
        elif "image" in node:
            self._add_image(name, node["image"], outer)
        elif "video" in node:
            frames = _shape(node["video"])[:1]
            self._add_image(name, node["video"], (*outer, *frames))
        elif "classLabel" in node:
            stem = "-".join(part.replace("/", ".") for part in path)
            self._add(name, "int64", (), outer, classes=self._labels.get(stem))
        elif "boundingBox" in node:
            form = node["boundingBox"].get("bboxFormat") or "REL_YXYX"
            self._add(name, "float32", (4,), outer, description=f"bounding box, {form}")
        elif "audio" in node:
            self._add_audio(name, node["audio"], outer)
        elif "tensor" in node:
            tensor = node["tensor"]
            self._add(
                name, tensor["dtype"], _shape(tensor), outer,
                packing=str(tensor.get("encoding") or "none").lower(), optional=bool(tensor.get("optional")),
            )  # fmt: skip
        else:
            self.unknown[name] = str(node.get("pythonClassName", "its kind")).rpartition(".")[2]

    def _add_image(self, name: str, node: Mapping[str, Any], outer: _Shape) -> None:
        kind = _IMAGES.get(node.get("encodingFormat") or "", "image")
        note = "float32 pixels, as the four bytes of a PNG's pixels" if node.get("dtype") == "float32" else ""
        self._add(name, kind, (), outer, note=note)

    def _add_audio(self, name: str, node: Mapping[str, Any], outer: _Shape) -> None:
        rate = node.get("sampleRate")
        description = f"audio, {rate} Hz" if rate else "audio"
        if node.get("lazyDecode"):
            self._add(name, "bytes", (), outer, description=description)
        else:
            packing = str(node.get("encoding") or "none").lower()
            dtype = node.get("dtype") or "int64"
            self._add(name, dtype, _shape(node), outer, packing=packing, description=description)

    def _add(  # noqa: PLR0913 - what a feature is
        self,
        name: str,
        dtype: str,
        shape: _Shape,
        outer: _Shape,
        *,
        packing: str = "none",
        classes: tuple[str, ...] | None = None,
        optional: bool = False,
        description: str = "",
        note: str = "",
    ) -> None:
        """Add a feature of one type.

        Args:
            name: in records.
            dtype: of TFDS, or a type of features.
            shape: of one of them.
            outer: sizes of the sequences that it is in, outermost first.
            packing: "none", or how a tensor became bytes: "bytes" or "zlib".
            classes, optional, description, note: what else is known of it.
        """
        dtype = {"string": "bytes", "object": "bytes", "str": "bytes"}.get(dtype, dtype)
        whole = (*outer, *shape)
        if packing != "none":
            made = _packed(name, dtype, shape, outer, packing, optional=optional)
        elif len(outer) > 1:
            made = _ragged(name, dtype, shape, outer)
        elif classes is not None:
            made = tfds_feature(name, _labels(whole, classes))
        else:
            made = _plain(name, dtype, whole, optional=optional)
        if description:
            said = {each: feature.replace(description=description) for each, feature in made.stored.items()}
            typed = made.typed.replace(description=description) if made.typed is not None else None
            made = replace(made, stored=said, typed=typed)
        self.found.append(replace(made, note=note) if note else made)


# Kinds of features by the names of their classes, and as fields of `feature.proto`.
_FIELDS = {
    "FeaturesDict": "featuresDict", "Sequence": "sequence", "Dataset": "sequence", "Image": "image",
    "LabeledImage": "image", "ClassLabel": "classLabel", "Tensor": "tensor", "Scalar": "tensor",
    "Text": "text", "Audio": "audio", "Video": "video", "BBoxFeature": "boundingBox",
    "Translation": "translation", "TranslationVariableLanguages": "translation",
}  # fmt: skip


def _as_message(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a node as the message that TFDS writes today; before 4.5 it was `{"type", "content"}`."""
    if "type" not in node:
        return node
    kind = node["type"].rpartition(".")[2]
    content = node["content"]
    if isinstance(content, str):
        content = parse_json(content.encode())
    if kind not in _FIELDS:
        return {"pythonClassName": node["type"]}
    if kind == "FeaturesDict":
        known = set(content) == {"features"} and "type" not in content["features"]
        return {"featuresDict": content if known else {"features": content}}
    given = {_camel_case(name): item for name, item in content.items()}
    if isinstance(given.get("shape"), list):
        given["shape"] = {"dimensions": [-1 if size is None else size for size in given["shape"]]}
    if _FIELDS[kind] == "sequence" and given.get("length") is None:
        given["length"] = -1
    if kind == "TranslationVariableLanguages":
        given["variableLanguagesPerExample"] = True
    return {_FIELDS[kind]: given}


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _shape(node: Mapping[str, Any]) -> _Shape:
    sizes = (node.get("shape") or {}).get("dimensions", [])
    return tuple(None if int(size) < 0 else int(size) for size in sizes)


def _labels(shape: _Shape, classes: tuple[str, ...]) -> Feature:
    """Return the feature of class labels; one label of -1 is that of a record without."""
    return Feature("int64", shape=shape, classes=classes, default=-1 if not shape else None)


def tfds_feature(name: str, feature: Feature) -> TfdsFeature:
    """Return a feature that records hold as it is; a label of -1 is none."""
    value = _Label(name) if feature.classes is not None and not feature.shape else None
    return TfdsFeature(name, {name: feature}, feature, value=value)


@dataclass(frozen=True)
class _Label:
    """The number of a class; -1 is none."""

    name: str

    def __call__(self, found: Mapping[str, Any]) -> Any:
        return None if found[self.name] == -1 else found[self.name]


def _own(dtype: str) -> str:
    """Return what an Example of TFDS holds a type as."""
    if dtype in ("bytes", "text", "image", *_IMAGES):
        return dtype
    return "float32" if "float" in dtype else "int64"


def _plain(name: str, dtype: str, shape: _Shape, *, optional: bool) -> TfdsFeature:
    held = _own(dtype)
    stored = {name: Feature(held, shape=shape, optional=optional)}
    typed = Feature(dtype, shape=shape, optional=optional)
    if held == dtype:
        return TfdsFeature(name, stored, typed)
    bits = ", by its bits" if dtype == "uint64" else ""
    return TfdsFeature(
        name, stored, typed, f"{dtype} in TFDS, and {held} in the records{bits}", _Cast(name, dtype)
    )


@dataclass(frozen=True)
class _Cast:
    """The value of a type that records hold as another."""

    name: str
    dtype: str

    def __call__(self, found: Mapping[str, Any]) -> Any:
        value = found[self.name]
        if value is None or self.dtype == "bfloat16":
            return value
        array = np.asarray(value)
        if self.dtype == "uint64":
            return array.view(np.uint64)
        cast = array.astype(self.dtype)
        if not np.array_equal(cast.astype(array.dtype), array, equal_nan=array.dtype.kind == "f"):
            raise SchemaError(f"{self.name!r} holds values that are not {self.dtype}", found=str(value)[:80])
        return cast


def _packed(
    name: str, dtype: str, shape: _Shape, outer: _Shape, packing: str, *, optional: bool
) -> TfdsFeature:
    """Return a tensor that is stored as its bytes, little-endian in C order, or these compressed."""
    sizes = shape.count(None) > 1
    value = f"{name}/value" if sizes else name
    # Features of these types and shapes are the same bytes here.
    same = packing == "bytes" and not sizes and not outer and dtype not in (*_OWN_LISTS, "bytes")
    if same:
        feature = Feature(dtype, shape=shape, optional=optional)
        return TfdsFeature(name, {name: feature}, feature)
    stored = {value: Feature("bytes", shape=outer, optional=optional)}
    note = f"{dtype} in TFDS, and bytes in the records"
    if packing == "zlib":
        note += ", compressed with zlib"
    if outer:
        return TfdsFeature(name, stored, None, note)
    if sizes:
        stored[f"{name}/shape"] = Feature("int64", shape=(len(shape),), optional=optional)
    unpack = _Unpack(value, f"{name}/shape" if sizes else None, dtype, shape, packing == "zlib")
    return TfdsFeature(name, stored, Feature(dtype, shape=shape, optional=optional), note, unpack)


@dataclass(frozen=True)
class _Unpack:
    """The tensor of its bytes."""

    name: str
    sizes: str | None
    dtype: str
    shape: _Shape
    compressed: bool

    def __call__(self, found: Mapping[str, Any]) -> Any:
        data = found[self.name]
        if data is None:
            return None
        shape = [-1 if size is None else size for size in self.shape]
        if self.sizes:
            shape = found[self.sizes].tolist()
        dtype = np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype).newbyteorder("<")
        try:
            data = zlib.decompress(data) if self.compressed else data
            return np.frombuffer(data, dtype).reshape(shape)
        except (ValueError, zlib.error) as error:
            raise SchemaError(f"{self.name!r} is not a tensor of {self.dtype}", found=str(error)) from error


def _ragged(name: str, dtype: str, shape: _Shape, outer: _Shape) -> TfdsFeature:
    """Return sequences in sequences: values one after another, and the lengths of rows by level."""
    held = _own(dtype)
    flat = f"{name}/ragged_flat_values"
    lengths = tuple(f"{name}/ragged_row_lengths_{level}" for level in range(len(outer) - 1))
    stored = {flat: Feature(held, shape=(None, *shape))}
    stored |= {each: Feature("int64", shape=(None,)) for each in lengths}
    note = f"sequences in sequences in TFDS, and {', '.join(map(_last, (flat, *lengths)))} in the records"
    if _own(dtype) in ("bytes", "image", *_IMAGES):
        return TfdsFeature(name, stored, None, note)
    return TfdsFeature(name, stored, Feature("json"), note, _Nested(flat, lengths, dtype))


def _last(name: str) -> str:
    return "<name>/" + name.rpartition("/")[2]


@dataclass(frozen=True)
class _Nested:
    """Nested lists of values one after another."""

    name: str
    lengths: tuple[str, ...]
    dtype: str

    def __call__(self, found: Mapping[str, Any]) -> Any:
        values = found[self.name]
        if isinstance(values, np.ndarray):
            values = _Cast(self.name, self.dtype)(found)
            values = values.tolist()
        for name in reversed(self.lengths):
            stops = np.cumsum(found[name])
            if (int(stops[-1]) if len(stops) else 0) != len(values):
                raise SchemaError(f"{name!r} does not add up to the values", found=found[name].tolist())
            starts = stops - found[name]
            values = [values[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        return values
