"""Adapters for PyTorch; the only room that imports it.

Thin on purpose: order, reading and batching live below and know no framework.
"""

from __future__ import annotations

from shardio.torch._loader import StreamingDataLoader
from shardio.torch._map import MapDataset
from shardio.torch._shuffle import FullShuffle
from shardio.torch._streaming import StreamingDataset

__all__ = ["FullShuffle", "MapDataset", "StreamingDataLoader", "StreamingDataset"]
