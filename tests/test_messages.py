"""The tour of `examples/messages.py` on few messages: protoc, two ages of a class, JavaScript."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import shardio

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_messages_of_two_ages_and_two_languages(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "messages.py"), "--records", "200", "--folder"]
    done = subprocess.run([*command, str(tmp_path / "tour")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    for sentence in (
        "a deprecated field is still read",
        "a field that was added has its default in old messages",
        '"song": [2.0, -3.25, 1.5]',
        "the old program reads new messages",
        "and still keeps them: what it writes again is the same, bit for bit",
        "220 messages with 885 birds: the same as in Python",
    ):
        assert sentence in done.stdout, done.stdout
    table = {line[:20].strip(): line[20:].split() for line in done.stdout.splitlines()}
    assert float(table["messages"][1]) < 0.6 * float(table["JSON lines"][1])
    assert shardio.verify(tmp_path / "tour" / "sightings").ok
