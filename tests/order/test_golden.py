"""The order is frozen: from version 1 on the same inputs give the same order for ever."""

from __future__ import annotations

import json

import pytest

from tests.order import golden

FILES = sorted(path.stem for path in golden.FOLDER.glob("*.json"))


def test_nothing_was_lost():
    assert sorted([*golden.RUNS, "default-plans", "permutations", "record-generators"]) == FILES


@pytest.mark.parametrize("name", sorted(golden.RUNS))
def test_an_order_is_what_it_was(name):
    """From version 1 on the same inputs give the same order for ever."""
    held = json.loads((golden.FOLDER / f"{name}.json").read_text())
    assert json.loads(json.dumps(golden.play(held["inputs"]))) == {
        key: held[key] for key in held if key != "inputs"
    }


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("permutations", golden.permutations),
        ("default-plans", golden.plans),
        ("record-generators", golden.generators),
    ],
)
def test_permutations_plans_and_generators_are_what_they_were(name, make):
    held = json.loads((golden.FOLDER / f"{name}.json").read_text())
    assert json.loads(json.dumps(make())) == held
