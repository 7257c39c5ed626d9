"""The `shardio` program: parses arguments, calls the library, prints; no algorithms.

Exit codes: 0 clean, 1 damage or failure found in the data, 2 usage, 3 could not be done; 130 after Ctrl-C,
141 for a closed output pipe.  Results go to stdout, progress and errors to stderr.  The commands are listed
in `_commands`, a module for each group.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["index", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code.

    Args:
        argv: the arguments without the program's name; None for those of the process.
    """
    try:
        # NumPy and cyclopts take most of the time of a short command, and Ctrl-C may come then, too.
        from shardio.cli import _main
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    return _main.main(argv)


def index() -> int:
    """Run `shardio adopt`; the program `shardio-index`."""
    return main(["adopt", *sys.argv[1:]])
