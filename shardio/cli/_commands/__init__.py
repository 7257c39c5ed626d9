"""The commands: a module for each group of them, in which `command` and `reported` make them of functions."""

from __future__ import annotations

import importlib

from shardio.cli._command import COMMANDS, GROUPS, Command

__all__ = ["all_commands", "grouped_commands"]


def grouped_commands() -> dict[str, dict[str, Command]]:
    """Return the commands by name, by title of their group."""
    found = {}
    for module, title in GROUPS.items():
        names = vars(importlib.import_module(f"{__name__}.{module}"))
        found[title] = {name: each for name, each in COMMANDS.items() if name in names}
    return found


def all_commands() -> dict[str, Command]:
    """Return the commands by name."""
    return {name: each for group in grouped_commands().values() for name, each in group.items()}
