"""Adapters for PyTorch; the only room that imports it.

Thin on purpose: order, reading and batching live below and know no framework.
"""

from __future__ import annotations

from shardio.torch._dataset import StreamingDataset
from shardio.torch._loader import StreamingDataLoader
from shardio.torch._map import FullShuffle, MapDataset
from shardio.torch._seeded import seeded
from shardio.torch._segments import next_tokens, segment_mask, unpack
from shardio.torch._tensors import RaggedTensor, tensors

__all__ = [
    "FullShuffle",
    "MapDataset",
    "RaggedTensor",
    "StreamingDataLoader",
    "StreamingDataset",
    "next_tokens",
    "seeded",
    "segment_mask",
    "tensors",
    "unpack",
]
