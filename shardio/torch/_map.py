"""Map-style access for torch: any sampler, any `DataLoader`, lookups by the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardio.reader import Records

__all__ = ["MapDataset"]


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
        >>> with shardio.DatasetWriter(url, schema={"n": "int64"}) as out:
        ...     for n in range(3):
        ...         out.write({"n": n})
        >>> MapDataset(shardio.open(url), transform=lambda value: int(value["n"]) * 2)[2]
        4
    """

    def __init__(self, records: Records, transform: Callable[[Any], Any] | None = None) -> None:
        self.records = records
        self.transform = transform

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
