"""From a command line to an exit code: every ending of a command becomes a code and at most one line."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import click

from shardio.cli._command import COMPLETION_VARIABLE, GROUPS, Command, ProgramCommand
from shardio.cli._commands import all_commands
from shardio.cli._console import EXIT_CODES, INTERRUPTED, PIPE_CLOSED, USAGE, CommandFailure, Console, explain
from shardio.cli._given import Given
from shardio.redact import redact


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code.

    Args:
        argv: the arguments without the program's name; None for those of the process.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _replace_closed_streams()
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except OSError as error:  # what was printed does not fit on the disk that it goes to
        _forget_stdout()
        failure = explain(error)
        Console(sys.stdout, sys.stderr, json="--json" in arguments).failure(failure)
        return failure.code
    return code


class _Program(click.Group):
    """The commands by what they are for; those that are not here are looked for as programs."""

    def __init__(self, commands: dict[str, Command]) -> None:
        # A missing command is an error of ours, with the list of commands, so click shows no help by itself.
        super().__init__(
            "shardio",
            no_args_is_help=False,
            help="Datasets of plain TFRecord shards, in folders and buckets.",
            context_settings={"help_option_names": ["-h", "--help"]},
            params=[
                click.Option(
                    ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
                    help="show the version and exit",
                )
            ],
        )  # fmt: skip
        self._known = commands
        # click looks here for the nearest name of a mistyped one; a command is made when it is called.
        self.commands = dict.fromkeys(commands, click.Command(None))

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(self._known)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one command; what it calls is imported for no other."""
        del ctx
        return ProgramCommand(self._known[cmd_name]) if cmd_name in self._known else None

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        formatter.write_usage("shardio", "COMMAND ...")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        for title, names in GROUPS.items():
            formatter.write(f"\n{title}:\n")
            for name in names:
                formatter.write(f"  {name:<12}{self._known[name].summary}\n")
        with formatter.section("options"):
            formatter.write_dl(
                [("--version", "show the version and exit"), ("-h, --help", "show this message")]
            )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        formatter.write("\n`shardio COMMAND -h` says more; `shardio completion SHELL` makes the shell")
        formatter.write(f" complete commands and options.\n{EXIT_CODES}\n")


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's call
    if value:
        from shardio import __version__

        click.echo(f"shardio {__version__}")
        ctx.exit()


def _run(argv: list[str]) -> int:
    commands = all_commands()
    names = {alias: command.name for command in commands.values() for alias in command.aliases}
    argv = [names.get(word, word) for word in argv[:1]] + argv[1:]
    program = _Program(commands)
    if COMPLETION_VARIABLE in os.environ:
        from click.shell_completion import shell_complete

        return shell_complete(program, {}, "shardio", COMPLETION_VARIABLE, os.environ[COMPLETION_VARIABLE])
    external = _external(argv, commands)
    if external is not None:
        return subprocess.run([external, *argv[1:]], check=False).returncode  # noqa: S603 - the user's own words
    if not argv:
        with click.Context(program, info_name="shardio") as context:
            sys.stderr.write(program.get_help(context) + "\n")
        return USAGE
    try:
        command, given = _parsed(program, argv)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        # What was typed cannot be parsed, so whether JSON is wanted is looked up by hand.
        console = Console(sys.stdout, sys.stderr, json="--json" in argv)
        console.failure(_usage(error))
        return USAGE
    console = Console(sys.stdout, sys.stderr, json=given.json, quiet=given.quiet, params=command.params)
    with _warnings_as_notes(console):
        try:
            return command.run(given, console)
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - a program ends in one line, whatever went wrong
            if given.debug:
                import traceback

                sys.stderr.write(redact(traceback.format_exc()))
            failure = explain(error)
            console.failure(failure)
            return failure.code


def _parsed(program: _Program, argv: list[str]) -> tuple[Command, Given]:
    """Parse without running: what click does around a callback (aborts, broken pipes) is done in `main`."""
    with program.make_context("shardio", list(argv)) as context:
        command, values = program.invoke(context)
        return command, Given(values)


def _usage(error: click.ClickException) -> CommandFailure:
    text = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "shardio"
    fields: dict[str, Any] = {"advice": f"see {path} --help"}
    return CommandFailure(USAGE, "UsageError", f"{text} ({path} --help says more)", fields)


def _external(argv: list[str], commands: dict[str, Command]) -> str | None:
    """Return the program `shardio-NAME` for a command that is not one of ours, as git and cargo do."""
    if not argv or argv[0] in commands or not argv[0].isidentifier():
        return None
    name = f"shardio-{argv[0]}"
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


@contextlib.contextmanager
def _warnings_as_notes(console: Console) -> Iterator[None]:
    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        del filename, lineno, file, line
        if issubclass(category, UserWarning | RuntimeWarning):
            console.note(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = show
        yield


def _replace_closed_streams() -> None:
    """Let what is printed go nowhere where a program was started without a stream, as some daemons do.

    Python has None there; and the next file to be opened would get the number of the stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - until the end


def _forget_stdout() -> None:
    """Keep the interpreter from complaining when it flushes what will not be read."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
