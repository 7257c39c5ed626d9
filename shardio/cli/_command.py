"""What a command is: a name, its arguments, and a function that returns an exit code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from shardio.cli._screen import Screen

__all__ = ["CLEAN", "DAMAGE", "FAILED", "GROUPS", "INTERRUPTED", "PIPE_CLOSED", "USAGE", "Command"]

CLEAN = 0
DAMAGE = 1  # damage or failure found in the data
USAGE = 2
FAILED = 3  # could not be done
INTERRUPTED = 130  # what shells report for SIGINT
PIPE_CLOSED = 141  # and for SIGPIPE

# Commands by what people come for, in the order of the help text.
GROUPS = {"look": "look at data", "check": "check and mend", "change": "write and keep house"}


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command; its file keeps it under the name `COMMAND`.

    Attributes:
        name: what is typed.
        group: a key of `GROUPS`.
        summary: one line for the list of commands, lower case, without a full stop.
        add_arguments: adds its arguments to a parser; `--json`, `--quiet` and `--debug` are there already.
        run: does the work and returns the exit code. Errors are raised; the program turns them into one line.
        examples: command lines with what they do, for its help text.
    """

    name: str
    group: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Screen], int]
    examples: dict[str, str] = field(default_factory=dict)
