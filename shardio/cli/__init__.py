"""The `shardio` program: parses arguments, calls what the library offers, prints; no algorithms.

Exit codes: 0 clean, 1 damage or failure found in the data, 2 usage, 3 could not be done; 130 after Ctrl-C,
141 when the output is no longer read.  Results go to stdout, progress and errors to stderr.  A command is
one file in `_commands`; it is found there, and nothing else needs to know of it.
"""

from __future__ import annotations

from shardio.cli._main import index, main

__all__ = ["index", "main"]
