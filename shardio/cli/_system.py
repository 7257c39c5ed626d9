"""What is installed here, for reports of problems: versions, and which implementation does the work."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

__all__ = ["system_facts"]

_PACKAGES = (
    "numpy",
    "fsspec",
    "protobuf",
    "crc32c",
    "zstandard",
    "s3fs",
    "gcsfs",
    "adlfs",
    "obstore",
    "torch",
    "torchdata",
    "Pillow",
    "tqdm",
    "distributed",
    "ray",
    "pyarrow",
    "lmdb",
)


def system_facts() -> dict[str, str | int | None]:
    """Return names and versions, None for what is not installed; nothing heavy is imported."""
    import shardio
    from shardio import kernels

    facts: dict[str, str | int | None] = {
        "shardio": shardio.__version__,
        "kernels": kernels.IMPLEMENTATION,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "byte_order": sys.byteorder,
    }
    for package in _PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = None
    return facts
