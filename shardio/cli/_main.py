"""From a command line to an exit code: every ending of a command becomes a code and at most one line."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from cyclopts import App, CycloptsError, Group
from rich.console import Console as RichConsole

from shardio.cli._command import Command
from shardio.cli._commands import all_commands, grouped_commands
from shardio.cli._console import (
    CLEAN,
    EXIT_CODES,
    INTERRUPTED,
    PIPE_CLOSED,
    USAGE,
    CommandFailure,
    Console,
    explain,
)
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


def make_app(loaded: Container[str]) -> App:
    """Return the program as cyclopts parses it.

    Args:
        loaded: names of the commands whose options are wanted. What they call is imported.
    """
    app = App(
        name="shardio",
        help="Datasets of plain TFRecord shards, in folders and buckets.",
        help_flags=("--help", "-h"),
        help_format="plaintext",
        help_epilogue=f"`shardio COMMAND -h` lists its options.\n{EXIT_CODES}",
        version=_version,
        version_format="plaintext",
        group_commands="options",
    )
    for number, (title, commands) in enumerate(grouped_commands().items()):
        group = Group(title, sort_key=number)
        for name, command in commands.items():
            app.command(command.app(group, loaded=name in loaded))
    return app


def _version() -> str:
    from shardio import __version__

    return f"shardio {__version__}"


def _run(argv: list[str]) -> int:
    commands = all_commands()
    names = {alias: each.name for each in commands.values() for alias in each.aliases}
    argv = [names.get(word, word) for word in argv[:1]] + argv[1:]
    external = _external(argv, commands)
    if external is not None:
        return subprocess.run([external, *argv[1:]], check=False).returncode  # noqa: S603 - the user's own words
    app = make_app(argv[:1])
    if not argv:
        app.help_print([], console=RichConsole(file=sys.stderr))
        return USAGE
    try:
        chosen, bound, _ = app.parse_args(argv, exit_on_error=False, print_error=False, verbose=False)
    except CycloptsError as error:
        # What was typed cannot be parsed, so whether JSON is wanted is looked up by hand.
        command_help = " ".join(["shardio", *(word for word in argv[:1] if word in commands), "--help"])
        text = f"{' '.join(str(error).split())} ({command_help} says more)"
        failure = CommandFailure(USAGE, "UsageError", text, {"advice": f"see {command_help}"})
        Console(sys.stdout, sys.stderr, json="--json" in argv).failure(failure)
        return USAGE
    if argv[0] not in commands or getattr(chosen, "__name__", "") != "parsed":  # help, the version
        chosen(*bound.args, **bound.kwargs)
        return CLEAN
    return _perform(commands[argv[0]], dict(bound.arguments))


def _perform(command: Command, typed: dict[str, Any]) -> int:
    given = Given(typed, {name: each.default for name, each in command.parameters.items()})
    console = Console(sys.stdout, sys.stderr, json=given.json, quiet=given.quiet)
    with _warnings_as_notes(console):
        try:
            return command.run(given, console, **{name: getattr(given, name) for name in command.own})
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - a program ends in one line, whatever went wrong
            if given.debug:
                import traceback

                sys.stderr.write(redact(traceback.format_exc()))
            failure = explain(error)
            console.failure(failure)
            return failure.code


def _external(argv: list[str], commands: Container[str]) -> str | None:
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
