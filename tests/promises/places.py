"""Datasets in places: golden ones copied, on disk or in memory, and what they hold."""

from __future__ import annotations

import base64
import json
import secrets
import shutil
from pathlib import Path
from typing import Any

import pytest

from shardio.storage import connect

GOLDEN = Path(__file__).parent.parent / "golden" / "v1"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))
SHARD_RECORDS = [base64.b64decode(text) for text in EXPECTED["shards"]]
DATASETS = sorted(name for name in EXPECTED if name != "shards")
PLACES = ("local", "memory")
# A case in a bucket takes seconds, so it is slow; `place="s3"` begins a server (tests/conftest.py).
IN_A_BUCKET = pytest.param("s3", marks=pytest.mark.slow)
EVERYWHERE = pytest.mark.parametrize("place", [*PLACES, IN_A_BUCKET])
S3_BUCKET = "promises"


def payloads(name: str, version: int | str, split: str) -> list[bytes]:
    """Return what a split of a golden dataset holds; "all" joins them by name."""
    splits = EXPECTED[name][str(version)]["splits"]
    names = sorted(splits) if split == "all" else [split]
    return [base64.b64decode(text) for each in names for text in splits[each]]


def copied(source: Path, place: str, tmp_path: Path) -> str:
    """Copy a folder of objects to a place of its own; return its URL."""
    if place == "local":
        target = tmp_path / secrets.token_hex(4)
        shutil.copytree(source, target)
        return str(target)
    url = fresh(place, tmp_path)
    store = connect(url)
    for path in source.rglob("*"):
        if path.is_file():
            store.put_if_absent(path.relative_to(source).as_posix(), path.read_bytes())
    return url


def fresh(place: str, tmp_path: Path) -> str:
    """Return a URL where nothing is yet."""
    if place == "local":
        return str(tmp_path / secrets.token_hex(4))
    return f"s3://{S3_BUCKET}/{secrets.token_hex(8)}" if place == "s3" else f"memory://{secrets.token_hex(8)}"
