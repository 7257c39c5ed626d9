"""Write `tests/golden/tfds`: a small dataset of TensorFlow Datasets, and its values as tfds reads them.

In an environment of its own, with `tensorflow-cpu==2.21.0` and `tensorflow-datasets==4.9.10`:
`python -m tests.oracle.tfds_golden`.
"""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parents[1] / "golden" / "tfds"


def features(f: Any) -> dict[str, Any]:
    """Return a feature of each kind that can be written without other programs."""
    return {
        "image": f.Image(shape=(4, 5, 3), encoding_format="png"),
        "photo": f.Image(encoding_format="jpeg"),
        "any_image": f.Image(shape=(None, None, 1)),
        "label": f.ClassLabel(names=["wren", "robin", "tit"]),
        "text": f.Text(),
        "b": np.bool_,
        "i32": np.int32,
        "u8": np.uint8,
        "u64": np.uint64,
        "f16": np.float16,
        "f64": np.float64,
        "scalar": f.Scalar(np.int64),
        "matrix": f.Tensor(shape=(2, 3), dtype=np.float32),
        "bytes": f.Tensor(shape=(3,), dtype=np.uint8),
        "rows": f.Tensor(shape=(None, 2), dtype=np.int64),
        "as_bytes": f.Tensor(shape=(2, 2), dtype=np.uint16, encoding="bytes"),
        "as_int64_bytes": f.Tensor(shape=(2,), dtype=np.int64, encoding="bytes"),
        "as_zlib": f.Tensor(shape=(None, None), dtype=np.float32, encoding="zlib"),
        "words": f.Tensor(shape=(2,), dtype=np.str_),
        "sequence": f.Sequence(np.int32),
        "sequence_of_3": f.Sequence(np.float32, length=3),
        "texts": f.Sequence(f.Text()),
        "labels": f.Sequence(f.ClassLabel(names=["a", "b"])),
        "objects": f.Sequence(
            {"bbox": f.BBoxFeature(), "label": f.ClassLabel(names=["x", "y"]), "name": f.Text()}
        ),
        "nested": {"deep": {"n": np.int64, "label": f.ClassLabel(num_classes=7)}, "text": f.Text()},
        "ragged": f.Sequence(f.Sequence(np.int64)),
        "ragged3": f.Sequence(f.Sequence(f.Sequence(np.float32))),
        "ragged_texts": f.Sequence({"words": f.Sequence(f.Text())}),
        "tensors": f.Sequence(f.Tensor(shape=(2,), dtype=np.int16, encoding="zlib")),
        "bbox": f.BBoxFeature(),
        "audio": f.Audio(sample_rate=8000),
        "video": f.Video(shape=(None, 4, 4, 3)),
        "maybe": f.Scalar(np.int64, optional=True),
        "maybe_text": f.Tensor(shape=(), dtype=np.str_, optional=True),
        "translation": f.Translation(["de", "en"]),
        "translations": f.TranslationVariableLanguages(languages=["de", "en"]),
        "mask": f.LabeledImage(labels=3, shape=(4, 4, 1)),
    }


def record(i: int, f: Any) -> dict[str, Any]:
    """Return the record of a number."""
    rng = np.random.default_rng(i)

    def pixels(*shape: int) -> Any:
        return rng.integers(0, 255, shape).astype(np.uint8)

    box = f.BBox(0.1, 0.2, 0.5, 0.5 + i / 20)
    return {
        "image": pixels(4, 5, 3),
        # One color: decoders differ in how they bring colors to all pixels.
        "photo": np.full((8, 8, 3), 10 * i, np.uint8),
        "any_image": pixels(2 + i, 3, 1),
        "label": -1 if i == 6 else i % 3,
        "text": f"wren {i} \u00fc",
        "b": i % 2 == 0,
        "i32": -i,
        "u8": 200 + i,
        "u64": (1 << 63) + i,
        "f16": i / 3,
        "f64": i / 7,
        "scalar": i * 10**12,
        "matrix": rng.normal(size=(2, 3)).astype(np.float32),
        "bytes": pixels(3),
        "rows": rng.integers(0, 9, (i % 3, 2)),
        "as_bytes": rng.integers(0, 60000, (2, 2)).astype(np.uint16),
        "as_int64_bytes": np.array([i, -i]),
        "as_zlib": rng.normal(size=(i, 2)).astype(np.float32),
        "words": ["a", f"b{i}"],
        "sequence": list(range(i)),
        "sequence_of_3": [i, 0.5, 1],
        "texts": ["x"] * (i % 3),
        "labels": [0, 1][: i % 3],
        "objects": [{"bbox": box, "label": k, "name": f"o{k}"} for k in range(i % 3)],
        "nested": {"deep": {"n": i, "label": i % 7}, "text": "q"},
        "ragged": [[1, 2, 3][:k] for k in range(i % 4)],
        "ragged3": [[[0.5] * k for k in range(j)] for j in range(i % 3)],
        "ragged_texts": [{"words": ["w"] * k} for k in range(i % 3)],
        "tensors": [np.array([k, -k], np.int16) for k in range(i % 3)],
        "bbox": box,
        "audio": rng.integers(-99, 99, 6 + i),
        "video": pixels(2, 4, 4, 3),
        "maybe": None if i % 2 else i,
        "maybe_text": None if i % 2 else f"m{i}",
        "translation": {"de": "Vogel", "en": "bird"},
        "translations": {"de": "Vogel", "en": ["bird", "fowl"]},
        "mask": rng.integers(0, 3, (4, 4, 1)).astype(np.uint8),
    }


