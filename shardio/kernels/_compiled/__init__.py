"""The kernels, written in Cython's pure-Python mode and compiled when shardio is built.

Raises:
    ImportError: a module was not compiled.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


def _find_uncompiled(folder: Path) -> list[str]:
    """Return the modules of which only the source is there."""
    modules = {path.stem for path in folder.glob("_[a-z]*.py")} | {"_cyutility"}
    return sorted(
        name
        for name in modules
        if not any((folder / (name + suffix)).exists() for suffix in EXTENSION_SUFFIXES)
    )


# Where Cython is installed Python would run the sources: correctly, and a thousand times slower.
if _uncompiled := _find_uncompiled(Path(__file__).parent):
    raise ImportError(
        f"shardio's compiled modules are missing ({', '.join(_uncompiled)}): install a wheel with "
        "`pip install --force-reinstall shardio`, or run `make env` in a checkout, which needs a C compiler",
        name=__name__,
    )
