"""The kernels in C, written in Cython's pure-Python mode; importable only where they were compiled.

Raises:
    ImportError: nothing was compiled here; `shardio.kernels` then takes `_reference`.
"""

from __future__ import annotations

import importlib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from shardio.kernels import _reference
from shardio.kernels._reference import __all__ as __all__

_HERE = Path(__file__).parent
_MODULES = ("_blocks", "_cyutility", "_encode", "_frames", "_messages", "_orders", "_parse", "_slices")


def _is_built(name: str) -> bool:
    return any((_HERE / (name + suffix)).exists() for suffix in EXTENSION_SUFFIXES)


# Without this question a development environment, where Cython is installed, would run the sources as Python:
# right and a thousand times slower than the reference.
if not all(map(_is_built, _MODULES)):
    raise ImportError("the kernels were not compiled here")

# The C of `_images` needs more of a compiler than the rest, which does not depend on it.
MISSING = () if _is_built("_images") else ("resize_image",)
for _name in (*_MODULES, *(() if MISSING else ("_images",))):
    _module = importlib.import_module(f"{__name__}.{_name}")
    globals().update({name: getattr(_module, name) for name in __all__ if hasattr(_module, name)})

# One implementation of `encode_sequence_example` serves both. Any other name that is not here is an error.
globals().update({name: getattr(_reference, name) for name in (*MISSING, "encode_sequence_example")})
