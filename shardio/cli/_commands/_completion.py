"""`shardio completion`: what a shell needs to complete commands, options, choices and paths."""

from __future__ import annotations

import click

from shardio.cli._command import COMPLETION_VARIABLE, Argument, Command
from shardio.cli._console import CLEAN, Console
from shardio.cli._given import Given

_SHELLS = ("bash", "zsh", "fish")


def _run(given: Given, console: Console) -> int:
    from click.shell_completion import get_completion_class

    found = get_completion_class(given.shell)
    assert found is not None  # noqa: S101 - click completes for these three
    script = found(click.Command("shardio"), {}, "shardio", COMPLETION_VARIABLE).source()
    if console.json:
        console.document({"shell": given.shell, "script": script})
        return CLEAN
    for line in script.splitlines():
        console.line(line)
    return CLEAN


COMMAND = Command(
    name="completion",
    summary="print the script that completes commands in your shell",
    takes=(Argument(["shell"], metavar="SHELL", type=click.Choice(_SHELLS), help="bash, zsh or fish"),),
    run=_run,
    examples={
        "shardio completion bash >> ~/.bashrc": "zsh: >> ~/.zshrc",
        "shardio completion fish > ~/.config/fish/completions/shardio.fish": "for fish",
    },
)
