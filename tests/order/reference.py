"""The specification once more, as plainly as it can be said: lists and loops, nothing clever.

It replays every step from the beginning of the epoch, as the product must not; the tests compare the two.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction

import numpy as np
from numpy.random import Philox


def shuffled(count, purpose, *fields):
    if count < 2:
        return list(range(count))
    return [int(i) for i in np.argsort(words(purpose, *fields).random_raw(count), kind="stable")]


def words(purpose, *fields):
    text = f"shardio.order.1/{purpose}\0".encode() + b"".join(f.to_bytes(8, "little") for f in fields)
    digest = hashlib.sha256(text).digest()
    key = np.array([int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")], np.uint64)
    return Philox(key=key)


def exchanged(count, first, purpose, *fields):
    """Return the permutation of `count` places of which the first is `first`, by Fisher and Yates."""
    if count < 2:
        return list(range(count))
    stream = words(purpose, *fields)
    stream.advance(first // 4)
    raw = [int(word) for word in stream.random_raw(count + first % 4)][first % 4 :]
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = raw[i] * (i + 1) // 2**64
        order[i], order[j] = order[j], order[i]
    return order


def sequence_of(count, *fields):
    """Return the order of the chunks: `Permutation`, once more, with the `sequence` key."""
    if count <= 4096:
        return shuffled(count, "sequence", *fields, count)
    raw = words("sequence", *fields, count).random_raw(8).tolist()
    return [permuted(count, x, raw) for x in range(count)]


def permuted(count, x, raw):
    """Return the number at place x of a large permutation, with Python's own integers."""
    bits = max(1, (count - 1).bit_length() // 2)
    wide, full, odd = -(-count // 2**bits), 2**64, 0x9E3779B97F4A7C15

    def mix(half, word):
        y = (half + word) * odd % full
        return (y ^ (y >> 32)) * odd % full

    while True:
        low, high = x % 2**bits, x // 2**bits
        for i, word in enumerate(raw):
            if i % 2 == 0:
                low ^= mix(high, word) >> (64 - bits)
            else:
                high = (high + ((mix(low, word) >> 32) * wide >> 32)) % wide
        x = high * 2**bits + low
        if x < count:
            return x


def lanes_of(sizes, plan, *, seed, epoch, source=0, cycle=0, shuffle=True):
    """Return the positions of each lane, in the order in which the lane gives them."""
    fields, rows = (seed, epoch, source, cycle), sum(sizes.rows.tolist())
    m, w, J, L = plan.chunk_rows, plan.window, plan.interleave, plan.ranks * plan.workers
    chunks = [list(range(start, min(start + m, rows))) for start in range(0, rows, m)]
    numbers = sequence_of(len(chunks), *fields) if shuffle else range(len(chunks))
    places = []  # (position, number of its run of w rows in its chunk, place in the sequence of chunks)
    for k, number in enumerate(numbers):
        places.extend((row, i // w, k) for i, row in enumerate(chunks[number]))
    # Where each place would be if the last, short chunk had m rows.
    whole = [k * m + chunks[numbers[k]].index(row) for row, _, k in places] if chunks else []
    lanes, start = [], 0
    for lane in range(L):
        length = rows // L + (lane < rows % L)
        turns = []
        for first in range(0, length, J):
            count = min(J, length - first)
            turns.append(
                exchanged(count, start + first, "rounds", *fields) if shuffle else list(range(count))
            )
        strands, begin = [], start
        for j in range(J):
            own = length // J + (j < length % J)
            moved = 0
            if own and shuffle and len(chunks) > 1:
                slot = turns[0].index(j)
                head = 1 + (slot * 2**16 + (lane * 2654435769 % 2**32) // 2**16) * m // (J * 2**16)
                moved = (m - head - whole[begin]) % m % own
            order = [*range(begin + moved, begin + own), *range(begin, begin + moved)]
            windows = []
            for at in order:
                same = windows and at == windows[-1][-1] + 1 and places[at][1:] == places[at - 1][1:]
                windows[-1].append(at) if same else windows.append([at])
            given = []
            for window in windows:
                turn = exchanged(len(window), window[0], "places", *fields)
                given.extend(places[window[i]][0] for i in turn) if shuffle else given.extend(
                    places[at][0] for at in window
                )
            strands.append(given)
            begin += own
        lanes.append([strands[j][i] for i, turn in enumerate(turns) for j in turn])
        start += length
    return lanes


def mixed_lanes(sources, plans, mixture, *, seed, epoch, global_batch, shuffle=True):
    """Return the (source, cycle, position) of each lane of a mixture."""
    C, T, period = plans[0].ranks, plans[0].workers, sum(mixture.counts)
    stands = sorted((Fraction(2 * j + 1, 2 * k), i) for i, k in enumerate(mixture.counts) for j in range(k))
    pattern = [i for _, i in stands]
    passes = {}

    def lane_of(source, cycle, lane):
        if (source, cycle) not in passes:
            passes[source, cycle] = lanes_of(
                sources[source],
                plans[source],
                seed=seed,
                epoch=epoch,
                source=source,
                cycle=cycle,
                shuffle=shuffle,
            )
        return passes[source, cycle][lane]

    lanes = []
    for lane in range(C * T):
        lengths = [len(lane_of(i, 0, lane)) for i in range(len(sources))]
        if mixture.stop == "first":
            length = period * min(n // k for n, k in zip(lengths, mixture.counts, strict=True))
        elif mixture.stop == "all":
            length = period * max(-(-n // k) for n, k in zip(lengths, mixture.counts, strict=True))
        else:
            t = lane // C
            length = len([s for s in range(mixture.stop) if s % T == t]) * (global_batch // C)
        raw = words("schedule", seed, epoch, lane).random_raw(length + period).tolist()
        taken, rows = [0] * len(sources), []
        for place in range(length):
            first = place // period * period
            ranked = sorted((raw[first + j], j) for j in range(period))
            turn = [j for _, j in ranked] if shuffle else range(period)
            source = pattern[turn[place - first]]
            cycle, at = divmod(taken[source], lengths[source])
            rows.append((source, cycle, lane_of(source, cycle, lane)[at]))
            taken[source] += 1
        lanes.append(rows)
    return lanes


class Replay:
    """Walk an epoch step by step, with a batch that may change before any step."""

    def __init__(self, lanes, ranks):
        self.lanes, self.C, self.T = lanes, ranks, len(lanes) // ranks
        self.places, self.number = [0] * self.T, 0
        self.rest = None
        self.own = [row for lane in lanes for row in lane]

    def step(self, G):
        """Return the rows of the next step, short or empty at the end."""
        u, t = G // self.C, self.number % self.T
        self.number += 1
        enough = all(
            len(self.lanes[t * self.C + c]) - self.places[t] >= u
            for t in range(self.T)
            for c in range(self.C)
        )
        if self.rest is None and enough:
            start = self.places[t]
            self.places[t] += u
            return [row for c in range(self.C) for row in self.lanes[t * self.C + c][start : start + u]]
        if self.rest is None:
            self.rest = [r for n, lane in enumerate(self.lanes) for r in lane[self.places[n // self.C] :]]
        rows, self.rest = self.rest[:G], self.rest[G:]
        return rows

    def padded(self, rows, G):
        filled, i = list(rows), 0
        while rows and len(filled) < G:
            filled.append(self.own[i % len(self.own)])
            i += 1
        return filled
