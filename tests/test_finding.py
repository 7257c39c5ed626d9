"""The page about finding records: its code runs as it is."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "finding.md"


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 7
    names: dict[str, object] = {}
    begin = compile("\n".join(blocks[:2]), str(PAGE), "exec")
    with pytest.warns(UserWarning, match="records are read, because no shard has a table"):
        exec(begin, names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in blocks[2:]:
            exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    for part in ("50 bird-3", "42\n", "[  7 999  -1]", "1000 0"):
        assert part in printed
