"""Two implementations, one face."""

from __future__ import annotations

import subprocess
import sys

from shardio import kernels
from tests.kernels.differential import IMPLEMENTATIONS


def test_all_implementations_have_the_same_names() -> None:
    names = [set(module.__all__) - {"encode_sequence_example"} for module in IMPLEMENTATIONS]
    assert all(found == names[0] for found in names)
    assert names[0] < set(kernels.__all__)


def test_the_one_in_use_is_named() -> None:
    assert ("compiled" if len(IMPLEMENTATIONS) == 2 else "reference") == kernels.IMPLEMENTATION
    assert kernels.parse_examples is IMPLEMENTATIONS[-1].parse_examples


def test_without_the_extension_the_reference_serves() -> None:
    """Where nothing was compiled the same names do the same work; Cython is not asked."""
    code = (
        "import importlib.machinery as m; m.EXTENSION_SUFFIXES.clear()\n"
        "import sys, shardio.kernels as k\n"
        "assert k.IMPLEMENTATION == 'reference', k.IMPLEMENTATION\n"
        "assert 'cython' not in sys.modules\n"
        "assert 'google.protobuf' not in sys.modules\n"
        "assert k.scan_frames(k.encode_frames([b'x'])[0]).frame_stops.tolist() == [17]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
