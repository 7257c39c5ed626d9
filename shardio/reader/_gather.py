"""Stands in for `_gather.pyx` where that was not compiled; Python prefers the compiled module."""

from __future__ import annotations

message = "shardio.reader._gather is not compiled: install shardio again, from a wheel or with a C compiler"
raise ImportError(message)
