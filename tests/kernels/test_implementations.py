"""Two implementations, one face."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shardio import kernels, storage
from tests.kernels.differential import IMPLEMENTATIONS

# One implementation serves both.
SHARED = {"encode_sequence_example"}


def test_all_implementations_have_the_same_names() -> None:
    names = [set(module.__all__) - SHARED for module in IMPLEMENTATIONS]
    assert all(found == names[0] for found in names)
    assert names[0] < set(dir(kernels))


def test_the_one_in_use_is_named() -> None:
    assert ("compiled" if len(IMPLEMENTATIONS) == 2 else "reference") == kernels.IMPLEMENTATION
    assert kernels.parse_examples is IMPLEMENTATIONS[-1].parse_examples


@pytest.mark.skipif(kernels.IMPLEMENTATION != "compiled", reason="nothing was compiled here")
def test_all_of_a_compiled_tree_is_compiled() -> None:
    """What is not would be the reference's: a hundred times slower."""
    assert kernels.MISSING == (), "compile again: make env"
    assert storage.READS_COMPILED, "compile again: make env"
    for name in set(IMPLEMENTATIONS[-1].__all__) - SHARED:
        function = getattr(kernels, name)
        assert function is getattr(IMPLEMENTATIONS[-1], name)
        assert function is not getattr(IMPLEMENTATIONS[0], name)


@pytest.mark.skipif(kernels.IMPLEMENTATION != "compiled", reason="nothing was compiled here")
def test_what_was_not_compiled_is_said() -> None:
    code = (
        "from pathlib import Path\n"
        "real = Path.exists\n"
        "Path.exists = lambda path: not path.name.startswith('_images.') and real(path)\n"
        "import sys; sys.modules['shardio.storage._pread'] = None\n"
        "import shardio.kernels as k\n"
        "assert k.IMPLEMENTATION == 'compiled'\n"
        "assert k.MISSING == ('resize_image',), k.MISSING\n"
        "assert '_reference' in k.resize_image.__module__\n"
        "from shardio.cli._describe import system_facts\n"
        "print(system_facts()['kernels'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "compiled, without resize_image, read_ranges\n"


def test_without_the_extension_the_reference_serves() -> None:
    """Where nothing was compiled the same names do the same work; Cython is not asked."""
    code = (
        "import importlib.machinery as m; m.EXTENSION_SUFFIXES.clear()\n"
        "import sys, shardio.kernels as k\n"
        "assert k.IMPLEMENTATION == 'reference', k.IMPLEMENTATION\n"
        "assert k.MISSING == ()\n"
        "assert 'cython' not in sys.modules\n"
        "assert 'google.protobuf' not in sys.modules\n"
        "assert k.scan_frames(k.encode_frames([b'x'])[0]).frame_stops.tolist() == [17]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
