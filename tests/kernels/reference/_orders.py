"""Permutations of random words, and rows of interleaved orders."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tests.kernels.reference._shared import (
    Interleaved,
    Interleaving,
    InterleavingState,
    Network,
    as_parts,
    as_ranges,
)

_BLOCK = 8192  # numbers that go through the network at once: their arrays stay in the second-level cache
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd


def shuffle_ranges(
    words: NDArray[np.uint64], starts: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[np.uint32]:
    key, starts, counts = as_ranges(words, starts, counts)
    found = np.empty(int(counts.sum()), np.uint32)
    at = 0
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        order = list(range(count))
        if count > 1:
            blocks = [
                _philox(int(key[0]), int(key[1]), number)
                for number in range(start // 4, (start + count + 3) // 4)
            ]
            raw = [word for block in blocks for word in block]
            for i in range(count - 1, 0, -1):
                other = raw[start % 4 + i] * (i + 1) >> 64
                order[i], order[other] = order[other], order[i]
        found[at : at + count] = order
        at += count
    return found


def _philox(k0: int, k1: int, number: int) -> tuple[int, int, int, int]:
    """Return a block of four words of Philox-4x64-10."""
    full = (1 << 64) - 1
    c0, c1, c2, c3 = number + 1, 0, 0, 0
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = right >> 64 ^ c1 ^ k0, right & full, left >> 64 ^ c3 ^ k1, left & full
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & full, (k1 + 0xBB67AE8584CAA73B) & full
    return c0, c1, c2, c3


def permute(values: NDArray[np.int64], network: Network, *, forward: bool = True) -> NDArray[np.int64]:
    flat = np.ascontiguousarray(values, np.int64).reshape(-1).view(np.uint64)
    out = np.empty(flat.size, np.int64)
    for start in range(0, flat.size, _BLOCK):
        block = _through(flat[start : start + _BLOCK], network, forward=forward)
        outside = np.flatnonzero(block >= network.n)
        while outside.size:
            walked = _through(block[outside], network, forward=forward)
            block[outside] = walked
            outside = outside[walked >= network.n]
        out[start : start + block.size] = block.view(np.int64)
    return out.reshape(np.shape(values))


def _through(values: NDArray[np.uint64], network: Network, *, forward: bool) -> NDArray[np.uint64]:
    """Run the rounds over a block: each half takes in a hash of the other, in turn."""
    bits, many = np.uint64(network.low_bits), np.uint64(network.high)
    low = values & (np.uint64(1) << bits) - np.uint64(1)
    high = values >> bits
    scratch = np.empty_like(low)
    for number in range(8) if forward else range(7, -1, -1):
        word = network.words[number]
        if number % 2 == 0:
            low ^= _mix(high, word, np.uint64(64) - bits, scratch)
            continue
        # The top 32 bits of the hash, scaled to [0, b), are added modulo b.  Of x and x - b (or x + b, on
        # the way back) the one that did not wrap round 2**64 is the smaller.
        step = _mix(low, word, np.uint64(32), scratch)
        step *= many
        step >>= np.uint64(32)
        if forward:
            high += step
            np.minimum(high, np.subtract(high, many, out=scratch), out=high)
        else:
            high -= step
            np.minimum(high, np.add(high, many, out=scratch), out=high)
    high <<= bits
    high |= low
    return high


def _mix(
    half: NDArray[np.uint64], word: np.uint64, shift: np.uint64, out: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    # Two multiplications with a fold between: the product's top bits depend on every bit of the half.
    np.add(half, word, out=out)
    np.multiply(out, _MIX, out=out)
    out ^= out >> np.uint64(32)
    np.multiply(out, _MIX, out=out)
    np.right_shift(out, shift, out=out)
    return out


def interleave(shape: Interleaving, parts: ArrayLike, held: InterleavingState) -> Interleaved:
    parts = as_parts(parts, shape.edges)
    counts = parts[:, 2] - parts[:, 1]
    lane = np.repeat(parts[:, 0], counts)
    place = np.arange(lane.size) + np.repeat(parts[:, 1] - (np.cumsum(counts) - counts), counts)
    round_number, strand = _strands(shape, lane, place)
    m, w = shape.chunk_rows, shape.window
    start, length, moved = shape.starts[strand], shape.rows[strand], shape.moved[strand]
    at = round_number + moved
    before = at >= length  # the rows before the place that the strand began with
    at -= np.where(before, length, 0)
    at += start
    chunk, within = np.divmod(at + np.where((shape.gap > 0) & (at >= shape.gap_from), shape.gap, 0), m)
    # A window ends with its run of w rows, with its chunk, with its strand, or where the strand began.
    first = within - within % w
    base = at - within
    middle = start + moved
    low = np.maximum(base + first, np.where(before, start, middle))
    stop = np.minimum(first + w, m)
    stop = base + np.where(chunk == shape.short, np.minimum(stop, m - shape.gap), stop)
    high = np.minimum(stop, np.where(before, middle, start + length))
    # Rows of one window are numbered together while their strand does not come to another one between.
    order = np.argsort(strand, kind="stable")
    new = np.ones(order.size, bool)
    new[1:] = (strand[order][1:] != strand[order][:-1]) | (low[order][1:] != low[order][:-1])
    head = np.full(order.size, -1)
    head[order] = order[np.flatnonzero(new)][np.cumsum(new) - 1] if order.size else order
    heads, window = np.unique(head, return_inverse=True)
    count = (high - low)[heads]
    shuffles = _shuffles(shape, shape.places, low[heads], count)
    row = shuffles[(np.cumsum(count) - count)[window] + at - low].astype(np.int64)
    number = chunk[heads]
    if shape.shuffled:
        number = shape.table[number] if shape.table.size else permute(number, shape.network)
    position = low[heads] + number * m - base[heads]
    return Interleaved(window.reshape(-1), row, strand[heads], low[heads], count, position)


def _strands(
    shape: Interleaving, lane: NDArray[np.int64], place: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the round of each place of a lane, and the strand, counted over all lanes, that it takes."""
    round_number, slot = np.divmod(place, shape.strands)
    # Rows come in runs of places of a lane, so that most rounds are those of the row before.
    new = np.ones(round_number.size, bool)
    new[1:] = (round_number[1:] != round_number[:-1]) | (lane[1:] != lane[:-1])
    heads = np.flatnonzero(new)
    own, begin = lane[heads], round_number[heads] * shape.strands
    counts = np.minimum(shape.strands, shape.edges[own + 1] - shape.edges[own] - begin)
    order = _shuffles(shape, shape.rounds, shape.edges[own] + begin, counts)
    slot += (np.cumsum(counts) - counts)[np.cumsum(new) - 1]
    return round_number, lane * shape.strands + order[slot]


def _shuffles(
    shape: Interleaving, words: NDArray[np.uint64], starts: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[np.uint32]:
    if shape.shuffled:
        return shuffle_ranges(words, starts, counts)
    total = int(counts.sum())
    return (np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)).astype(np.uint32)