def plain(value: Any) -> Any:
    """Return a value as JSON that keeps dtypes and shapes."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if hasattr(value, "to_list"):
        return {"lists": plain(value.to_list())}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype == object:
            return {"lists": plain(array.tolist())}
        data = base64.b64encode(array.tobytes()).decode()
        return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts by their names joined."""
    out: dict[str, Any] = {}
    for name, item in tree.items():
        out |= flat(item, f"{prefix}{name}/") if isinstance(item, dict) else {prefix + name: item}
    return out


KINDS = {
    "featuresDict": "features_dict.FeaturesDict", "sequence": "sequence_feature.Sequence",
    "image": "image_feature.Image", "classLabel": "class_label_feature.ClassLabel",
    "tensor": "tensor_feature.Tensor", "text": "text_feature.Text", "audio": "audio_feature.Audio",
    "video": "video_feature.Video", "boundingBox": "bounding_boxes.BBoxFeature",
    "translation": "translation_feature.Translation",
}  # fmt: skip
NAMES = {"encodingFormat": "encoding_format", "numClasses": "num_classes", "sampleRate": "sample_rate"}
KEPT = {
    "image": ("shape", "dtype", "encoding_format"), "classLabel": ("num_classes",), "boundingBox": (),
    "text": (), "tensor": ("shape", "dtype", "encoding", "optional"), "translation": ("languages",),
    "audio": ("shape", "dtype", "file_format", "sample_rate"),
    "video": ("shape", "encoding_format", "ffmpeg_extra_args"), "sequence": ("feature", "length"),
}  # fmt: skip


def legacy(node: dict[str, Any]) -> dict[str, Any]:
    """Return a node of `features.json` as TFDS wrote it before 4.5."""
    (field,) = node.keys() & KINDS.keys()
    given = node[field]
    if field == "featuresDict":
        content = {name: legacy(child) for name, child in given["features"].items()}
        return {"type": f"tensorflow_datasets.core.features.{KINDS[field]}", "content": content}
    content = {NAMES.get(name, name): item for name, item in given.items()}
    kind = KINDS[field]
    if field == "sequence":
        content["feature"] = legacy(content["feature"])
        content["length"] = None if content["length"] == "-1" else int(content["length"])
    if field in ("image", "tensor", "audio", "video"):
        sizes = content.get("shape", {}).get("dimensions", [])
        content["shape"] = [None if size == "-1" else int(size) for size in sizes]
    if field in ("image", "video"):
        content.setdefault("encoding_format", None)
    if field == "video":
        content["ffmpeg_extra_args"] = []
    if field == "audio":
        content |= {"file_format": None, "sample_rate": int(content["sample_rate"])}
    if field == "classLabel":
        content["num_classes"] = int(content["num_classes"])
    if field == "translation" and content.get("variableLanguagesPerExample"):
        kind = "translation_feature.TranslationVariableLanguages"
    content = {name: item for name, item in content.items() if name in KEPT[field]}
    return {"type": f"tensorflow_datasets.core.features.{kind}", "content": content}


def main() -> None:
    """Write the folder again."""
    import tensorflow_datasets as tfds

    class Birds(tfds.core.GeneratorBasedBuilder):
        """Small things of every kind."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            return tfds.core.DatasetInfo(
                builder=self, description="Small things of every kind.",
                features=tfds.features.FeaturesDict(features(tfds.features)),
                supervised_keys=("image", "label"), homepage="https://example.org/birds", license="CC0",
            )  # fmt: skip

        def _split_generators(self, dl_manager: Any) -> Any:
            del dl_manager
            parts = {"train": range(5), "test": range(5, 7), "unsupervised": range(7, 9)}
            return {name: self._generate_examples(rows) for name, rows in parts.items()}

        def _generate_examples(self, rows: Any) -> Any:
            yield from ((i, record(i, tfds.features)) for i in rows)

    shutil.rmtree(FOLDER / "birds", ignore_errors=True)
    builder = Birds(data_dir=str(FOLDER))
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=2))
    values = {
        split: [plain(value) for value in tfds.as_numpy(builder.as_dataset(split=split))]
        for split in builder.info.splits
    }
    (FOLDER / "values.json").write_text(json.dumps(values) + "\n", encoding="utf-8")
    for path in (FOLDER / "birds").rglob("features.json"):
        tree = json.loads(path.read_text())
        path.write_text(json.dumps(tree, separators=(",", ":")))
        older = legacy(tree)
        # tfds reads it as the same features.
        read = tfds.features.FeatureConnector.from_json(json.loads(json.dumps(older)))
        both = (each.get_serialized_info() for each in (read, builder.info.features))
        one, other = ({name: str(info) for name, info in flat(each).items()} for each in both)
        assert one == other
        (FOLDER / "features-before-4.5.json").write_text(json.dumps(older, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
