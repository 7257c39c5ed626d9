"""Rank and world size, and that all ranks read the same version in the same order.

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

from shardio.streaming import Stream, check_same, in_all, of_parts, parts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardio.reader import DatasetReader
    from shardio.streaming import Mix, StreamOptions

__all__ = ["agree", "agreed_stream", "check_rank", "resolve_rank"]


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
            f"the environment has {given} but not both of RANK and WORLD_SIZE: give rank= and world_size=, "
            "or make the dataset once torch.distributed is initialised (for Lightning in train_dataloader)"
        )
        raise ValueError(message)
    try:
        return int(given.get("RANK", "0")), int(given.get("WORLD_SIZE", "1"))
    except ValueError as error:
        message = f"RANK and WORLD_SIZE in the environment must be integers: {error}"
        raise ValueError(message) from error


def check_rank(found: tuple[int, int] | None) -> None:
    """Compare what a rank was found to be when its dataset was made with what it is now.

    Args:
        found: rank and world size that `resolve_rank` has found; None where they were given.

    Raises:
        ValueError: the processes have come to know each other since, so that each would read everything.
    """
    if found is None or not _running() or (now := (dist.get_rank(), dist.get_world_size())) == found:
        return
    message = (
        f"the dataset was made as rank {found[0]} of {found[1]}, before torch.distributed was initialised as "
        f"it is now, and this is rank {now[0]} of {now[1]}: ranks would read the same records. Make it "
        "afterwards (for Lightning in train_dataloader, not before fit), or give rank= and world_size= (0 "
        "and 1 where this process is to read everything)"
    )
    raise ValueError(message)


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
    return in_all(
        lambda: of_parts(data, [each.at(*version) for each, version in zip(readers, told[0], strict=True)]),
        _gathered,
        what="the ranks do not read the same version",
        unit="rank",
    )


def agreed_stream(data: DatasetReader | Mix, options: StreamOptions) -> Stream:
    """Return the stream of this rank, of which every rank has read the same version and made the same plan.

    Raises:
        ValueError: in all ranks, where one cannot make its stream or would share other batches.
    """
    data = agree(data, options.place[1])
    if options.place[1] == 1 or not _running():
        return Stream(data, options)
    stream = in_all(
        lambda: Stream(data, options), _gathered, what="a rank cannot make its stream", unit="rank"
    )
    check_same(stream, _gathered, unit="rank")
    return stream


def _gathered(text: str) -> list[str]:
    """Return the text of each rank; all ranks call this."""
    found = [""] * dist.get_world_size()
    dist.all_gather_object(found, text)
    return found


def _running() -> bool:
    return dist.is_available() and dist.is_initialized()
