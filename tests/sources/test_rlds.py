"""RLDS and Open-X folders: `Dataset` features of steps are read in place with their types.

The two forms of `features.json` are those of tfds 4.9 and of tfds before 4.5.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardio
from shardio import codecs
from tests.convert.conftest import picture
from tests.indexer.shards import tfrecord

FEATURES = "tensorflow_datasets.core.features."
STEPS = [3, 1, 0]
STORED = {
    "episode_metadata/file_path": "text",
    "steps/action": "float32[?,7]",
    "steps/is_first": "int64[?]",
    "steps/language_instruction": "text[?]",
    "steps/observation/image": "jpeg[?]",
    "steps/observation/state": "float32[?,2]",
    "steps/words/ragged_flat_values": "text[?]",
    "steps/words/ragged_row_lengths_0": "int64[?]",
}
TYPED = {
    **{name: kind for name, kind in STORED.items() if "ragged" not in name},
    "steps/is_first": "bool[?]",
    "steps/observation/state": "float64[?,2]",
    "steps/words": "json",
}


def tensor(dtype: str, *shape: int | None) -> dict[str, Any]:
    return {"class": "tensor_feature.Tensor", "shape": shape, "dtype": dtype, "encoding": "none"}


TREE: dict[str, Any] = {
    "episode_metadata": {"file_path": {"class": "text_feature.Text"}},
    "steps": {
        "class": "dataset_feature.Dataset",
        "feature": {
            "action": tensor("float32", 7),
            "is_first": {"class": "scalar.Scalar", "shape": (), "dtype": "bool", "encoding": "none"},
            "language_instruction": {"class": "text_feature.Text"},
            "observation": {
                "image": {"class": "image_feature.Image", "shape": (8, 8, 3), "encoding_format": "jpeg"},
                "state": tensor("float64", 2),
            },
            "words": {"class": "sequence_feature.Sequence", "feature": {"class": "text_feature.Text"}},
        },
    },
}  # fmt: skip


def today(node: dict[str, Any]) -> dict[str, Any]:
    """Return a node as tfds 4.9 writes it."""
    if "class" not in node:
        inner = {name: today(each) for name, each in node.items()}
        return {
            "pythonClassName": f"{FEATURES}features_dict.FeaturesDict",
            "featuresDict": {"features": inner},
        }
    found: dict[str, Any] = {"pythonClassName": FEATURES + node["class"]}
    sizes = [str(size or -1) for size in node.get("shape", ())]
    content = {"shape": {"dimensions": sizes} if sizes else {}, "dtype": node.get("dtype")}
    if "feature" in node:
        return {**found, "sequence": {"feature": today(node["feature"]), "length": "-1"}}
    if "encoding_format" in node:
        return {**found, "image": {**content, "dtype": "uint8", "encodingFormat": node["encoding_format"]}}
    return {**found, **({"tensor": {**content, "encoding": "none"}} if "dtype" in node else {"text": {}})}


def before(node: dict[str, Any]) -> dict[str, Any]:
    """Return a node as tfds before 4.5 wrote it."""
    if "class" not in node:
        inner = {name: before(each) for name, each in node.items()}
        return {"type": f"{FEATURES}features_dict.FeaturesDict", "content": inner}
    content = {name: item for name, item in node.items() if name != "class"}
    if "shape" in content:
        content["shape"] = list(content["shape"])
    if "feature" in content:
        content = {"feature": before(content["feature"]), "length": None}
    return {"type": FEATURES + node["class"], "content": content}


def episode(count: int) -> dict[str, Any]:
    """Return an episode as tfds gives it."""
    return {
        "episode_metadata/file_path": f"{count}.h5",
        "steps/action": np.arange(7 * count, dtype=np.float32).reshape(count, 7),
        "steps/is_first": np.arange(count) == 0,
        "steps/language_instruction": [f"step {n}" for n in range(count)],
        "steps/observation/image": [picture(n) for n in range(count)],
        "steps/observation/state": np.arange(2.0 * count).reshape(count, 2),
        "steps/words": [["w"] * n for n in range(count)],
    }


def plain(value: dict[str, Any]) -> dict[str, Any]:
    return {
        name: np.asarray(each).tolist() if name != "steps/words" else each for name, each in value.items()
    }


def stored(value: dict[str, Any]) -> dict[str, Any]:
    """Return what a record holds of an episode."""
    words = value.pop("steps/words")
    return {
        **value,
        "steps/is_first": value["steps/is_first"].astype(np.int64),
        "steps/observation/state": value["steps/observation/state"].astype(np.float32),
        "steps/words/ragged_flat_values": [word for each in words for word in each],
        "steps/words/ragged_row_lengths_0": np.array(list(map(len, words)), np.int64),
    }


@pytest.fixture(name="folder", params=["today", "before"])
def folder_fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "bridge" / "0.1.0"
    folder.mkdir(parents=True)
    form = {"today": today, "before": before}[request.param]
    (folder / "features.json").write_text(json.dumps(form(TREE)))
    splits = [{"name": "train", "numShards": "1", "shardLengths": [str(len(STEPS))]}]
    (folder / "dataset_info.json").write_text(json.dumps({"name": "bridge", "splits": splits}))
    codec = codecs.record_codec(STORED)
    payloads = [codec.encode(stored(episode(count))) for count in STEPS]
    (folder / "bridge-train.tfrecord-00000-of-00001").write_bytes(tfrecord(payloads))
    return folder


def test_adoption_reads_steps_as_they_are_stored(folder: Path) -> None:
    report = shardio.adopt(folder)
    assert report.ok
    assert {name: feature.short for name, feature in (report.schema or {}).items()} == STORED
    for count, value in zip(STEPS, shardio.open(folder), strict=True):
        assert plain(value) == plain(stored(episode(count)))
    assert shardio.verify(folder, decode=True).ok


def test_conversion_gives_the_types_of_tfds(folder: Path, tmp_path: Path) -> None:
    report = shardio.convert_dataset(folder, tmp_path / "out")
    assert {name: feature.short for name, feature in (report.schema or {}).items()} == TYPED
    for count, value in zip(STEPS, shardio.open(tmp_path / "out"), strict=True):
        assert plain(value) == plain(episode(count))
