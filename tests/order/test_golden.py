"""The order is frozen: from version 1 on the same inputs give the same order forever."""

from __future__ import annotations

import json

import pytest

from shardio.order import make_order
from tests.order import golden

FILES = sorted(path.stem for path in golden.FOLDER.glob("*.json"))


def test_nothing_was_lost():
    assert sorted([*golden.RUNS, "default-plans", "permutations", "record-generators"]) == FILES


@pytest.mark.parametrize("name", sorted(golden.RUNS))
def test_an_order_is_what_it_was(name):
    """From version 1 on the same inputs give the same order forever."""
    held = json.loads((golden.FOLDER / f"{name}.json").read_text())
    assert json.loads(json.dumps(golden.play(held["inputs"]))) == {
        key: held[key] for key in held if key != "inputs"
    }


@pytest.mark.parametrize("name", sorted(golden.RUNS))
def test_a_state_goes_on_with_its_own_plan_whatever_the_default_has_become(name):
    """States of runs that began with a default plan of before continue as they began."""
    held = json.loads((golden.FOLDER / f"{name}.json").read_text())
    sources, mixture = golden.datasets(held["inputs"])
    options = {key: held["inputs"]["options"][key] for key in ("seed", "shuffle", "remainder")}
    batch = held["state"]["batches"][-1]["global_batch"]
    order = make_order(sources, global_batch=batch, mixture=mixture, **options)
    resumed, schedule, epoch = order.resume(held["state"])
    assert [plan.to_dict() for plan in resumed.plans] == held["state"]["plans"]
    assert epoch == held["inputs"]["options"]["epoch"]
    steps = held["inputs"]["steps"] or range(schedule.stop)
    for step, (positions, *_) in zip(steps, held["batches"], strict=True):
        if step < schedule.stop:
            assert schedule.batch(step).positions.tolist() == positions


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
