"""What the tests run in processes of their own: `python job.py '{"devices": 4, ...}'` prints what came."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={job['devices']}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    if job.get("processes", 1) > 1:
        jax.distributed.initialize(job["coordinator"], job["processes"], job["process"])
    # JAX takes seconds to start, so that one process runs some cases one after another.
    for case in job.get("cases", [{}]):
        print(json.dumps(run({**job, **case})))


def loose(url: str, version: int | None) -> Any:
    """Open a version as if it had been the latest one."""
    import shardio

    reader = shardio.open(url, version=version)
    reader.source.pinned = False
    return reader


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Stream, and return what came, or the error."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import shardio
    from shardio.jax import StreamingLoader

    devices = np.array(jax.devices()).reshape(job["mesh"])
    sharding = NamedSharding(Mesh(devices, ("data", "model")), PartitionSpec("data"))
    kind = job.get("kind")
    if kind == "slice":
        ds = loose(job["url"], job.get("version"))[:30]
    elif kind == "join":
        ds = shardio.join(shardio.open(job["url"]), loose(job["right"], job.get("version")))
    else:
        ds = shardio.open(job["url"], version=job.get("version"))
    doubled = (lambda batch: {"n": np.repeat(batch["n"], 2)}) if job.get("double") else None
    options = {"global_batch": 8, "seed": 3, "batch_transform": doubled, **job.get("options", {})}
    found = []
    try:
        loader = StreamingLoader(ds, sharding, **options)
        if "state" in job:
            loader.load_state_dict(job["state"])
        total = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(sharding.mesh, PartitionSpec()))
        for batch in loader:
            column = batch["n"]
            assert column.shape == (8,), column.shape
            assert column.sharding.is_equivalent_to(sharding, 1)
            rows = {
                shard.index[0].start or 0: np.asarray(shard.data).tolist()
                for shard in column.addressable_shards
            }
            more = {"m": np.asarray(batch["m"].addressable_shards[0].data).tolist()} if "m" in batch else {}
            # Reduced over all devices, in the compiled program of a user.
            found.append(
                {**more, "sum": int(total(column)), "rows": {str(at): rows[at] for at in sorted(rows)}}
            )
            if len(found) == job.get("steps"):
                break
    except ValueError as error:
        return {"error": str(error)}
    return {
        "found": found,
        "state": loader.state_dict(),
        "place": (loader.stream.rank, loader.stream.world_size),
        "version": loader.stream._data.version,
    }


if __name__ == "__main__":
    main()
