"""A folder that TensorFlow Datasets (tfds) wrote: its splits, and what the features of its Examples are.

`dataset_info.json` names the files of each split and their records, `features.json` the features, and
`<feature>.labels.txt` the classes of one.  Records are Examples whose features have the names of nested
dicts joined by "/".  An Example has int64, float32 and bytes only, so most types are stored as another one
(`tensorflow_datasets/core/example_serializer.py`): integers and bools as int64, uint64 by its bits; floats as
float32; images as files; sequences in sequences as values one after another beside the lengths of the rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from shardio.errors import FormatError, SchemaError
from shardio.format import parse_json
from shardio.metadata import Feature
from shardio.sources._find import FoundFile, Listing
from shardio.sources._peek import Peek

_INFO, _FEATURES, _LABELS = "dataset_info.json", "features.json", ".labels.txt"
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
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


def find_tfds(listing: Listing, peek: Peek) -> TfdsFolder | None:
    """Return what a folder that was searched says as one of TFDS; None where it is none.

    Raises:
        FormatError: it is one that cannot be read.
        ValueError: it holds several.
        StorageError: a file of it cannot be read.
    """
    if listing.kind != "folder":
        return None
    folders = [_folder(file, peek) for file in listing.files if _name(file.key) == _INFO]
    found = [folder for folder in folders if folder is not None]
    if len(found) > 1:
        urls = ", ".join(info.url for info, _ in found)
        raise ValueError(f"{listing.url} holds several datasets or versions of TFDS: name one of {urls}")
    return _opened(*found[0], listing.files, peek) if found else None


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def _folder(file: FoundFile, peek: Peek) -> tuple[FoundFile, Mapping[str, Any]] | None:
    """Return the description in a file; Hugging Face's `datasets` writes files of that name, too."""
    try:
        content = parse_json(peek.whole(file))
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
    peek: Peek,
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
            line.strip() for line in peek.whole(other).decode().split("\n") if line.strip()
        )
        for name, other in beside.items()
        if name.endswith(_LABELS) and "/" not in name
    }
    found: list[TfdsFeature | tuple[str, str]] = []
    if _FEATURES in beside:
        try:
            root = parse_json(peek.whole(beside[_FEATURES]))
            found += _read_tree(root, labels)
            if _kind_of(root)[0] != "featuresDict":
                raise ValueError("it does not begin with a FeaturesDict")  # noqa: TRY301
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
        features=[each for each in found if isinstance(each, TfdsFeature)],
        unknown=dict(each for each in found if not isinstance(each, TfdsFeature)),
        labels=labels,
        metadata=_metadata(content),
    )


def _metadata(content: Mapping[str, Any]) -> dict[str, Any]:
    names = ("name", "configName", "version", "description", "citation", "supervisedKeys")
    more = {
        "homepage": (content.get("location") or {}).get("urls"),
        "license": (content.get("redistributionInfo") or {}).get("license"),
    }
    return {
        name: value
        for name, value in {**{each: content.get(each) for each in names}, **more}.items()
        if value
    }


def _files(content: Mapping[str, Any], there: Sequence[str]) -> list[TfdsSplitFile]:
    """Return the files of all splits, as the description names them."""
    found = []
    for split in content["splits"]:
        name = split["name"]
        lengths: list[int | None] = [int(length) for length in split.get("shardLengths") or ()]
        # Descriptions of older versions say how many files there are, and not of how many records.
        count = len(lengths) or int(split.get("numShards") or 0) or sum(f"-{name}." in file for file in there)
        for number, rows in enumerate(lengths or [None] * count):
            words = {
                "DATASET": content["name"],
                "SPLIT": name,
                "FILEFORMAT": "tfrecord",
                "SHARD_INDEX": f"{number:05d}",
                "NUM_SHARDS": f"{count:05d}",
                "SHARD_X_OF_Y": f"{number:05d}-of-{count:05d}",
            }
            file = split.get("filepathTemplate") or _TEMPLATE
            for word, text in words.items():
                file = file.replace(f"${{{word}}}", text).replace(f"{{{word}}}", text)
            found.append(TfdsSplitFile(file, name, rows))
    return found


# Kinds of features by the names of their classes, and as fields of `tensorflow_datasets/proto/feature.proto`.
_FIELDS = {
    "FeaturesDict": "featuresDict", "Sequence": "sequence", "Dataset": "sequence", "Image": "image",
    "LabeledImage": "image", "ClassLabel": "classLabel", "Tensor": "tensor", "Scalar": "tensor",
    "Text": "text", "Audio": "audio", "Video": "video", "BBoxFeature": "boundingBox",
    "Translation": "translation", "TranslationVariableLanguages": "translation",
}  # fmt: skip


