"""Make what the golden files hold: orders written out, from inputs that are written beside them.

`python -m tests.order.golden` writes the files that do not exist yet.  A file that exists is never written
again: from version 1 on the same inputs give the same order forever.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from shardio.order import (
    Identity,
    Mixture,
    Permutation,
    Plan,
    ShardSizes,
    Source,
    make_order,
    record_generator,
)

FOLDER = Path(__file__).parent.parent / "golden" / "order"


def columns(rows, stored, decoded, blocks):
    return {"rows": rows, "stored_bytes": stored, "decoded_bytes": decoded, "blocks": blocks}


SMALL = columns([7, 0, 11, 3], [70, 0, 110, 30], [140, 0, 220, 60], [4, 0, 6, 2])
LARGER = columns([40, 25, 1], [4000, 2500, 100], [4000, 2500, 100], [20, 13, 1])
LARGE = columns([2000] * 500, [22 * 10**7] * 500, [22 * 10**7] * 500, [2000] * 500)
STRANDS = {"ranks": 2, "workers": 2, "chunk_rows": 3, "interleave": 2, "window": 2}
BESIDE = {"ranks": 4, "workers": 1, "chunk_rows": 4, "interleave": 3, "window": 4}
WIDE = {"ranks": 4, "workers": 3, "chunk_rows": 5, "interleave": 2, "window": 4}
LANE = {"ranks": 1, "workers": 1, "chunk_rows": 3, "interleave": 1, "window": 3}


def run(sizes, plans, *, mixture=None, global_batch=4, changes=(), steps=None, **options):
    return {
        "sizes": sizes, "plans": plans, "mixture": mixture, "global_batch": global_batch,
        "changes": list(changes), "steps": steps, "options": {"seed": 0, "epoch": 0, "shuffle": True,
        "remainder": "keep", **options},
    }  # fmt: skip


RUNS = {
    "dataset": run([SMALL], [STRANDS]),
    "dataset-epoch-1-seed-7": run([LARGER], [BESIDE], seed=7, epoch=1),
    "dataset-largest-seed-pad": run([SMALL], [STRANDS], seed=2**64 - 1, epoch=2**64 - 1, remainder="pad"),
    "dataset-stored-drop": run([SMALL], [LANE], shuffle=False, remainder="drop"),
    "dataset-stored-lanes": run([SMALL], [STRANDS], shuffle=False),
    "one-chunk": run([SMALL], [{**BESIDE, "chunk_rows": 21, "interleave": 1, "window": 21}]),
    "batch-changed-twice": run([LARGER], [WIDE], global_batch=12, changes=[[2, 4], [5, 8]]),
    "batch-changed-in-the-tail": run(
        [LARGER], [WIDE], global_batch=12, changes=[[4, 4], [8, 8]], remainder="pad"
    ),
    "mixture-first": run([LARGER, SMALL], [WIDE, WIDE], mixture={"counts": [3, 1], "stop": "first"}),
    "mixture-all": run([LARGER, SMALL], [WIDE, WIDE], mixture={"counts": [1, 2], "stop": "all"}, seed=3),
    "mixture-steps": run(
        [LARGER, SMALL], [WIDE, WIDE], mixture={"counts": [2, 3], "stop": 9}, changes=[[4, 8]], shuffle=False
    ),
    "many-chunks": run(
        [columns([5000, 6001], [5000, 6001], [5000, 6001], [50, 60])],
        [{"ranks": 2, "workers": 1, "chunk_rows": 2, "interleave": 3, "window": 2}],
        global_batch=64,
        steps=[0, 1, 86, 170, 171],
    ),
    "images": run(
        [LARGE],
        [{"ranks": 128, "workers": 1, "chunk_rows": 2, "interleave": 13, "window": 2}],
        global_batch=256,
        steps=[0, 1, 1952, 3902, 3906],
        seed=1,
    ),
    "texts": run(
        [columns([50_000] * 20, [50 * 10**6] * 20, [50 * 10**6] * 20, [763] * 20)],
        [{"ranks": 32, "workers": 1, "chunk_rows": 33, "interleave": 352, "window": 8}],
        global_batch=64,
        steps=[0, 1, 40, 7812, 15_624],
        seed=2**64 - 1,
        epoch=3,
    ),
    "large-by-default": run([LARGE], None, global_batch=256, steps=[0, 1, 1952, 3902, 3906], seed=1),
}


def datasets(inputs):
    mixture = inputs["mixture"] and Mixture(tuple(inputs["mixture"]["counts"]), inputs["mixture"]["stop"])
    sources = [
        Source(ShardSizes(**s), Identity(f"u{i}", 1, "f", "train")) for i, s in enumerate(inputs["sizes"])
    ]
    return sources, mixture


def play(inputs):
    options = dict(inputs["options"])
    epoch = options.pop("epoch")
    sources, mixture = datasets(inputs)
    plans = inputs["plans"] and [Plan(**plan) for plan in inputs["plans"]]
    order = make_order(sources, global_batch=inputs["global_batch"], plan=plans, mixture=mixture, **options)
    schedule = order.schedule(epoch, inputs["global_batch"])
    for step, batch in inputs["changes"]:
        order, schedule, _ = order.resume(order.state(schedule, epoch, step), global_batch=batch)
    batches = []
    for step in range(schedule.stop) if inputs["steps"] is None else inputs["steps"]:
        made = schedule.batch(step)
        batches.append(
            [made.positions.tolist(), made.sources.tolist(), made.cycles.tolist(), made.valid.tolist()]
        )
        if mixture is None:
            batches[-1][1:3] = [0, 0]
        if made.valid.all():
            batches[-1][3] = True
    return {"stop": schedule.stop, "batches": batches, "state": order.state(schedule, epoch, schedule.step)}


def permutations():
    sizes = [1, 2, 10, 4096, 4097, 10_000, 1_281_167, 2**40, 2**62]
    found = []
    for n in sizes:
        for seed, epoch in ((0, 0), (2**64 - 1, 3)):
            at = np.unique(np.minimum(np.array([0, 1, 2, 3, 1000, n // 2, n - 2, n - 1]), n - 1).clip(0))
            numbers = Permutation(n, seed, epoch=epoch)[at]
            found.append(
                {"n": n, "seed": seed, "epoch": epoch, "at": at.tolist(), "numbers": numbers.tolist()}
            )
    return found


def plans():
    found, named = [], {"small": SMALL, "larger": LARGER, "large": LARGE}
    for name, sizes in named.items():
        for batch in (1, 8, 32, 60, 256, 1000, 4096):
            [source], _ = datasets({"sizes": [sizes], "mixture": None})
            [plan] = make_order([source], global_batch=batch).plans
            found.append({"sizes": name, "global_batch": batch, "plan": plan.to_dict()})
    both, mixture = datasets({"sizes": [LARGE, LARGER], "mixture": {"counts": [3, 1], "stop": "first"}})
    mixed = make_order(both, mixture=mixture, global_batch=32).plans
    return {"sizes": named, "one": found, "mixture": [plan.to_dict() for plan in mixed]}


def generators():
    fields = [(0, 0, 0, 0, 0), (1, 2, 3, 0, 0), (2**64 - 1, 5, 2**40, 1, 2)]
    return [
        {"fields": each, "words": record_generator(*each[:3], source=each[3],
        cycle=each[4]).bit_generator.random_raw(4).tolist()} for each in fields
    ]  # fmt: skip


def contents():
    """Return file name -> what it must hold."""
    files = {name: {"inputs": inputs, **play(inputs)} for name, inputs in RUNS.items()}
    return {
        **files,
        "permutations": permutations(),
        "default-plans": plans(),
        "record-generators": generators(),
    }


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in contents().items():
        path = FOLDER / f"{name}.json"
        if not path.exists():
            path.write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
