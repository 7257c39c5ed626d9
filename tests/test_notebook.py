"""What a notebook shows: escaped, short, and as it was for everything that is not shardio's."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import nbformat
import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient

import shardio
from tests.test_pages import ROOT

HOSTILE = '<script>alert(1)</script>" onload="x'


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def check(text: str) -> None:
    found = Tags(text)
    assert found.tags <= {"div", "table", "thead", "tbody", "tr", "th", "td", "strong"}
    assert found.attributes <= {"style"}
    assert all(char.isprintable() for char in text)


@pytest.fixture
def shell():
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "shardio")
    yield shell
    shell.run_line_magic("unload_ext", "shardio")
    InteractiveShell.clear_instance()


def test_whatever_is_shown_is_text(tmp_path, shell) -> None:
    classes = [HOSTILE, "\u202egpj.exe", "b"]
    schema = {
        HOSTILE: "text",
        "label": shardio.Feature("int64", classes=classes, description="<b>\u202e\x1b[31m" + HOSTILE),
        "data": "bytes",
    }
    url = tmp_path / "<img src=x onerror=alert(1)>"
    with shardio.DatasetWriter(url, schema=schema) as out:
        out.write({HOSTILE: HOSTILE + "\x1b[2J", "label": 0, "data": HOSTILE.encode() * 1000}, split="train")
    reader = shardio.open(url)
    form = shell.display_formatter.format
    for value in (reader, reader.schema, shardio.log(url)[0], reader[0], reader.read_batch([0])):
        shown = form(value)[0]
        check(shown["text/html"])
        assert "&lt;" in shown["text/html"] or "train" in shown["text/html"]
        assert len(shown["text/plain"]) < 2500
    assert "1 record" in reader._repr_html_()
    assert "&lt;script&gt;" in reader._repr_html_()


def test_records_are_short_and_other_dicts_as_before(shell) -> None:
    form = shell.display_formatter.format
    record = {"image": b"\xff" * 100_000, "pixels": np.zeros((28, 28), np.uint8), "label": np.int64(3)}
    shown = form(record)[0]
    assert len(shown["text/plain"]) < 300
    assert "100,000 bytes" in shown["text/plain"]
    assert "uint8[28,28]" in shown["text/html"]
    for other in ({"a": 1}, {}, {1: b"x"}, {"a": {"b": [1, 2]}}):
        assert form(other)[0] == {"text/plain": repr(other)}
    shell.run_line_magic("unload_ext", "shardio")
    assert form({"a": b"x" * 200})[0] == {"text/plain": repr({"a": b"x" * 200})}


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.name for path in (ROOT / "examples").glob("*.ipynb")])
def test_a_notebook_runs_and_says_what_it_shows(name, tmp_path) -> None:
    """Outputs in the tree are those of a run: all but numbers of time and addresses are the same."""
    notebook = nbformat.read(ROOT / "examples" / name, as_version=4)
    before = [outputs(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert any(before), "the notebook is kept as it was run"
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert [outputs(cell) for cell in notebook.cells if cell.cell_type == "code"] == before


def outputs(cell) -> list[str]:
    found = []
    for output in cell.outputs:
        text = output.get("text") or output.get("data", {}).get("text/plain", "")
        if "image/png" not in output.get("data", {}):
            found.append(re.sub(r"/\S+/|sha256:\w+|[\d.,]+ (s|ms|MB/s|kB)\b|0x\w+", "", str(text)))
    return found