def _read_tree(
    node: Mapping[str, Any],
    labels: Mapping[str, tuple[str, ...]],
    path: tuple[str, ...] = (),
    outer: _Shape = (),
) -> Iterator[TfdsFeature | tuple[str, str]]:
    """Yield the features of a node of `features.json`; name and kind of those that only tfds knows.

    Args:
        node: of the tree.
        labels: names of classes by feature.
        path: names of the nested dicts around it.
        outer: sizes of the sequences that it is in, outermost first.
    """
    name = "/".join(path)
    kind, content = _kind_of(node)
    if kind == "featuresDict":
        for child, below in content.get("features", {}).items():
            yield from _read_tree(below, labels, (*path, child), outer)
    elif kind == "sequence":
        length = int(content.get("length", -1))
        yield from _read_tree(content["feature"], labels, path, (*outer, length if length >= 0 else None))
    elif kind == "translation":
        languages = content.get("languages", [])
        if content.get("variableLanguagesPerExample"):
            languages, outer = ["language", "translation"], (*outer, None)
        for each in languages:
            yield _feature("/".join((*path, each)), "text", outer=outer)
    elif kind == "text":
        yield _feature(name, "text", outer=outer)
    elif kind in ("image", "video"):
        outer = (*outer, *_shape(content)[:1]) if kind == "video" else outer
        made = _feature(name, _IMAGES.get(content.get("encodingFormat") or "", "image"), outer=outer)
        floats = content.get("dtype") == "float32"
        note = "float32 pixels, as the four bytes of a PNG's pixels"
        yield replace(made, note=note) if floats else made
    elif kind == "classLabel":
        classes = labels.get("-".join(part.replace("/", ".") for part in path))
        ragged = classes is None or len(outer) > 1
        yield (
            _feature(name, "int64", outer=outer)
            if ragged
            else tfds_feature(name, _labels(outer, classes or ()))
        )
    elif kind == "boundingBox":
        yield _feature(name, "float32", (4,), outer)
    elif kind in ("audio", "tensor"):
        whole = kind == "audio" and content.get("lazyDecode")
        yield _feature(
            name,
            "bytes" if whole else content.get("dtype") or "int64",
            () if whole else _shape(content),
            outer,
            packing="none" if whole else str(content.get("encoding") or "none").lower(),
            optional=bool(content.get("optional")),
        )
    else:
        yield name, str(node.get("pythonClassName", "its kind")).rpartition(".")[2]


