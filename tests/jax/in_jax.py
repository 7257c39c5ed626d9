"""Tests that run JAX, in a process of their own (test_alone.py): it has threads, which no fork survives."""

from __future__ import annotations

import doctest
import functools
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import shardio
from shardio.jax import StreamingLoader
from tests.suites.errors import refused

PAGE = Path(__file__).parents[2] / "docs/training/jax.md"


def test_one_device(url, expected) -> None:
    loader = StreamingLoader(shardio.open(url), global_batch=8, seed=3)
    batches = list(loader)
    assert [batch["n"].tolist() for batch in batches] == expected
    assert (len(loader), loader.remaining) == (12, 0)
    assert isinstance(batches[0]["x"], jax.Array)
    assert (batches[0]["x"].shape, str(batches[0]["x"].dtype)) == ((8, 3), "float32")
    assert batches[0]["t"] == [str(n) for n in expected[0]]
    loader.set_epoch(0)
    for _, _batch in zip(range(5), loader, strict=False):
        pass
    other = StreamingLoader(shardio.open(url), global_batch=8, seed=3)
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert [batch["n"].tolist() for batch in other] == expected[5:]
    assert loader.stats.epoch.records == 40


def test_the_examples_of_docstrings(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(shardio.jax._loader, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0


def test_rows_of_packed_documents(tmp_path) -> None:
    """On one process a global array has the rows that the transform made, be they fewer or more."""
    with shardio.DatasetWriter(tmp_path / "d", schema={"tokens": "int32[?]"}) as out:
        for n in range(100):
            out.write({"tokens": range(n % 7 + 1)})
    ds = shardio.open(tmp_path / "d")
    for rows in (None, 12, 20, 30):
        transform = functools.partial(shardio.pack_columns, length=16, rows=rows)
        options = {"global_batch": 20, "seed": 0, "batch_transform": transform}
        for placed, plain in zip(StreamingLoader(ds, **options), shardio.stream(ds, **options), strict=True):
            for name, column in plain.items():
                assert isinstance(placed[name], jax.Array)
                assert placed[name].tolist() == column.tolist()


def test_numbers_that_jax_has_no_room_for(tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path / "d", schema={"n": "int64"}) as out:
        for n in range(8):
            out.write({"n": (n == 5) << 40})
    with refused(ValueError, "'n'"):
        list(StreamingLoader(shardio.open(tmp_path / "d"), global_batch=4))
    with jax.enable_x64(True):
        batches = list(
            StreamingLoader(shardio.open(tmp_path / "d"), global_batch=4, shuffle=False, num_threads=0)
        )
    assert batches[1]["n"].tolist() == [0, 1 << 40, 0, 0]


def test_layouts_and_options_that_cannot_be(url) -> None:
    from shardio.jax import StreamingLoader

    ds = shardio.open(url)
    for options, words in (
        ({"remainder": "keep"}, 'take "pad"'), ({"rank": 0}, "come from the sharding"),
        ({"batch_size": 2, "global_batch": None}, "give global_batch="),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            StreamingLoader(ds, **{"global_batch": 8, **options})


def test_the_page_trains_and_goes_on(tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path / "d", schema={"x": "float32[4]", "label": "int64"}) as out:
        for n in range(1024):
            out.write({"x": np.eye(4)[n % 4] * 3, "label": n % 4})
    names: dict = {}
    exec(PAGE.read_text().split("```python\n")[1].split("```")[0], names)
    state, first = names["fit"](tmp_path / "d", steps=1)
    assert state["step"] == 1
    _, last = names["fit"](tmp_path / "d", state=state)
    assert first > last
