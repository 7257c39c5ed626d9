"""Rank and world size, and that all ranks read the same version in the same order.

They are what the caller gives (data-parallel coordinates of a mesh), else those of
`torch.distributed`, else of the launcher's environment, else 0 of 1; resolved once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter

import torch.distributed as dist

from shardio.reader import DatasetReader
from shardio.streaming import Mix, Stream, StreamOptions, agree, of_parts, parts_of


def resolve_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size.

    Raises:
        ValueError: only one of the two was given, or the environment holds no numbers.
    """
    if (rank is None) != (world_size is None):
        raise ValueError("give both rank= and world_size=, or neither")
    if rank is not None and world_size is not None:
        return rank, world_size
    if _running():
        return dist.get_rank(), dist.get_world_size()
    # What torchrun and its like set.
    given = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if name in os.environ}
    if len(given) == 1 and given != {"WORLD_SIZE": "1"}:
        raise ValueError(
            f"the environment has {given} but not both of RANK and WORLD_SIZE: give rank= and world_size=, "
            "or make the dataset once torch.distributed is initialised (for Lightning in train_dataloader)"
        )
    try:
        return int(given.get("RANK", "0")), int(given.get("WORLD_SIZE", "1"))
    except ValueError as error:
        raise ValueError(f"RANK and WORLD_SIZE in the environment must be integers: {error}") from error


def check_rank(found: tuple[int, int] | None) -> None:
    """Compare what a rank was found to be when its dataset was made with what it is now.

    Args:
        found: rank and world size that `resolve_rank` has found; None where they were given.

    Raises:
        ValueError: the processes have come to know each other since, so that each would read everything.
    """
    if found is None or not _running() or (now := (dist.get_rank(), dist.get_world_size())) == found:
        return
    raise ValueError(
        f"the dataset was made as rank {found[0]} of {found[1]}, before torch.distributed was initialised as "
        f"it is now, and this is rank {now[0]} of {now[1]}: ranks would read the same records. Make it "
        "afterwards (for Lightning in train_dataloader, not before fit), or give rank= and world_size= (0 "
        "and 1 where this process is to read everything)"
    )


_made: Counter[str] = Counter()


def place_of(reader: DatasetReader) -> str:
    """Return what names a dataset and its split in every version."""
    return f"{reader.source.version.manifest.dataset_uuid.hex()}/{reader.split}"


def _told_by_first(kind: str, own: str) -> str:
    """Return what the first process of the job to make its n-th thing of a kind says of it.

    Not a collective call: nothing waits, and a process may make things that others do not make.
    """
    from torch.distributed import distributed_c10d

    _made[kind] += 1
    name = hashlib.sha256(kind.encode()).hexdigest()  # a mixture may name a thousand datasets
    store = distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public way
    return store.compare_set(f"shardio/{name}/{_made[kind]}", "", own).decode()


def _agree_with_first(data: DatasetReader | Mix) -> DatasetReader | Mix:
    """Take the version that the first process of the job has found for its n-th dataset of one place.

    For ranks that share a batch (tensor or pipeline parallelism). A version that was named stays: processes
    may do different things.
    """
    agreed = []
    for reader in parts_of(data):
        own = json.dumps([reader.version, reader.digest])
        told = _told_by_first(place_of(reader), own)
        agreed.append(reader if told == own or reader.source.pinned else reader.at(*json.loads(told)))
    return of_parts(data, agreed)


def agreed_stream(data: DatasetReader | Mix, options: StreamOptions) -> Stream:
    """Return the stream of this rank, of which every rank has read the same version and made the same plan.

    Ranks that open the latest version at different moments may find different ones. Where `torch.distributed`
    runs, rank 0 tells the others; where it does not, none could, so the version must be named.

    Raises:
        ValueError: there are several ranks, no channel between them, and no `version=` or `digest=`; or, in
            all ranks, one cannot make its stream or would share other batches.
    """
    world_size = options.rank_and_world_size[1]
    if _running() and dist.get_world_size() > 1:
        if world_size == 1:
            return Stream(_agree_with_first(data), options)
        return agree(data, lambda agreed: Stream(agreed, options), _gathered, unit="rank")
    loose = [reader.source.url for reader in parts_of(data) if not reader.source.pinned]
    if world_size > 1 and loose and "WORLD_SIZE" in os.environ:
        raise ValueError(
            f"{world_size} ranks would each look up the latest version of {loose[0]} and may find different "
            "ones: open it with version= or digest=, or initialise torch.distributed first"
        )
    return Stream(data, options)


def _gathered(text: str) -> list[str]:
    """Return the text of each rank; all ranks call this."""
    found = [""] * dist.get_world_size()
    dist.all_gather_object(found, text)
    return found


def _running() -> bool:
    return dist.is_available() and dist.is_initialized()
