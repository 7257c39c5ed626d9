"""Warnings at the caller's own line of code, past frames of libraries."""

from __future__ import annotations

import sys
import warnings

from shardio.redact import redact

__all__ = ["warn"]

# Packages whose frames are skipped: this one, training loops, and the standard library's wrappers.
_PASSED = frozenset(
    {
        "shardio", "shardio_indexer",
        "accelerate", "jax", "lightning", "lightning_fabric", "pytorch_lightning", "torch", "torchdata",
        "tqdm", "transformers",
        "concurrent", "contextlib", "functools", "multiprocessing", "threading",
    }
)  # fmt: skip


_REGISTRY: dict[str | tuple[str, type[Warning], int], int] = {}


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the nearest frame of the caller's own code.

    If a thread or process has no such frame, the warning is attributed to this package.
    """
    message = redact(message)
    frame = sys._getframe(1)  # noqa: SLF001 - `warnings` has `skip_file_prefixes` from Python 3.12 on
    while frame.f_back is not None and _package(frame.f_globals) in _PASSED:
        frame = frame.f_back
    if _package(frame.f_globals) in _PASSED:
        warnings.warn_explicit(message, category, "shardio", 1, module="shardio", registry=_REGISTRY)
        return
    names = frame.f_globals
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=names.get("__name__") or "<unknown>",
        registry=names.setdefault("__warningregistry__", {}),
    )


def _package(names: dict[str, object]) -> str:
    return str(names.get("__name__") or "").partition(".")[0]
