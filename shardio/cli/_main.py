"""From a command line to an exit code: every command ends with a code and at most one line of error."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cyclopts import App, CycloptsError, Group
from rich.console import Console as RichConsole

from shardio.cli._commands import ALIASES, COMMANDS, GROUPS
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
    except OSError as error:  # the disk that stdout goes to is full
        _forget_stdout()
        failure = explain(error)
        Console(sys.stdout, sys.stderr, json="--json" in arguments).failure(failure)
        return failure.code
    return code


def make_app() -> App:
    """Return the program as cyclopts parses it; a command is imported when it is used."""
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
    for number, (title, commands) in enumerate(GROUPS.values()):
        group = Group(title, sort_key=number)
        for name, summary in commands.items():
            place = f"shardio.cli._commands:{name}"
            help_line = f"{summary[0].upper()}{summary[1:]}."
            app.command(place, name=name, alias=ALIASES.get(name), group=group, help=help_line)
    return app


def _version() -> str:
    from shardio import __version__

    return f"shardio {__version__}"


def _run(argv: list[str]) -> int:
    external = _external(argv)
    if external is not None:
        return subprocess.run([external, *argv[1:]], check=False).returncode  # noqa: S603 - the user's own words
    app = make_app()
    if not argv:
        app.help_print([], console=RichConsole(file=sys.stderr))
        return USAGE
    try:
        chosen, bound, _ = app.parse_args(argv, exit_on_error=False, print_error=False, verbose=False)
    except CycloptsError as error:
        # The command line cannot be parsed, so --json is looked up by hand.
        command_help = " ".join(["shardio", *(word for word in argv[:1] if word in COMMANDS), "--help"])
        text = f"{' '.join(str(error).split())} (see {command_help})"
        failure = CommandFailure(USAGE, "UsageError", text, {"advice": f"see {command_help}"})
        Console(sys.stdout, sys.stderr, json="--json" in argv).failure(failure)
        return USAGE
    code: int | None = chosen(*bound.args, **bound.kwargs)
    return code or CLEAN  # help and the version return nothing


def _external(argv: list[str]) -> str | None:
    """Return the program `shardio-NAME` for a command that is not one of ours, as git and cargo do."""
    if not argv or argv[0] in COMMANDS or not argv[0].isidentifier():
        return None
    name = f"shardio-{argv[0]}"
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


def _replace_closed_streams() -> None:
    """Open the null device for closed standard streams, as some daemons start programs.

    Python has None there, and the next opened file would get the descriptor of the stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - until the end


def _forget_stdout() -> None:
    """Keep the interpreter from complaining when it flushes a closed stdout."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
