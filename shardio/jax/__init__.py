"""Streams for JAX: batches as global `jax.Array`s, laid out by a sharding; the only room that imports JAX."""

from __future__ import annotations

from shardio.jax._loader import StreamingLoader

__all__ = ["StreamingLoader"]
