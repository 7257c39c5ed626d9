"""Frameworks live in `.build/frameworks` (`make frameworks`), beside the environment and not in it."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from torch import library as torch_library

import shardio
from tests.pictures import picture

RECORDS = 100


@pytest.fixture(scope="session")
def operators():
    """Let torchvision be imported where its build is for another device than that of torch.

    Its compiled operators are missing then, and it looks for two of them when it is imported.
    """
    library = torch_library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    yield library
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def birds(tmp_path_factory):
    """Images whose label is their number, in two splits."""
    url = str(tmp_path_factory.mktemp("frameworks") / "birds")
    schema = {"image": "jpeg", "label": "int64"}
    with shardio.DatasetWriter(url, schema, block_bytes=4096) as out:
        for n in range(RECORDS):
            out.write({"image": picture(n, "JPEG"), "label": n}, split="train")
        for n in range(10):
            out.write({"image": picture(n, "JPEG"), "label": n}, split="val")
    return url


@pytest.fixture(scope="session")
def numbers(tmp_path_factory):
    """Rows of tokens, of which the first is the row's number."""
    url = str(tmp_path_factory.mktemp("frameworks") / "tokens")
    schema = {"tokens": "int64[8]", "input_ids": "int64[8]", "labels": "int64[8]"}
    with shardio.DatasetWriter(url, schema, block_bytes=512) as out:
        for n in range(RECORDS):
            row = np.r_[n, 100:107].astype(np.int64)
            out.write({"tokens": row, "input_ids": row, "labels": row})
    return url
