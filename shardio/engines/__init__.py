"""Datasets in the engines that people run: Ray Data, Spark, Dask, Beam, Polars, and torchdata's nodes.

Each engine has a module named like it, which loads the engine: `from shardio.engines import ray`.  All are
thin above `_reading`, spans of a dataset that workers read, and `_sessions`, writes that a driver commits.
"""

from __future__ import annotations
