"""Adapters for PyTorch; the only room that imports it.

Thin on purpose: order, reading and batching live below and know no framework.
"""

from __future__ import annotations

from shardio.arguments import need

need("shardio.torch", "shardio[torch]", "torch")

from shardio.torch._dataset import StreamingDataset  # noqa: E402 - what is missing is said first
from shardio.torch._loader import StreamingDataLoader  # noqa: E402 - what is missing is said first
from shardio.torch._map import FullShuffle, MapDataset  # noqa: E402 - what is missing is said first
from shardio.torch._seeded import seeded  # noqa: E402 - what is missing is said first
from shardio.torch._segments import next_tokens, segment_mask, unpack  # noqa: E402 - what is missing is said first
from shardio.torch._tensors import RaggedTensor, tensors  # noqa: E402 - what is missing is said first

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
