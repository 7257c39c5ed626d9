"""Skip the batches of a loss spike, and list the records that were in them.

    python examples/skip_spike.py FOLDER

A few records are broken.  When the loss jumps, training goes back to its latest checkpoint and repeats the
steps up to the spike.  It skips that step, and lists its records by shard and row.
"""

from __future__ import annotations

import statistics
import sys

import numpy as np

import shardio

BROKEN = (137, 611)
SLOPES = np.array([3.0, -1.0, 0.5])


def write(url: str) -> None:
    """Write points of a line with some noise; two of them are wrong by far."""
    generator = np.random.default_rng(0)
    with shardio.DatasetWriter(url, {"x": "float64[3]", "y": "float64"}) as out:
        for n in range(1000):
            x = generator.normal(size=3)
            out.write({"x": x, "y": 1e6 if n in BROKEN else x @ SLOPES + generator.normal() / 10})


def fit(url: str) -> tuple[np.ndarray, dict[int, list], list[int]]:
    """Return the weights, the records of each skipped step, and the positions that were trained on."""
    points = shardio.open(url)
    stream = shardio.stream(points, global_batch=20, seed=0, positions=True)
    weights, trained, losses = np.zeros(3), [], []
    checkpoint = weights.copy(), stream.state_dict(), 0
    skipped: dict[int, list] = {}
    while stream.remaining:
        if stream.step in skipped:
            stream.go_to(stream.step + 1)
        for batch in stream:
            error = batch["x"] @ weights - batch["y"]
            loss = float(np.mean(error**2))
            if losses and loss > 100 * statistics.median(losses[-20:]):
                step = stream.step - 1  # that of this batch
                skipped[step] = shardio.audit(points, stream.state_dict(), step)
                weights, state, done = checkpoint[0].copy(), *checkpoint[1:]
                del trained[done:]
                stream.load_state_dict(state)
                break
            losses.append(loss)
            weights -= 0.1 * batch["x"].T @ error / len(error)
            trained += batch["_position"].tolist()
            if stream.step % 10 == 0:
                checkpoint = weights.copy(), stream.state_dict(), len(trained)
            if stream.step in skipped:
                break
    return weights, skipped, trained


def main(url: str) -> None:
    """Write the points, fit a line, and print what was skipped."""
    write(url)
    weights, skipped, _ = fit(url)
    points = shardio.open(url)
    print("weights:", weights.round(2))
    for step, records in skipped.items():
        values = points.read([record.position for record in records])
        worst = max(range(len(values)), key=lambda n: abs(values[n]["y"]))
        record = records[worst]
        print(f"skipped step {step}: row {record.row} of {record.shard} has y = {values[worst]['y']:g}")


if __name__ == "__main__":
    main(sys.argv[1])
