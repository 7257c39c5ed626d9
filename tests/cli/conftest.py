"""The program as a function, and a small dataset to point it at."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

import shardio
from shardio.cli import main


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ended]


def facts_in(text: str) -> set[tuple[str, str]]:
    """Return the rows of a report by name and value."""
    rows = (line.partition("  ") for line in text.splitlines() if not line.startswith(" "))
    return {(name, value.strip()) for name, _, value in rows if value}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> Ended:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Ended(code, *capsys.readouterr())

    return call


def jpeg(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    url = tmp_path / "birds"
    schema = {"image": "jpeg", "label": "int64", "name": "text", "vector": "float32[3]"}
    with shardio.DatasetWriter(url, schema, "zstd", metadata={"source": "made"}) as out:
        for number in range(30):
            value = {
                "image": jpeg(20 + number, 10),
                "label": number,
                "name": f"bird {number}",
                "vector": np.arange(3) + number,
            }
            out.write(value, split="test" if number % 3 == 2 else "train")
    return url


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A dataset of bytes, without schema, split and compression to choose."""
    url = tmp_path / "plain"
    with shardio.DatasetWriter(url) as out:
        for number in range(10):
            out.write(b"record %d" % number)
    return url


def shard_of(url: Path, split: str = "") -> Path:
    return next(p for p in sorted((url / "data").glob(f"{split}*")) if p.suffix != ".shardidx")
