"""The commands: every file in this folder is one, and is found by being here."""

from __future__ import annotations

import importlib
import pkgutil

from shardio.cli._command import Command

__all__ = ["all_commands"]


def all_commands() -> dict[str, Command]:
    """Return the commands by name, in alphabetical order."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    commands: list[Command] = [module.COMMAND for module in modules]
    return {command.name: command for command in sorted(commands, key=lambda command: command.name)}
