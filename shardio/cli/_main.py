"""From a command line to an exit code: every ending of a command becomes a code and at most one line."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from shardio.cli._command import GROUPS, INTERRUPTED, PIPE_CLOSED, USAGE, Command
from shardio.cli._commands import all_commands
from shardio.cli._failures import explain
from shardio.cli._screen import Screen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["main"]

# Programs of this house that are run by `_external`: group and summary, for the list of commands.
_BESIDE = {"index": ("change", "adopt shards that others wrote, where they lie, without changing a byte")}
_EXIT_CODES = "exit codes: 0 clean, 1 damage or failure found in the data, 2 usage, 3 could not be done"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code.

    Args:
        argv: the arguments without the program's name; None for those of the process.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
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
    return code


def _run(argv: list[str]) -> int:
    commands = all_commands()
    external = _external(argv, commands)
    if external is not None:
        return subprocess.run([external, *argv[1:]], check=False).returncode  # noqa: S603 - the user's own words
    parser = _parser(commands)
    if not argv:
        parser.print_help(sys.stderr)
        return USAGE
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else USAGE
    screen = Screen(sys.stdout, sys.stderr, json=arguments.json, quiet=arguments.quiet)
    with _warnings_as_notes(screen):
        try:
            return commands[arguments.command].run(arguments, screen)
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - a program ends in one line, whatever went wrong
            if arguments.debug:
                import traceback

                traceback.print_exc()
            failure = explain(error)
            screen.failure(failure)
            return failure.code


def _external(argv: list[str], commands: dict[str, Command]) -> str | None:
    """Return the program `shardio-NAME` for a command that is not one of ours, as git and cargo do."""
    if not argv or argv[0] in commands or not argv[0].isidentifier():
        return None
    name = f"shardio-{argv[0]}"
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


def _parser(commands: dict[str, Command]) -> argparse.ArgumentParser:
    from shardio import __version__

    listing = []
    known = {name: (item.group, item.summary) for name, item in commands.items()} | _BESIDE
    for group, title in GROUPS.items():
        listing.append(f"\n{title}:")
        listing += [
            f"  {name:<10}{summary}" for name, (own, summary) in sorted(known.items()) if own == group
        ]
    parser = argparse.ArgumentParser(
        prog="shardio",
        usage="shardio COMMAND ...",
        description="Datasets in plain TFRecord shards: look at them, check them, keep house.\n"
        + "\n".join(listing),
        epilog=f"`shardio COMMAND --help` says more.\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"shardio {__version__}")
    # The listing above is by group, so argparse's own is left out.
    subparsers = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", help=argparse.SUPPRESS
    )
    for name, command in commands.items():
        examples = "".join(f"  {line}\n      {text}\n" for line, text in command.examples.items())
        one = subparsers.add_parser(
            name,
            description=command.summary[0].upper() + command.summary[1:] + ".",
            epilog=(f"examples:\n{examples}\n" if examples else "") + _EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_arguments(one)
        one.add_argument("--json", action="store_true", help="print one JSON document for programs")
        one.add_argument("-q", "--quiet", action="store_true", help="no progress and no notes")
        one.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


@contextlib.contextmanager
def _warnings_as_notes(screen: Screen) -> Iterator[None]:
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
            screen.note(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = show
        yield


def _forget_stdout() -> None:
    """Keep the interpreter from complaining when it flushes what nobody will read."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
