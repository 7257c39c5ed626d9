"""Datasets of every kind that the viewer shows, small, with what its cells are."""

from __future__ import annotations

import io
import json
import tarfile
import wave
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import shardio
from shardio import codecs

GOLDEN = Path(__file__).parent.parent / "golden"


def picture(kind: str = "JPEG", edge: int = 24) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.arange(edge * edge * 3, dtype=np.uint8).reshape(edge, edge, 3)).save(out, kind)
    return out.getvalue()


def song() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(np.arange(800, dtype="<i2").tobytes())
    return out.getvalue()


def values(url: Path) -> dict[str, str]:
    """All kinds of features, with a schema; returns the kind of cell of each."""
    schema = {
        "image": "jpeg", "label": shardio.Feature("int64", classes=["wren", "robin"]), "caption": "text",
        "tokens": "int32[?]", "song": "bytes", "mel": "float32[?,?]", "pixels": "uint8[8,8,3]",
        "curve": "float32[9]", "about": "json",
        "weight": shardio.Feature("bfloat16", optional=True), "raw": "bytes",
    }  # fmt: skip
    with shardio.DatasetWriter(url, schema, "zstd") as out:
        for n in range(30):
            value = {
                "image": picture(), "label": n % 2, "caption": f"bird {n}", "tokens": list(range(n)),
                "song": song(), "mel": np.full((3, 4), np.nan if n == 1 else n, np.float32),
                "pixels": np.full((8, 8, 3), n, np.uint8), "curve": np.arange(9) + n,
                "about": {"n": n, "__proto__": "x"},
                "raw": bytes([255, 0, n]),
            }  # fmt: skip
            out.write(value, split="test" if n % 3 == 2 else "train")
    kinds = {
        "image": "image",
        "label": "number",
        "caption": "text",
        "song": "audio",
        "about": "json",
        "raw": "bytes",
    }
    return {**dict.fromkeys(("tokens", "mel", "pixels", "curve"), "array"), **kinds, "weight": "missing"}


def examples(url: Path) -> dict[str, str]:
    """Examples without a schema."""
    with shardio.DatasetWriter(url) as out:
        for n in range(10):
            out.write(
                codecs.encode_example({"image": picture("PNG"), "label": n, "name": f"b{n}", "v": [0.5, n]})
            )
    return {"image": "image", "label": "number", "name": "text", "v": "array"}


def sequences(url: Path) -> dict[str, str]:
    """SequenceExamples with a schema."""
    schema = {"context": {"id": "int64"}, "feature_lists": {"frame": "jpeg", "box": "float32[4]"}}
    with shardio.DatasetWriter(url, schema, encoding="sequence_example") as out:
        for n in range(4):
            lists: dict[str, Any] = {"frame": [picture()] * 2, "box": [[0, 0, 1, n]] * 2}
            out.write({"context": {"id": n}, "feature_lists": lists})
    return {"id": "number", "[] frame": "list", "[] box": "list"}


def bare_sequences(url: Path) -> dict[str, str]:
    """SequenceExamples without a schema: the lists must not be lost where the context can be read alone."""
    with shardio.DatasetWriter(url) as out:
        value = {"context": {"id": 1}, "feature_lists": {"box": [[1.0, 2.0], [3.0]]}}
        out.write(codecs.encode_sequence_example(value))
    return {"id": "number", "[] box": "list"}


def tensors(url: Path) -> dict[str, str]:
    with shardio.DatasetWriter(url, {"id": "int64", "grid": "float16[2,5,6]"}, encoding="tensors") as out:
        for n in range(3):
            out.write({"id": n, "grid": np.full((2, 5, 6), n)})
    return {"id": "number", "grid": "array"}


def lines(url: Path) -> dict[str, str]:
    """Adopted lines of text."""
    import shardio_indexer

    url.mkdir()
    (url / "words.txt").write_text("wren\nrobin\n", encoding="utf-8")
    shardio_indexer.adopt(url / "words.txt", into=url)
    return {"": "text"}


def samples(url: Path) -> dict[str, str]:
    """Samples of an adopted tar file."""
    import shardio_indexer

    url.mkdir()
    with tarfile.open(url / "birds.tar", "w") as tar:
        for n in range(3):
            contents = {
                "jpg": picture(),
                "json": json.dumps({"n": n}).encode(),
                "cls": b"%d" % n,
                "wav": song(),
            }
            for extension, data in contents.items():
                member = tarfile.TarInfo(f"bird{n}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    shardio_indexer.adopt(url / "birds.tar", into=url)
    return {"__key__": "text", "jpg": "image", "json": "json", "cls": "number", "wav": "audio"}


KINDS = (values, examples, sequences, bare_sequences, tensors, lines, samples)
