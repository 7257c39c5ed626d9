"""`python -m shardio` is the `shardio` program."""

from __future__ import annotations

from shardio.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
