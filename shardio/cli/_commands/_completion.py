"""`shardio completion`: what a shell needs to complete commands, options, choices and paths."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from shardio.cli._command import Command
from shardio.cli._console import CLEAN, Console
from shardio.cli._given import Given


def _run(
    given: Given,
    console: Console,
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="bash, zsh or fish")],
) -> int:
    from shardio.cli._commands import all_commands
    from shardio.cli._main import make_app

    script = make_app(all_commands()).generate_completion(shell=shell)
    if console.json:
        console.document({"shell": shell, "script": script})
        return CLEAN
    for line in script.splitlines():
        console.line(line)
    return CLEAN


COMMAND = Command(
    name="completion",
    summary="print the script that completes commands in your shell",
    run=_run,
    examples={
        "shardio completion bash >> ~/.bashrc": "zsh: >> ~/.zshrc",
        "shardio completion fish > ~/.config/fish/completions/shardio.fish": "for fish",
    },
)
