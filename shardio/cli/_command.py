"""What a command is: a name, its parameters, and a function that returns an exit code.

Parsing, help and completion are click's; here is what click leaves to a program: help in groups, negative
numbers as positions, and options that take several values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import click
from click.shell_completion import CompletionItem

from shardio.arguments import accepts
from shardio.cli._console import EXIT_CODES, Console
from shardio.cli._values import whole_number

COMPLETION_VARIABLE = "_SHARDIO_COMPLETE"  # by which a shell asks click

# Commands by what people come for, in the order of a day.
GROUPS = {
    "bring data in": ("adopt", "convert", "pack", "commit"),
    "look at data": ("info", "head", "get", "view"),
    "train": ("plan", "bench", "audit"),
    "find records": ("table", "keys"),
    "check and repair": ("verify", "repair"),
    "change a dataset": ("schema", "delete", "erase", "split", "compact"),
    "versions": ("log", "tag", "diff", "restore", "gc"),
    "take data out": ("cat", "export"),
    "this program": ("cache", "completion"),
}

# The last parts of a help text; a command's own options and parts come before them.
_LAST_PARTS = ("dataset", "shards", "storage", "output")

_NUMBER = re.compile(r"-\d+")
_NUMBER_MARK = "\0"


class Params(Protocol):
    """What parameters are made from, when they are wanted."""

    def params(self) -> Iterator[click.Parameter]:
        """Yield them."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command; its file keeps it under the name `COMMAND`.

    Attributes:
        name: what is typed.
        summary: one line for the list of commands, lower case, without a full stop.
        takes: its arguments and options, and the functions from whose signatures others follow. One that is
            written out replaces the one that would follow. `--json`, `--quiet` and `--debug` are there.
        run: does the work and returns the exit code. Errors are raised; the program turns them into one line.
        examples: command lines with what they do, for its help text.
        aliases: other names by which it can be typed.
    """

    name: str
    summary: str
    takes: Sequence[click.Parameter | Params]
    run: Callable[[Any, Console], int]  # with a `Given`, which is above this
    examples: dict[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()

    @property
    def params(self) -> tuple[click.Parameter, ...]:
        """Arguments and options; imports the functions that the command calls."""
        written = {one.name for one in self.takes if isinstance(one, click.Parameter)}
        found: dict[str | None, click.Parameter] = {}
        for one in self.takes:
            if isinstance(one, click.Parameter):
                found.setdefault(one.name, one)
                continue
            for param in one.params():
                if param.name not in written:
                    found.setdefault(param.name, param)
        return tuple(found.values())


class Argument(click.Argument):
    """A positional argument, with a line of help."""

    def __init__(self, decls: Sequence[str], *, help: str, **attrs: Any) -> None:  # noqa: A002 - click's word
        super().__init__(decls, **attrs)
        self.text = help


class Option(click.Option):
    """An option.

    Args:
        decls: its names.
        group: title of its part of the help text.
        several: whether it takes all the numbers that follow it: `--weights 0.7 0.3`.
        attrs: of click's option.
    """

    def __init__(
        self, decls: Sequence[str], *, group: str = "options", several: bool = False, **attrs: Any
    ) -> None:
        super().__init__(decls, multiple=several or attrs.pop("multiple", False), **attrs)
        self.group = group
        self.several = several


def flag(name: str, text: str, *more: str, group: str = "options") -> Option:
    """Return an option without a value."""
    return Option([*more, name], is_flag=True, help=text, group=group)


class Value(click.ParamType[Any]):
    """A value that a function makes of text; ValueError from it is a usage error."""

    name = "value"

    def __init__(self, convert: Callable[[str], Any]) -> None:
        self._convert = convert

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert what was typed; a default is what it is."""
        if not isinstance(value, str):
            return value
        try:
            return self._convert(value.removeprefix(_NUMBER_MARK))
        except ValueError as error:
            self.fail(str(error), param, ctx)


WHOLE = Value(whole_number)


class PlaceParam(click.ParamType[str]):
    """A local path or a URL; shells complete paths."""

    name = "place"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Let the shell complete files and folders."""
        del ctx, param
        return [CompletionItem(incomplete, type="file")]


def options(*decls: str, **attrs: Any) -> Option:
    """Return an option that may be repeated; its values are a tuple."""
    return Option(decls, multiple=True, **attrs)


class ProgramCommand(click.Command):
    """A command as click parses it."""

    def __init__(self, command: Command) -> None:
        common = [
            flag("--json", "print one JSON document for programs", group="output"),
            flag("--quiet", "no progress and no notes", "-q", group="output"),
            flag("--debug", "show the traceback of an error", group="output"),
        ]
        super().__init__(
            command.name,
            params=[*command.params, *common],
            help=command.summary[0].upper() + command.summary[1:] + ".",
            short_help=command.summary,
            callback=lambda **given: (command, given),
        )
        self.command = command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, after numbers below zero are told from options, and values of one option from each other."""
        try:
            return super().parse_args(ctx, list(self._rewritten(args)))
        except click.BadOptionUsage as error:
            # click tells neither of which command it is nor what could be there.
            message = error.message
            for one in self.params:
                if error.option_name in one.opts and isinstance(one.type, click.Choice):
                    message = f"{message.rstrip('.')}: one of {', '.join(one.type.choices)}."
            raise click.BadOptionUsage(error.option_name, message, ctx) from error

    def _rewritten(self, args: list[str]) -> list[str]:
        by_name = {name: one for one in self.params if isinstance(one, Option) for name in one.opts}
        found: list[str] = []
        option: Option | None = None
        taken = 0
        for number, arg in enumerate(args):
            if arg == "--":
                return [*found, *args[number:]]
            if option is not None and (not taken or (option.several and accepts(float, arg))):
                found += [arg] if not taken else [option.opts[0], arg]
                taken += 1
                option = option if option.several else None
                continue
            option, taken = by_name.get(arg), 0
            if option is not None and option.is_flag:
                option = None
            found.append(_NUMBER_MARK + arg if _NUMBER.fullmatch(arg) else arg)
        return found

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return click's option, with help as that of all others is written."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.help = "show this message"
        return option

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write arguments and options, a group at a time."""
        arguments = [
            (re.sub(r"^\[(\w+)\]|\.\.\.$", r"\1", one.make_metavar(ctx)), one.text)
            for one in self.get_params(ctx)
            if isinstance(one, Argument)
        ]
        if arguments:
            with formatter.section("arguments"):
                formatter.write_dl(arguments)
        groups: dict[str, list[tuple[str, str]]] = {}
        for one in self.get_params(ctx):
            record = one.get_help_record(ctx) if isinstance(one, click.Option) else None
            if record is not None:
                # Without a group: that of `--help`, which click makes.
                groups.setdefault(getattr(one, "group", "output"), []).append(record)
        # What other options refer to comes before them.
        groups.get("storage", []).sort(key=lambda record: not record[0].startswith(("--storage-", "--anon")))
        for title in sorted(groups, key=_place_of_part):
            with formatter.section(title):
                formatter.write_dl(groups[title])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write examples as they are typed, and the exit codes."""
        del ctx
        if self.command.examples:
            formatter.write("\nexamples:\n")
            for line, text in self.command.examples.items():
                formatter.write(f"  {line}\n      {text}\n")
        formatter.write(f"\n{EXIT_CODES}\n")


def _place_of_part(title: str) -> int:
    return -1 if title == "options" else _LAST_PARTS.index(title) + 1 if title in _LAST_PARTS else 0
