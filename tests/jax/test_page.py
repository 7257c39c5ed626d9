"""The page on JAX runs as it stands."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import shardio

PAGE = Path(__file__).parents[2] / "docs/training/jax.md"


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
