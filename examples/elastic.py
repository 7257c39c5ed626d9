"""A job on 8 processes is killed in the middle of an epoch and continues with 3: which records it has seen.

    python examples/elastic.py run docs/figures/elastic.json     # real processes, a real SIGKILL
    python examples/elastic.py draw docs/figures/elastic.json    # elastic-light.svg, elastic-dark.svg

The second needs matplotlib: pip install "shardio[plot]".
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import shardio

RECORDS, GLOBAL_BATCH = 4096, 100
BEFORE, AFTER = 8, 3  # neither divides the global batch
CHECKPOINT_EVERY, KILLED_AT = 10, 26
THEMES = {
    "light": {"text": "#24292f", "faint": "#d0d7de", "first": "#0b7a75", "second": "#c8553d"},
    "dark": {"text": "#e6edf3", "faint": "#484f58", "first": "#2bb8b0", "second": "#f08a6c"},
}


def train(
    url: str, rank: int, world_size: int, folder: str, steps: Any, state: dict[str, Any] | None
) -> None:
    """Be one rank: note each batch, and write a checkpoint now and then, as a training loop does."""
    stream = shardio.stream(
        shardio.open(url), global_batch=GLOBAL_BATCH, seed=0, rank=rank, world_size=world_size,
        remainder="keep", positions=True,
    )  # fmt: skip
    if state is not None:
        stream.load_state_dict(state)
    with (Path(folder) / f"{world_size}-{rank}.jsonl").open("a", encoding="utf-8") as log:
        for batch in stream:
            steps.wait()  # where ranks exchange gradients
            log.write(json.dumps([stream.step, batch["_position"].tolist()]) + "\n")
            log.flush()
            if rank == 0 and stream.step % CHECKPOINT_EVERY == 0:
                place = Path(folder) / "checkpoint.json"
                place.with_suffix(".new").write_text(json.dumps(stream.state_dict()), encoding="utf-8")
                place.with_suffix(".new").replace(place)
            time.sleep(0.02)  # the model


def start(
    url: str, world_size: int, folder: str, state: dict[str, Any] | None, *, watched: bool = False
) -> tuple[list[Any], Any]:
    """Start all ranks; return them and their barrier, which is gone with its last reference here.

    If *watched*, no step begins before the caller has waited at the barrier too.
    """
    context = multiprocessing.get_context("spawn")
    steps = context.Barrier(world_size + watched)
    ranks = [
        context.Process(target=train, args=(url, rank, world_size, folder, steps, state))
        for rank in range(world_size)
    ]
    for each in ranks:
        each.start()
    return ranks, steps


def seen_by(folder: str, world_size: int) -> list[list[tuple[int, list[int]]]]:
    """Return what each rank has noted: steps and positions."""
    logs = [Path(folder) / f"{world_size}-{rank}.jsonl" for rank in range(world_size)]
    return [
        [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.endswith("]]")]
        if log.exists()
        else []
        for log in logs
    ]


def run() -> dict[str, Any]:
    """Run both jobs; return what was recorded."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/data"
        with shardio.DatasetWriter(url, schema={"n": "int64"}, shard_bytes=4096, block_bytes=256) as out:
            for n in range(RECORDS):
                out.write({"n": n})
        ranks, barrier = start(url, BEFORE, folder, None, watched=True)
        for _ in range(KILLED_AT):
            barrier.wait(60)
        # The next step does not begin: however late the kill comes, it comes between these two steps.
        while min((log[-1][0] if log else 0) for log in seen_by(folder, BEFORE)) < KILLED_AT:
            if not all(each.is_alive() for each in ranks):
                raise SystemExit("a rank has ended before it was killed")
            time.sleep(0.01)
        for each in ranks:
            os.kill(each.pid, signal.SIGKILL)
        for each in ranks:
            each.join()
        state = json.loads((Path(folder) / "checkpoint.json").read_text(encoding="utf-8"))
        ranks, barrier = start(url, AFTER, folder, state)
        for each in ranks:
            each.join()
        del barrier
        return {
            "records": RECORDS,
            "global_batch": GLOBAL_BATCH,
            "checkpoint_step": seen_by(folder, AFTER)[0][0][0] - 1,
            "before": seen_by(folder, BEFORE),
            "after": seen_by(folder, AFTER),
        }


