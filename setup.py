"""Compile `shardio.kernels` and one file of `shardio.reader`; find the packages.

Everything else is in pyproject.toml, which cannot find packages and rename a folder at once.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.errors import BaseError, CCompilerError

FOLDER = Path("shardio/kernels/_compiled")
SOURCES = [*sorted(FOLDER.glob("_[a-z]*.pyx")), Path("shardio/reader/_gather.pyx")]
# What Cython would put into every module that has a typed view is one module: it would be most of the C.
SHARED = FOLDER / "_cyutility.c"
NO_COMPILER = (
    "Building shardio from source needs a C compiler and the headers of Python: install them (Debian and "
    "Ubuntu: `apt install gcc python3-dev`; macOS: `xcode-select --install`; Windows: the Build Tools for "
    "Visual Studio), or install a wheel with `pip install --only-binary shardio shardio`"
)


def extensions() -> list[Extension]:
    """Return one extension per Cython source.

    Raises:
        SystemExit: shardio can't be built here.
    """
    if sys.byteorder != "little":
        raise SystemExit(
            "shardio needs a little-endian processor: its formats are read without swapping bytes"
        )
    try:
        from Cython.Build import cythonize
    except ImportError:
        raise SystemExit("building shardio needs Cython 3.1 or later: pip install 'Cython>=3.1'") from None
    # Debugging symbols would be most of the wheel.
    flags = [] if os.name == "nt" else ["-O3", "-g0"]
    modules = [
        Extension(
            ".".join(source.with_suffix("").parts),
            [source.as_posix()],
            include_dirs=[FOLDER.as_posix(), "shardio/reader"],
            extra_compile_args=flags,
        )
        for source in [*SOURCES, SHARED]
    ]
    extensions: list[Extension] = cythonize(
        modules,
        build_dir="build/cython",
        shared_utility_qualified_name=".".join(SHARED.with_suffix("").parts),
    )
    return extensions


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


class BuildWhatChanged(build_ext):
    """An editable install takes compiled modules that lie in the tree and are younger than their sources.

    Environments that share a checkout share these files: the second of one Python compiles nothing.
    """

    def run(self) -> None:
        """Compile all modules.

        Raises:
            SystemExit: a module can't be compiled; says what to install.
        """
        try:
            super().run()
        except (BaseError, CCompilerError) as error:
            raise SystemExit(f"{NO_COMPILER} ({error})") from None

    def build_extension(self, ext: Extension) -> None:
        """Compile one module, or take the one that is there."""
        built = Path(self.get_ext_fullpath(ext.name))
        there = Path(*ext.name.split(".")[:-1], built.name)
        sources = [*ext.sources, *ext.depends, __file__]
        if (
            self.editable_mode
            and there.exists()
            and there.stat().st_mtime > max(Path(source).stat().st_mtime for source in sources)
        ):
            built.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(there, built)
        else:
            super().build_extension(ext)


class ReproducibleSdist(sdist):
    """The archive of the same sources is the same bytes, whoever makes it and when."""

    def make_archive(
        self, base_name: str, _format: str, _root_dir: Any = None, base_dir: Any = None, **_: Any
    ) -> str:
        """Pack the files by name, as nobody's, at the time that SOURCE_DATE_EPOCH says."""
        epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))  # 1980, before which no zip file can be

        def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
            info.mtime, info.uid, info.gid, info.uname, info.gname = epoch, 0, 0, "", ""
            info.mode = 0o755 if info.mode & 0o100 else 0o644
            return info

        path = f"{base_name}.tar.gz"
        with (
            Path(path).open("wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name in sorted(map(str, Path(base_dir).rglob("*"))):
                archive.add(name, recursive=False, filter=plain)
        return path


setup(
    cmdclass={"build_ext": BuildWhatChanged, "sdist": ReproducibleSdist},
    packages=packages(),
    ext_modules=extensions(),
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
    long_description=readme(),
    long_description_content_type="text/markdown",
    project_urls=urls(),
)
