"""What a pass does about damage: raise, skip and count, or skip and write down; iteration and streams alike.

Skipping is bounded: past one record in a hundred the data is not worth training on.
"""

from __future__ import annotations

import json
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from shardio.errors import (
    FormatError,
    NotFoundError,
    SchemaError,
    ShardioError,
    StaleIndexError,
    StorageError,
    UnsupportedVersionError,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shardio.reader._source import Source

__all__ = ["QUARANTINE_FILE", "Damage", "is_damage"]

QUARANTINE_FILE = "shardio-quarantine.jsonl"
_LEAST = 1000
_SHARE = 100


def is_damage(error: BaseException) -> TypeGuard[ShardioError]:
    """Tell whether an error says that data is damaged: not the environment, not a shardio that is too old."""
    if isinstance(error, UnsupportedVersionError):
        return False
    if isinstance(error, NotFoundError):
        # What belongs to a dataset and is gone; a wrong address has no shard.
        return error.shard is not None
    return isinstance(error, FormatError | StaleIndexError | SchemaError)


class Damage:
    """The policy of one pass, and its count.

    Args:
        source: of the reader, or of a stream's first dataset; its options give the policy, its counters
            count.
        rows: records of the pass, of which one in a hundred (and never fewer than 1,000) may be skipped.
    """

    def __init__(self, source: Source, rows: int) -> None:
        self.policy = source.options.on_error
        self._most = max(_LEAST, rows // _SHARE)
        self._source = source
        self._lock = threading.Lock()
        self._skipped = 0
        self._noted: set[tuple[str, int, int]] = set()

    @property
    def skips(self) -> bool:
        """Whether damage is skipped."""
        return self.policy != "raise"

    def note(self, error: ShardioError, shard: str, rows: NDArray[np.int64]) -> None:
        """Say once in a pass that something is skipped, and write down each run of damaged rows once.

        The same rows may be met twice: where the last steps of an epoch fetch a window again.
        """
        key = (shard, int(rows[0]), len(rows))
        with self._lock:
            first = not self._noted
            fresh = key not in self._noted
            self._noted.add(key)
        if fresh and self.policy == "quarantine":
            entry = {"error": type(error).__name__, "what": error.what, **_plain(error)}
            self._write({**entry, "shard": shard, "rows": rows.tolist()})
        if first:
            where = f", and written to {QUARANTINE_FILE}" if self.policy == "quarantine" else ""
            warnings.warn(f"damaged records are skipped{where}: {error}", stacklevel=2)

    def count(self, rows: int) -> None:
        """Count records that were left out of a batch; each is counted where it would have been delivered.

        Raises:
            FormatError: too many records were skipped.
        """
        with self._lock:
            self._skipped += rows
            self._source.stats.records_skipped += rows
            skipped = self._skipped
        if skipped > self._most:
            raise FormatError(
                "too much of the dataset is damaged to go on",
                url=self._source.url,
                expected=f"at most {self._most} records skipped",
                found=skipped,
                advice="look at it with `shardio verify`",
            )

    def _write(self, entry: dict[str, Any]) -> None:
        # One write of one line: processes that append to one file do not mix their lines.
        line = json.dumps(entry) + "\n"
        try:
            with Path(QUARANTINE_FILE).open("a", encoding="utf-8", buffering=max(2, len(line) * 4)) as file:
                file.write(line)
        except OSError as error:
            what = f"damage cannot be written down ({error.strerror})"
            path = str(Path(QUARANTINE_FILE).absolute())
            raise StorageError(what, url=path, advice='on_error="skip" writes nothing') from error


def _plain(error: ShardioError) -> dict[str, Any]:
    return {
        name: value if isinstance(value, int) else str(value)
        for name, value in error.fields().items()
        if name != "shard"
    }
