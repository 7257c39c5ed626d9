"""The terminal on the front page of the site is that of a run, and small."""

from __future__ import annotations

import importlib.util
import re
from html import unescape
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_the_tour_runs_and_the_picture_shows_what_it_said(tmp_path):
    spec = importlib.util.spec_from_file_location("tour", ROOT / "examples" / "tour.py")
    tour = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tour)
    shown = tour.run(tmp_path)
    commands = [text for kind, text in shown if kind == "command"]
    assert [command.split()[:2] for command in commands] == [
        ["shardio", "adopt"], ["shardio", "view"], ["python", "train.py"], ["python", "train.py"],
    ]  # fmt: skip
    assert shown[-1] == ("good", "2,000 records, each used exactly once")
    kept = (ROOT / "docs" / "figures" / "tour.svg").read_text(encoding="utf-8")
    assert len(kept) < 10_000

    def lines(svg: str) -> list[str]:
        found = [unescape(text) for text in re.findall("<text[^>]*>(.*?)</text>", svg)]
        # How many steps a killed process takes until it is gone is not the same in each run, nor is the port.
        return [re.sub(r"\d+", "#", line) for line in found]

    assert lines(kept) == lines(tour.drawn(shown)), (
        "draw it again: python examples/tour.py docs/figures/tour.svg"
    )
