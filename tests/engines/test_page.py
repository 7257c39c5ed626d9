"""The code of the page on engines, as it is printed."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import shardio
from tests.engines.conftest import write_birds

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"
SECTION = re.compile(r"^## (.*?)$(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
CODE = {
    name: re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    for name, text in SECTION.findall(PAGE.read_text(encoding="utf-8"))
}


def _run(name: str) -> None:
    names = {"__name__": "page"}
    for code in CODE[name]:
        exec(compile(code, name, "exec"), names)


def test_each_section_with_code_is_run_somewhere() -> None:
    assert {name for name, code in CODE.items() if code} == {
        "Ray Data", "Spark", "Dask", "Beam", "Polars", "torchdata", "DuckDB and datasets", "Daft",
        "Other engines",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:records are read", "ignore:Dask")
@pytest.mark.parametrize("name", ["Dask", "Polars", "torchdata", "DuckDB and datasets", "Other engines"])
def test_code_of_the_page(name, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write_birds("birds")
    _run(name)
    assert capsys.readouterr().out


@pytest.mark.engines
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Ray Data", "Spark", "Beam", "Daft"])
def test_code_of_the_page_in_other_environments(name, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write_birds(str(tmp_path / "birds"))
    # Ray's workers and Spark's have folders of their own.
    CODE[name] = [re.sub(r'"(birds|labels|few)"', rf'"{tmp_path}/\1"', code) for code in CODE[name]]
    try:
        _run(name)
    finally:
        if name == "Ray Data":
            importlib.import_module("ray").shutdown()  # the page's code began it; other tests begin their own
    assert len(shardio.open(tmp_path / "labels")) == 600 if name == "Beam" else capsys.readouterr().out
