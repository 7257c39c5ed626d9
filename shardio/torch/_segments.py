"""Packed rows as models take them: masks that keep documents apart, and the documents again."""

from __future__ import annotations

import torch

from shardio.torch._tensors import RaggedTensor


def segment_mask(segment_ids: torch.Tensor, *, causal: bool = True) -> torch.Tensor:
    """Return the mask of attention under which the documents of a packed row do not see each other.

    Args:
        segment_ids: int [rows, length], as `shardio.pack` makes them.
        causal: a token sees only itself and what comes before it.

    Returns:
        bool [rows, 1, length, length], True where a token may look, for `attn_mask=` of
        `torch.nn.functional.scaled_dot_product_attention`. Padding sees padding alone, so that no row of the
        mask is empty.

    Examples:
        >>> segment_mask(torch.tensor([[1, 1, 2]])).int().tolist()
        [[[[1, 0, 0], [1, 1, 0], [0, 0, 1]]]]
    """
    same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    return same.tril() if causal else same


def next_tokens(tokens: torch.Tensor, segment_ids: torch.Tensor, *, ignore_index: int = -100) -> torch.Tensor:
    """Return for each token of packed rows the next one of its document, as labels of a language model.

    Args:
        tokens: int [rows, length].
        segment_ids: int [rows, length], as `shardio.pack` makes them.
        ignore_index: is where there is none: at the end of a document, and in padding.

    Returns:
        int64 [rows, length], for `torch.nn.functional.cross_entropy`.

    Examples:
        >>> next_tokens(torch.tensor([[5, 6, 7, 0]]), torch.tensor([[1, 1, 2, 0]]))
        tensor([[   6, -100, -100, -100]])
    """
    labels = torch.full(tokens.shape, ignore_index, dtype=torch.int64, device=tokens.device)
    goes_on = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] > 0)
    labels[:, :-1][goes_on] = tokens[:, 1:][goes_on].to(torch.int64)
    return labels


def unpack(values: torch.Tensor, segment_ids: torch.Tensor) -> RaggedTensor:
    """Return the documents of packed rows again, one after another; `shardio.unpack` for tensors.

    Args:
        values: [rows, length, ...]: the tokens, or what a model makes of each.
        segment_ids: int [rows, length], as `shardio.pack` makes them.

    Raises:
        ValueError: the two do not begin with the same two sizes.
    """
    if segment_ids.ndim != 2 or values.shape[:2] != segment_ids.shape:
        found = f"segment_ids {list(segment_ids.shape)} and values {list(values.shape)}"
        raise ValueError(f"{found} must begin with the same two sizes")
    first = torch.ones_like(segment_ids, dtype=torch.bool)
    first[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    kept = segment_ids > 0
    starts = torch.nonzero(first[kept])[:, 0]
    return RaggedTensor(values[kept], torch.cat([starts, kept.sum()[None]]))
