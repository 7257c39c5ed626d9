"""The demo's steps on small input: what `make demo` shows is kept working."""

from __future__ import annotations

import importlib.util
import struct
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    path = Path(__file__).parent.parent / "examples" / "demo.py"
    spec = importlib.util.spec_from_file_location("shardio_demo", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["shardio_demo"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_demo_runs_to_its_summary(demo: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    pixels = np.arange(240 * 260 * 3, dtype=np.uint32).astype(np.uint8).reshape(240, 260, 3)
    texts = [{"source": f"page {n}", "text": f"words {n} " * n, "lines": n} for n in range(60)]
    demo.run(tmp_path, {"one": pixels, "two": pixels[::-1]}, texts, 80)
    said = capfd.readouterr().out
    assert "[6/6]" in said
    assert "72 images in batches of [64, 3, 96, 96]" in said
    assert "DAMAGED" in said
    assert "the same 8 photographs and 6 texts, bit for bit" in said
    assert "14 records read without shardio, none differs" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photographs", "text"]
    demo.run(tmp_path, {"one": pixels}, texts[:20], 20)


def test_the_independent_reader_looks_at_checksums(demo: ModuleType) -> None:
    from shardio import kernels

    data = bytearray(kernels.encode_frames([b"one", b"two"])[0])
    assert list(demo.independent_reader(bytes(data))) == [b"one", b"two"]
    for place in range(len(data)):
        broken = bytearray(data)
        broken[place] ^= 4
        with pytest.raises((SystemExit, struct.error)):
            list(demo.independent_reader(bytes(broken)))


def test_texts_of_the_standard_library(demo: ModuleType) -> None:
    records = list(demo.texts())
    assert len(records) > 2000
    assert any(
        record["source"] == "argparse.py" and "class ArgumentParser" in record["text"] for record in records
    )
