"""What a stream does about damage: the policy of the reader that it streams.

Skipping is part of the order: the plan counts skipped records as delivered, so every rank keeps its number of
steps and a resume stays exact.
"""

from __future__ import annotations

from shardio.reader import Damage, is_damage

__all__ = ["Damage", "is_damage"]
