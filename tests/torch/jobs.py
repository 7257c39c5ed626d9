"""Jobs of several processes over torch.distributed (gloo), one of them killed, resumed on another number."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import time
import warnings

import torch.distributed as dist

import shardio
from shardio.torch import StreamingDataLoader, StreamingDataset
from tests.streaming.datasets import flat

BATCH = 12  # a multiple of every number of processes
OPTIONS = {"global_batch": BATCH, "seed": 7, "remainder": "keep"}


def augment(value, rng):
    return {"n": int(value["n"]), "r": rng.random()}


def as_rank(rank, world_size, folder, work, *args):
    """Run `work` in this process as one rank of a job that meets in a folder."""
    warnings.simplefilter("ignore", UserWarning)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world_size)
    try:
        work(rank, folder, *args)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def start(world_size, folder, work, *args):
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=as_rank, args=(rank, world_size, folder, work, *args))
        for rank in range(world_size)
    ]
    for rank in ranks:
        rank.start()
    return ranks


def finish(ranks, seconds=500):
    """Wait for all, or end the others when one has died, as a launcher does; return the exit codes."""
    deadline = time.monotonic() + seconds
    while any(rank.is_alive() for rank in ranks):
        died = [rank for rank in ranks if rank.exitcode not in (None, 0)]
        if died or time.monotonic() > deadline:
            for rank in ranks:
                rank.kill()
        time.sleep(0.02)
    for rank in ranks:
        rank.join()
    return [rank.exitcode for rank in ranks]


def train(rank, folder, url, workers, way, victim):
    """Deliver batches, note each, and save the state every third step; the victim kills itself."""
    options = {"num_workers": workers} if way == "workers" else {"num_threads": workers}
    loader = StreamingDataLoader(
        StreamingDataset(shardio.open(url), random_transform=augment, **OPTIONS), **options
    )
    state = folder.parent / "state.json"
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text(encoding="utf-8")))
    step = loader.state_dict()["step"]
    with (folder / f"rank-{rank}").open("w", encoding="utf-8", buffering=1) as out:
        for batch in loader:
            rows = list(zip(batch["n"].tolist(), batch["r"].tolist(), strict=True))
            out.write(json.dumps([step, rows]) + "\n")
            step += 1
            if victim == (rank, step):
                os.kill(os.getpid(), signal.SIGKILL)
            if step % 3 == 0:
                dist.barrier()
                if rank == 0:
                    half = folder.parent / "state.half"
                    half.write_text(json.dumps(loader.state_dict()), encoding="utf-8")
                    half.replace(state)
                # However late it is saved: none goes on, and is killed, before.
                dist.barrier()


def delivered(folder, world_size):
    """Return by step what all ranks together have delivered, of the steps that all of them have."""
    shares = []
    for rank in range(world_size):
        share = {}
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            for line in (folder / f"rank-{rank}").read_text(encoding="utf-8").splitlines():
                step, rows = json.loads(line)
                share[step] = [tuple(row) for row in rows]
        shares.append(share)
    return {
        step: flat(share[step] for share in shares) for step in shares[0] if all(step in s for s in shares)
    }


def run_job(url, folder, lives):
    """Run a job through its lives, each (processes, workers, "workers" or "threads", step of a kill or None).

    Every step that was ever delivered by all ranks must be that of a single process; returns them by step.
    """
    expected = {
        step: list(zip(batch["n"].tolist(), batch["r"].tolist(), strict=True))
        for step, batch in enumerate(shardio.stream(shardio.open(url), random_transform=augment, **OPTIONS))
    }
    seen: dict = {}
    for number, (world_size, workers, way, kill) in enumerate(lives):
        life = folder / f"life-{number}"
        life.mkdir()
        victim = None if kill is None else (world_size - 1, kill)
        codes = finish(start(world_size, life, train, url, workers, way, victim))
        assert (codes == [0] * world_size) == (kill is None), codes
        assert kill is None or codes[-1] == -signal.SIGKILL, codes
        got = delivered(life, world_size)
        for step, rows in got.items():
            assert rows == expected[step], (number, step)
        seen |= got
        if kill is not None:
            state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
            assert kill - 3 <= state["step"] <= kill
            seen = {step: rows for step, rows in seen.items() if step < state["step"]}
    assert seen == expected
    return seen
