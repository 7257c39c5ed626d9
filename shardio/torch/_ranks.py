"""Rank and world size, and that all ranks read the same version.

They are what the caller gives (data-parallel coordinates of a mesh), else those of
`torch.distributed`, else of the launcher's environment, else 0 of 1; resolved once.
"""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from typing import TYPE_CHECKING

import torch.distributed as dist

from shardio.errors import ShardioError
from shardio.streaming import of_parts, parts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardio.reader import DatasetReader
    from shardio.streaming import Mix

__all__ = ["agree", "resolve_rank"]


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
        message = (
            f"the environment has {given} but not both of RANK and WORLD_SIZE: give rank= and world_size="
        )
        raise ValueError(message)
    try:
        return int(given.get("RANK", "0")), int(given.get("WORLD_SIZE", "1"))
    except ValueError as error:
        message = f"RANK and WORLD_SIZE in the environment must be integers: {error}"
        raise ValueError(message) from error


def agree(data: DatasetReader | Mix, world_size: int) -> DatasetReader | Mix:
    """Return the data at the version that rank 0 has found, so that every rank reads the same.

    Ranks that open the latest version at different moments may find different ones. Where `torch.distributed`
    runs, rank 0 tells the others; where it does not, none could, so the version must be named.

    Raises:
        ValueError: there are several ranks, no channel between them, and no `version=` or `digest=`.
    """
    readers = parts_of(data)
    if world_size == 1:
        # Ranks that share a batch (tensor or pipeline parallelism), or one that works alone.
        return _agree_with_first(data, readers) if _running() else data
    if _running():
        return _agree_with_all(data, readers)
    loose = [reader.source.url for reader in readers if not reader.source.pinned]
    if loose and "WORLD_SIZE" in os.environ:
        message = (
            f"{world_size} ranks would each look up the latest version of {loose[0]} and may find different "
            "ones: open it with version= or digest=, or initialise torch.distributed first"
        )
        raise ValueError(message)
    return data


_alone: Counter[str] = Counter()


def _agree_with_first(data: DatasetReader | Mix, readers: Sequence[DatasetReader]) -> DatasetReader | Mix:
    """Take the version that the first process of the job has found for its n-th dataset of one place.

    Not a collective call: datasets of one data-parallel rank may be made by some processes of a job alone.
    So another version that was named is a warning, not an error: processes may do different things.
    """
    from torch.distributed import distributed_c10d

    agreed = []
    for reader in readers:
        if dist.get_world_size() == 1:
            agreed.append(reader)
            continue
        place = f"{reader.source.version.manifest.dataset_uuid.hex()}/{reader.split}"
        _alone[place] += 1
        own = json.dumps([reader.version, reader.digest])
        store = distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public way
        told = store.compare_set(f"shardio/{place}/{_alone[place]}", "", own).decode()
        if told != own and reader.source.pinned:
            warnings.warn(
                f"{reader.source.url}: rank {dist.get_rank()} reads version {reader.version}, as it was told "
                f"to, and another process of the job version {json.loads(told)[0]}: where ranks share a "
                "batch, as with tensor parallelism, open the same version= in all of them",
                stacklevel=4,
            )
            told = own
        agreed.append(reader if told == own else reader.at(*json.loads(told)))
    return of_parts(data, agreed)


def _agree_with_all(data: DatasetReader | Mix, readers: Sequence[DatasetReader]) -> DatasetReader | Mix:
    told = [[(reader.version, reader.digest) for reader in readers]]
    dist.broadcast_object_list(told, src=0)
    made, failure = data, None
    try:
        made = of_parts(data, [reader.at(*version) for reader, version in zip(readers, told[0], strict=True)])
    except (ValueError, ShardioError) as error:
        failure = error
    # Were only one rank to raise, the others would wait for it in their next collective call.
    outcomes: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(outcomes, None if failure is None else str(failure))
    if failure is not None:
        raise failure
    wrong = [f"rank {rank}: {text}" for rank, text in enumerate(outcomes) if text is not None]
    if wrong:
        message = f"the ranks do not read the same version: {'; '.join(wrong)}"
        raise ValueError(message)
    return made


def _running() -> bool:
    return dist.is_available() and dist.is_initialized()
