"""The kernels, written in Cython and compiled when shardio is built.

Raises:
    ImportError: they were not compiled.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec(f"{__name__}._blocks") is None:
    raise ImportError(
        "shardio's compiled modules are missing: install a wheel (`pip install --force-reinstall shardio`), "
        "or run `make env` in a checkout, which needs a C compiler",
        name=__name__,
    )
