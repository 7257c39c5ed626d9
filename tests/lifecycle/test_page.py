"""The page on curating: its code runs as printed, and says what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import shardio
from shardio.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "curating.md"


def test_a_datasets_year(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(block, names)
    lines = printed.getvalue().splitlines()
    assert lines[:3] == ["30 300 {'until': '2026-11-30'}", "10", "31 {'train': 300} {'train': 290}"]
    assert lines[3] == "9 289" or lines[3].endswith(" 288")
    assert "30 -> 1 shards" in lines
    assert lines[-1].endswith("True")
    assert all(bird["id"] != "bird-7-5" for bird in shardio.open("birds"))
    for command in ("log birds", "diff birds year-2026", "tag birds"):
        assert main([*command.split()]) == 0
