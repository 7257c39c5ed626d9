"""What the project says of itself in two places agrees: public names, generated code, the version."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

import shardio

ROOT = Path(__file__).parents[1]


def test_the_package_offers_at_run_time_what_type_checkers_see() -> None:
    """Names are loaded when they are first used, so they are imported for type checkers apart."""
    tree = ast.parse((ROOT / "shardio" / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert sorted(shardio.__all__) == sorted(seen)
    for name, module in seen.items():
        assert getattr(shardio, name) is getattr(importlib.import_module(str(module)), name), name


def test_no_module_has_the_name_of_a_public_function() -> None:
    """Importing a submodule sets its name on the package: `shardio.stream` must stay the function."""
    modules = {path.stem for path in (ROOT / "shardio").iterdir()}
    public = {name for name in shardio.__all__ if not isinstance(getattr(shardio, name), types.ModuleType)}
    assert public & modules == set()


def test_dir_lists_the_public_names() -> None:
    script = "import shardio.writer, json; shardio.open; print(json.dumps(dir(shardio)))"
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert set(json.loads(found)) == {*shardio.__all__, "jax", "torch", "v1"}


@pytest.mark.slow
def test_the_generated_code_matches_the_protos(tmp_path: Path) -> None:
    """`shardio/v1` is what the pinned compiler makes of `protos/`, byte for byte, and nothing else."""
    compiler = ROOT / ".build" / "pbenv" / "bin" / "python"
    if not compiler.exists():
        pytest.fail("the pinned protobuf compiler is not installed: run `make tools`")
    protos = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "protos").rglob("*.proto"))
    arguments = ["-I", "protos", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([compiler, "-m", "grpc_tools.protoc", *arguments, *protos], cwd=ROOT, check=True)
    made = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "shardio" / "v1").iterdir()}
    committed = {
        path.name: path.read_text(encoding="utf-8") for path in (ROOT / "shardio" / "v1").glob("*_pb2.py*")
    }
    stale = {name for name in made | committed if made.get(name) != committed.get(name)}
    assert stale == set(), "run `make protos` and commit what it changes"


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert shardio.__version__ == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