def times_seen(recorded: dict[str, Any]) -> Counter[int]:
    """Return how often the model learnt from each record: what came after the checkpoint died with a job."""
    kept = recorded["checkpoint_step"]
    seen: Counter[int] = Counter()
    for rank in recorded["before"]:
        seen.update(position for step, positions in rank if step <= kept for position in positions)
    for rank in recorded["after"]:
        seen.update(position for _, positions in rank for position in positions)
    return seen


def draw(recorded: dict[str, Any], folder: Path) -> None:
    """Draw the run, light and dark."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "shardio"
    kept, counts = recorded["checkpoint_step"], Counter(times_seen(recorded).values())
    killed = max(step for rank in recorded["before"] for step, _ in rank)
    later = killed - kept + 2  # to the right of the kill, as time goes
    last = max(step for step, _ in recorded["after"][0]) + later
    for theme, color in THEMES.items():
        figure = Figure(figsize=(8, 2.9), layout="constrained")
        axes = figure.subplots()
        for job, name in ((recorded["before"], "first"), (recorded["after"], "second")):
            height = BEFORE / len(job)
            for rank, steps in enumerate(job):
                for step, positions in steps:
                    lost = name == "first" and step > kept
                    width = 0.85 * len(positions) / -(-recorded["global_batch"] // len(job))
                    left = step - 1 + (later if name == "second" else 0)
                    shape = Rectangle((left, BEFORE - (rank + 0.95) * height), width, 0.9 * height)
                    shape.set_facecolor("none" if lost else color[name])
                    shape.set_edgecolor(color["faint"] if lost else "none")
                    axes.add_patch(shape)
        small = {"fontsize": 9, "color": color["text"]}
        for place_of_line, style in ((kept, ":"), (killed + 0.5, "-")):
            axes.axvline(place_of_line, color=color["text"], lw=1, ls=style)
        axes.text(kept / 2, BEFORE + 0.1, "8 processes", ha="center", va="bottom", **small)
        middle = (killed + 2 + last) / 2
        axes.text(middle, BEFORE + 0.1, "3 processes, from the checkpoint", ha="center", va="bottom", **small)
        axes.text(kept, -0.25, "checkpoint", ha="right", va="top", **small)
        axes.text(killed + 0.5, -0.25, f"SIGKILL in step {killed + 1}", ha="left", va="top", **small)
        axes.set_xlim(0, last)
        axes.set_ylim(-1.1, BEFORE + 0.9)
        axes.set_axis_off()
        once, total = counts[1], recorded["records"]
        said = (
            f"An epoch of {total:,} records in global batches of {recorded['global_batch']}; "
            f"a box is one rank's share of a step.\n"
            f"{once:,} of {total:,} records were learnt from exactly once."
        )
        figure.text(0.5, -0.02, said, ha="center", va="top", fontsize=9, color=color["text"])
        figure.savefig(
            folder / f"elastic-{theme}.svg", transparent=True, metadata={"Date": None}, bbox_inches="tight"
        )


def main() -> None:
    """Run or draw, as the command line says."""
    if len(sys.argv) != 3 or sys.argv[1] not in ("run", "draw"):
        raise SystemExit(__doc__)
    file = Path(sys.argv[2])
    if sys.argv[1] == "run":
        recorded = run()
        file.write_text(json.dumps(recorded, separators=(",", ":")) + "\n", encoding="utf-8")
    else:
        recorded = json.loads(file.read_text(encoding="utf-8"))
        draw(recorded, file.parent)
    print(f"records by how often they were learnt from: {dict(Counter(times_seen(recorded).values()))}")


if __name__ == "__main__":
    main()
