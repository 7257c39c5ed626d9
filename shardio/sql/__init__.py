"""Conditions in SQL over columns: bounded in time and memory, and they see the columns and nothing else.

DuckDB evaluates them in a process of its own. Nothing here knows datasets: a function finds the columns, and
their values come as Arrow tables.
"""

from __future__ import annotations

from shardio.sql._condition import Column as Column, Condition as Condition
