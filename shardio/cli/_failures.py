"""What an error means for whoever called the program: an exit code and one line."""

from __future__ import annotations

from typing import Any, NamedTuple

from shardio.cli._command import DAMAGE, FAILED, USAGE
from shardio.errors import (
    FormatError,
    NotFoundError,
    SchemaError,
    ShardioError,
    StaleIndexError,
    UnsafeNameError,
    UnsupportedVersionError,
)

__all__ = ["Failure", "explain"]


class Failure(NamedTuple):
    """How a command failed.

    Attributes:
        code: exit code.
        kind: name of the error's class.
        text: one line.
        fields: the error's address and both sides, for `--json`.
    """

    code: int
    kind: str
    text: str
    fields: dict[str, Any]


def explain(error: Exception) -> Failure:
    """Return exit code and line for an error."""
    fields = error.fields() if isinstance(error, ShardioError) else {}
    return Failure(_code(error), type(error).__name__, " ".join(_text(error).split()), fields)


def _code(error: Exception) -> int:
    if isinstance(error, UnsupportedVersionError):
        return FAILED
    if isinstance(error, UnsafeNameError):
        # A name that was typed has no address; one that was read from a file has.
        return DAMAGE if error.url else USAGE
    if isinstance(error, NotFoundError):
        # What belongs to a dataset and is not there is damage; a wrong address is not.
        return DAMAGE if error.shard else FAILED
    if isinstance(error, FormatError | StaleIndexError | SchemaError):
        return DAMAGE
    if isinstance(error, ShardioError | OSError | MemoryError | ImportError):
        return FAILED
    return USAGE if isinstance(error, ValueError | TypeError | IndexError) else FAILED


def _text(error: Exception) -> str:
    if isinstance(error, ImportError) and error.name:
        return f"{error} (pip install {error.name.split('.')[0]})"
    if isinstance(error, ShardioError | ValueError | TypeError | IndexError | OSError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error} (--debug shows where)"