def _kind_of(node: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the field of a node and its content; before 4.5 a node was `{"type", "content"}`."""
    if "type" not in node:
        field = next((each for each in _FIELDS.values() if each in node), "")
        return field, node.get(field, {})
    name = node["type"].rpartition(".")[2]
    content = node["content"]
    if isinstance(content, str):
        content = parse_json(content.encode())
    field = _FIELDS.get(name, "")
    if field == "featuresDict":
        wrapped = set(content) == {"features"} and "type" not in content["features"]
        return field, content if wrapped else {"features": content}
    given = {_camel_case(each): item for each, item in content.items()} if field else {}
    if isinstance(given.get("shape"), list):
        given["shape"] = {"dimensions": [-1 if size is None else size for size in given["shape"]]}
    if given.get("length", 0) is None:
        del given["length"]
    if name == "TranslationVariableLanguages":
        given["variableLanguagesPerExample"] = True
    return field, given


def _feature(
    name: str,
    dtype: str,
    shape: _Shape = (),
    outer: _Shape = (),
    *,
    packing: str = "none",
    optional: bool = False,
) -> TfdsFeature:
    """Return a feature.

    Args:
        name: in records.
        dtype: of TFDS, or a type of features.
        shape: of one of them.
        outer: sizes of the sequences that it is in, outermost first.
        packing: "none", or how a tensor became bytes: "bytes" or "zlib".
        optional: records may lack it.
    """
    dtype = "bytes" if dtype in ("string", "object", "str") else dtype
    if packing != "none":
        return _packed(name, dtype, shape, outer, packing, optional=optional)
    held = dtype
    if dtype not in ("bytes", "text", "image", *_IMAGES.values()):
        held = "float32" if "float" in dtype else "int64"
    if len(outer) > 1:
        return _ragged(name, dtype, held, shape, outer)
    whole = (*outer, *shape)
    stored = {name: Feature(held, shape=whole, optional=optional)}
    typed = Feature(dtype, shape=whole, optional=optional)
    if held == dtype:
        return TfdsFeature(name, stored, typed)
    bits = ", by its bits" if dtype == "uint64" else ""
    note = f"{dtype} in TFDS, and {held} in the records{bits}"
    return TfdsFeature(name, stored, typed, note, partial(_cast, name, dtype))


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
    label = feature.classes is not None and not feature.shape
    return TfdsFeature(name, {name: feature}, feature, value=partial(_label, name) if label else None)


def _label(name: str, found: Mapping[str, Any]) -> Any:
    return None if found[name] == -1 else found[name]


def _cast(name: str, dtype: str, found: Mapping[str, Any]) -> Any:
    """Return the value of a type that records hold as another."""
    value = found[name]
    if value is None or dtype == "bfloat16":
        return value
    array = np.asarray(value)
    if dtype == "uint64":
        return array.view(np.uint64)
    cast = array.astype(dtype)
    if not np.array_equal(cast.astype(array.dtype), array, equal_nan=array.dtype.kind == "f"):
        raise SchemaError(f"{name!r} holds values that are not {dtype}", found=str(value)[:80])
    return cast


def _packed(
    name: str, dtype: str, shape: _Shape, outer: _Shape, packing: str, *, optional: bool
) -> TfdsFeature:
    """Return a tensor that is stored as its bytes, little-endian in C order, or these compressed."""
    sizes = shape.count(None) > 1
    value = f"{name}/value" if sizes else name
    # Features of these types and shapes are the same bytes here.
    if packing == "bytes" and not sizes and not outer and dtype not in ("int64", "float32", "bytes"):
        return tfds_feature(name, Feature(dtype, shape=shape, optional=optional))
    stored = {value: Feature("bytes", shape=outer, optional=optional)}
    note = f"{dtype} in TFDS, and bytes in the records" + ", compressed with zlib" * (packing == "zlib")
    if outer:
        return TfdsFeature(name, stored, None, note)
    if sizes:
        stored[f"{name}/shape"] = Feature("int64", shape=(len(shape),), optional=optional)
    unpack = partial(_unpack, value, f"{name}/shape" if sizes else "", dtype, shape, packing)
    return TfdsFeature(name, stored, Feature(dtype, shape=shape, optional=optional), note, unpack)


def _unpack(name: str, sizes: str, dtype: str, shape: _Shape, packing: str, found: Mapping[str, Any]) -> Any:
    """Return the tensor of its bytes."""
    data = found[name]
    if data is None:
        return None
    known = found[sizes].tolist() if sizes else [-1 if size is None else size for size in shape]
    kind = np.dtype("uint16" if dtype == "bfloat16" else dtype).newbyteorder("<")
    try:
        return np.frombuffer(zlib.decompress(data) if packing == "zlib" else data, kind).reshape(known)
    except (ValueError, zlib.error) as error:
        raise SchemaError(f"{name!r} is not a tensor of {dtype}", found=str(error)) from error


def _ragged(name: str, dtype: str, held: str, shape: _Shape, outer: _Shape) -> TfdsFeature:
    """Return sequences in sequences: values one after another, and the lengths of rows by level."""
    flat = f"{name}/ragged_flat_values"
    lengths = [f"{name}/ragged_row_lengths_{level}" for level in range(len(outer) - 1)]
    stored = {flat: Feature(held, shape=(None, *shape))}
    stored |= {each: Feature("int64", shape=(None,)) for each in lengths}
    shown = ", ".join(f"<name>/{each.rpartition('/')[2]}" for each in stored)
    note = f"sequences in sequences in TFDS, and {shown} in the records"
    if held in ("bytes", "image", *_IMAGES.values()):
        return TfdsFeature(name, stored, None, note)
    return TfdsFeature(name, stored, Feature("json"), note, partial(_nested, flat, lengths, dtype))


def _nested(name: str, lengths: Sequence[str], dtype: str, found: Mapping[str, Any]) -> Any:
    """Return nested lists of values one after another."""
    values = found[name]
    if isinstance(values, np.ndarray):
        values = _cast(name, dtype, found).tolist()
    for level in reversed(lengths):
        stops = np.cumsum(found[level])
        if (int(stops[-1]) if len(stops) else 0) != len(values):
            raise SchemaError(f"{level!r} does not add up to the values", found=found[level].tolist())
        starts = stops - found[level]
        values = [values[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    return values
