"""The commands that the program has, as its help lists them."""

from __future__ import annotations

import contextlib
import io
import re

from shardio import cli


def command_names() -> list[str]:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert cli.main(["--help"]) == 0
    return re.findall(r"^. ([a-z]+)  +[A-Z]", shown.getvalue(), re.MULTILINE)
