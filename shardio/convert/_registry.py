"""Kinds of sources and targets by name: shardio's own, and those that other packages register.

A package registers a class under an entry-point group, `shardio.sources` or `shardio.targets`, by the name of
its kind. It is imported when its kind is asked for, or when no kind of shardio's own takes the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any


class Registry:
    """The kinds of one group.

    Args:
        group: of entry points.
        own: shardio's, by kind.
        base: that classes of others derive from.
    """

    def __init__(self, group: str, own: Mapping[str, type], base: type) -> None:
        self._group = group
        self._own = own
        self._base = base

    def _others(self) -> dict[str, EntryPoint]:
        found = {point.name: point for point in entry_points(group=self._group)}
        return {name: found[name] for name in sorted(found)}

    def kinds(self) -> tuple[str, ...]:
        """Return the names of all kinds, shardio's own first."""
        return (*self._own, *(name for name in self._others() if name not in self._own))

    def get(self, kind: str) -> Any:
        """Return the class of a kind.

        Raises:
            ValueError: there is no such kind, or a package registers what it cannot be.
            ImportError: the package that registers it cannot be imported.
        """
        others = self._others()
        if kind in self._own:
            if kind in others:
                message = f"kind={kind!r} is shardio's own, and {_named(others[kind])} registers it, too: "
                raise ValueError(message + "uninstall that package, or have its kind renamed")
            return self._own[kind]
        if kind not in others:
            raise ValueError(f"kind={kind!r} must be one of {', '.join(self.kinds())}")
        return self._loaded(others[kind])

    def _loaded(self, point: EntryPoint) -> Any:
        try:
            found = point.load()
        except (ImportError, AttributeError) as error:
            message = f"{_named(point)} registers the kind {point.name!r} and cannot be imported: {error}"
            raise ImportError(message) from error
        if not (isinstance(found, type) and issubclass(found, self._base)):
            message = (
                f"{_named(point)} registers {point.value} as the kind {point.name!r}: expected a class that "
                f"derives from shardio.formats.{self._base.__name__}"
            )
            raise ValueError(message)  # noqa: TRY004 - the package is wrong, not what the caller gave
        return found

    def others(self) -> list[Any]:
        """Return the classes of the kinds that other packages register."""
        return [self._loaded(point) for name, point in self._others().items() if name not in self._own]


def _named(point: EntryPoint) -> str:
    return f"the package {point.dist.name}" if point.dist is not None else point.value
