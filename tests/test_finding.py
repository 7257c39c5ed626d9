"""The page about finding records: its code runs as it is."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import shardio

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


@pytest.mark.slow
def test_a_program_with_torch_ends_in_silence(tmp_path):
    with shardio.DatasetWriter(tmp_path / "d", schema={"label": "int64"}) as out:
        out.write_many({"label": n % 3} for n in range(30))
    code = (
        "import sys, torch, shardio\n"
        "part = shardio.open(sys.argv[1]).filter('label = 1')\n"  # is there until modules are torn down
        "print(len(part))"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "d")]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PAGE.parents[1])
    assert (ended.stdout, ended.stderr) == ("10\n", "")
