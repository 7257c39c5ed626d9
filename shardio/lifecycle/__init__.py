"""What changes a dataset that stands: each change is one commit, whole or not at all.

Nothing is changed in place. A change computes what follows from the version that it read, and `commit_change`
makes that the next version, also where others commit meanwhile.
"""

from __future__ import annotations

from shardio.lifecycle._change import commit_change

__all__ = ["commit_change"]
