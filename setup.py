"""Build the compiled half of `shardio.kernels`, and one file of `shardio.storage`; find the packages.

Where there is no C compiler, nothing is built. Everything else is in pyproject.toml, which cannot find
packages and rename a folder at once.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup

FOLDER = Path("shardio/kernels/_compiled")
SOURCES = [*sorted(FOLDER.glob("_[a-z]*.py")), Path("shardio/storage/_pread.py")]
# What Cython would put into every module that has a typed view is one module: it would be most of the C.
SHARED = FOLDER / "_cyutility.c"


def extensions() -> list[Extension]:
    """Return one optional extension per Cython source; none without Cython or on a big-endian host."""
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    if sys.byteorder != "little":
        return []
    # Debugging symbols would be most of the wheel.
    flags = [] if os.name == "nt" else ["-O3", "-g0"]
    modules = [
        Extension(
            ".".join(source.with_suffix("").parts),
            [source.as_posix()],
            include_dirs=[FOLDER.as_posix()],
            extra_compile_args=flags,
        )
        for source in [*SOURCES, SHARED]
    ]
    built: list[Extension] = cythonize(
        modules,
        build_dir="build/cython",
        shared_utility_qualified_name=".".join(SHARED.with_suffix("").parts),
    )
    # Set here, because cythonize makes new extensions and forgets it.
    for module in built:
        module.optional = True
    return built


def packages() -> list[str]:
    """Return every package by the name it is installed as: `indexer/` becomes `shardio_indexer`."""
    found = find_packages(include=["shardio", "shardio.*", "indexer", "indexer.*"])
    return [f"shardio_{name}" if name.split(".")[0] == "indexer" else name for name in found]


def urls() -> dict[str, str]:
    """Return the addresses of site and repository that the variables of a release say: see CONTRIBUTING."""
    site, repository = (os.environ.get(name, "").rstrip("/") for name in ("SITE_URL", "REPO_URL"))
    found = {"Documentation": site, "Source": repository}
    if repository:
        found |= {"Issues": f"{repository}/issues", "Changelog": f"{repository}/blob/main/CHANGELOG.md"}
    return {name: url for name, url in found.items() if url}


def readme() -> str:
    """Return the README; its links and pictures are absolute where a release says the repository."""
    text = Path("README.md").read_text(encoding="utf-8")
    repository = os.environ.get("REPO_URL", "").rstrip("/")
    if not repository:
        return text
    text = re.sub(r'(src|srcset)="(?!\w+:)', rf'\1="{repository}/raw/main/', text)
    return re.sub(r"(?<!!)\]\((?!\w+:|#)", f"]({repository}/blob/main/", text)


setup(
    packages=packages(),
    ext_modules=extensions(),
    long_description=readme(),
    long_description_content_type="text/markdown",
    project_urls=urls(),
)
