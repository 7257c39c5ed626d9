"""Several datasets as one stream, in exact proportions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.order import Mixture
from shardio.reader import DatasetReader

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Mix", "mix"]


class Mix:
    """Datasets and their proportions; takes the place of a reader in `stream`; made by `mix`.

    Attributes:
        readers: the datasets.
        mixture: counts of each over a period, and when the stream ends.
    """

    def __init__(self, readers: Sequence[DatasetReader], mixture: Mixture) -> None:
        self.readers = tuple(readers)
        self.mixture = mixture

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{count}/{self.mixture.period} {reader!r}"
            for reader, count in zip(self.readers, self.mixture.counts, strict=True)
        )
        return f"<shardio.Mix {parts}>"


def mix(
    sources: Sequence[tuple[DatasetReader, float]], *, stop: str | None = None, steps: int | None = None
) -> Mix:
    """Mix datasets by weight.

    Weights become integers over a period, and every period of the stream holds exactly those proportions. The
    stream's seed is the only seed.

    Args:
        sources: (reader, weight) each; weights above 0, only their proportions matter.
        stop: "first" (default): when the first dataset ends; "all": when every one has ended once, ended ones
            beginning again with their next epoch.
        steps: end after so many steps instead, ended datasets beginning again.

    Raises:
        ValueError: weights that are negative, not finite or 0, no source, or both `stop` and `steps`.

    Examples:
        >>> import shardio, tempfile
        >>> readers = []
        >>> for name in ("books", "web"):
        ...     url = f"{tempfile.mkdtemp()}/{name}"
        ...     with shardio.DatasetWriter(url, schema={"from": "text"}) as out:
        ...         for _ in range(70):
        ...             out.write({"from": name})
        ...     readers.append(shardio.open(url))
        >>> mixed = shardio.mix([(readers[0], 0.7), (readers[1], 0.3)])
        >>> batch = next(iter(shardio.stream(mixed, global_batch=10)))
        >>> batch["from"].count("books"), batch["from"].count("web")
        (7, 3)
    """
    if stop is not None and steps is not None:
        raise ValueError("give stop= or steps=, not both")
    for source in sources:
        if not isinstance(source, tuple | list) or len(source) != 2:
            message = f"mix takes (reader, weight) pairs, found {source!r}"
            raise TypeError(message)
        reader = source[0]
        if not isinstance(reader, DatasetReader):
            message = f"mix takes (reader, weight) pairs; {type(reader).__name__} is no reader"
            raise TypeError(message)
    if len({reader.schema for reader, _ in sources}) > 1:
        raise ValueError(
            "the datasets of a mixture need one schema, so that their records fit into one batch"
        )
    for name in ("decode", "features", "on_error"):
        given = [getattr(reader.source.options, name) for reader, _ in sources]
        if any(each != given[0] for each in given):
            message = f"the datasets of a mixture must be opened with one {name}=, found {given}"
            raise ValueError(message)
    mixture = Mixture.from_weights(
        [weight for _, weight in sources], stop=steps if steps is not None else stop or "first"
    )
    return Mix([reader for reader, _ in sources], mixture)
