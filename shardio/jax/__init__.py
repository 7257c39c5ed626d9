"""Streams for JAX: batches as global `jax.Array`s, laid out by a sharding; the only room that imports JAX."""

from __future__ import annotations

from shardio.arguments import need

need("shardio.jax", "shardio[jax]", "jax")

from shardio.jax._loader import StreamingLoader  # noqa: E402 - what is missing is said first

__all__ = ["StreamingLoader"]
