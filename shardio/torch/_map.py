"""Map-style access for torch: lookups by the batch in any `DataLoader`, and a full shuffle as a sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Sampler

from shardio.errors import ResumeError
from shardio.order import Permutation
from shardio.reader import RecordSequence
from shardio.torch._ranks import check_rank, resolve_rank

_BLOCK = 4096


class MapDataset(Dataset[Any]):
    """A reader as a map-style dataset.

    Works with any torch sampler, and with loader workers under fork, forkserver and spawn: it pickles to an
    address, and each worker opens its own handles when it first reads. A loader that fetches by the batch
    (torch 2.0 and later) gets its records in one sorted, merged read.

    Args:
        records: from `shardio.open`, a slice of it, or `select`.
        transform: called with each record, in the worker.

    Examples:
        >>> import shardio, tempfile
        >>> from shardio.torch import MapDataset
        >>> url = tempfile.mkdtemp() + "/numbers"
        >>> ds = shardio.from_generator(({"n": n} for n in range(3)), url)
        >>> MapDataset(ds, transform=lambda value: int(value["n"]) * 2)[2]
        4
    """

    def __init__(self, records: RecordSequence, transform: Callable[[Any], Any] | None = None) -> None:
        self.records = records
        self.transform = transform

    def __repr__(self) -> str:
        return f"<shardio.torch.MapDataset of {self.records!r}>"

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        """Return one record, transformed.

        Raises:
            IndexError: out of range.
        """
        value = self.records[index]
        return value if self.transform is None else self.transform(value)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return several records in the order asked; torch's fetcher calls this where it is there."""
        values = self.records.read(indices)
        return values if self.transform is None else [self.transform(value) for value in values]


class FullShuffle(Sampler[int]):
    """Yield every position once in an order that depends on seed and epoch, in O(1) memory.

    For lookups on local disks, where order costs nothing. Of R ranks, rank r gets every R-th position, and
    all ranks get the same number. Up to R - 1 positions of an epoch are left out, or with `drop_last=False`
    some are given twice. As with torch's distributed sampler, every pass gives the same epoch until
    `set_epoch` says another.

    Args:
        data: the map-style dataset, or the number of its records.
        seed: the only seed.
        epoch: number of the first epoch.
        rank, world_size: data-parallel coordinates; None for those of `torch.distributed` or the environment.
        drop_last: leave out what does not divide by the ranks.

    Raises:
        ValueError: sizes or ranks that make no sense. From an iterator: `torch.distributed` was initialised
            after the sampler was made, and this process is another rank by now.

    The state counts positions that were taken: in a loader that prefetches, take it from a loader that knows
    what it has delivered, such as torchdata's `StatefulDataLoader`. The number of ranks may change.

    Examples:
        >>> sampler = FullShuffle(5, seed=1)
        >>> sorted(sampler)
        [0, 1, 2, 3, 4]
    """

    def __init__(
        self,
        data: Sized | int,
        *,
        seed: int = 0,
        epoch: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = True,
    ) -> None:
        self._rows = data if isinstance(data, int) else len(data)
        self._seed = seed
        self._rank, self._world_size = resolve_rank(rank, world_size)
        self._found = (self._rank, self._world_size) if rank is None else None
        if not 0 <= self._rank < self._world_size:
            raise ValueError(f"rank={self._rank} must be in [0, world_size={self._world_size})")
        self._drop_last = drop_last
        self.epoch = epoch
        Permutation(self._rows, seed, epoch=epoch)  # refuses what makes no sense
        # Positions that all ranks had taken when this pass began, and those that this rank took since.
        self._before = 0
        self._taken = 0
        self._resumed = False

    def __len__(self) -> int:
        """Return the positions of this rank in a whole epoch."""
        return self._share(self._rows)

    @property
    def remaining(self) -> int:
        """Positions of this rank that are left of this epoch."""
        return self._share(self._rows - self._before) - self._taken

    def _share(self, rows: int) -> int:
        return rows // self._world_size if self._drop_last else -(-rows // self._world_size)

    def __iter__(self) -> Iterator[int]:
        """Yield the positions of this rank: those that are left after `load_state_dict`, else all."""
        check_rank(self._found)
        if not self._resumed:
            self._before = 0
        self._resumed = False
        self._taken = 0
        permutation = Permutation(self._rows, self._seed, epoch=self.epoch)
        count, before = self.remaining, self._before
        for start in range(0, count, _BLOCK):
            turns = np.arange(start, min(start + _BLOCK, count))
            places = (before + turns * self._world_size + self._rank) % self._rows
            for turn, position in zip(turns.tolist(), permutation[places].tolist(), strict=True):
                self._taken = turn + 1
                yield position

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; a state of that very epoch that was loaded stays loaded."""
        if epoch != self.epoch:
            Permutation(self._rows, self._seed, epoch=epoch)
            self.epoch = epoch
            self._before = self._taken = 0
            self._resumed = False

    def state_dict(self) -> dict[str, Any]:
        """Return where the sampler is, fit for JSON; counted over all ranks."""
        return {
            "full_shuffle": 1,
            "rows": self._rows,
            "seed": self._seed,
            "epoch": self.epoch,
            "taken": min(self._rows, self._before + self._taken * self._world_size),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            ResumeError: it is damaged, or belongs to another dataset or seed.
        """
        if not isinstance(state, Mapping):
            raise ResumeError("the sampler's state is not a dict", found=type(state).__name__)
        for name, own in (("full_shuffle", 1), ("rows", self._rows), ("seed", self._seed)):
            if state.get(name) != own:
                what = f"{name} of the sampler's state differs"
                raise ResumeError(what, expected=state.get(name), found=own)
        taken, epoch = state.get("taken"), state.get("epoch")
        whole = all(type(value) is int and value >= 0 for value in (taken, epoch))
        if not whole or not isinstance(taken, int) or not isinstance(epoch, int) or taken > self._rows:
            raise ResumeError("the sampler's state is damaged", found=dict(state))
        self._before, self._taken = taken, 0
        self.epoch = epoch
        self._resumed = True
