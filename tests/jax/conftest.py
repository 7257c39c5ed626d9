"""The data of these tests, and the batches of its stream."""

from __future__ import annotations

import numpy as np
import pytest

import shardio


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    place = tmp_path_factory.mktemp("jax") / "d"
    with shardio.DatasetWriter(
        place, schema={"n": "int64", "x": "float32[3]", "t": "text"}, block_bytes=64
    ) as out:
        for n in range(100):
            out.write({"n": n, "x": np.full(3, n), "t": str(n)})
    return str(place)


@pytest.fixture(scope="module")
def expected(url):
    return [batch["n"].tolist() for batch in shardio.stream(shardio.open(url), global_batch=8, seed=3)]
