"""Compare `shardio.order.Permutation` with NumPy's own: the figures of docs/design/order-measured.md.

    python benchmarks/permutation_quality.py

Each figure is a z-score (or a chi-square per degree of freedom, expected 1) over many seeds; NumPy's own,
computed the same way, are beside it.  The network is measured alone too, for sizes at which the class would
use its table.
"""

from __future__ import annotations

import math
import timeit
from collections.abc import Callable
from functools import partial

import numpy as np

from shardio.kernels import permute
from shardio.order import Permutation

Maker = Callable[[int, int], np.ndarray]


def network(n: int, seed: int) -> np.ndarray:
    """Return a whole permutation made by the Feistel network, whatever n is."""
    return permute(np.arange(n), Permutation(n, seed).network, forward=True)


def shuffled(n: int, seed: int) -> np.ndarray:
    """Return NumPy's own permutation."""
    return np.random.default_rng(seed).permutation(n)


def small_chi_square(make: Maker, n: int, trials: int) -> float:
    """Return chi-square per degree of freedom of how often each of the n! permutations comes."""
    weights = n ** np.arange(n)
    seen = np.unique([int(make(n, seed) @ weights) for seed in range(trials)], return_counts=True)[1]
    expected = trials / math.factorial(n)
    missing = math.factorial(n) - seen.size
    return float((((seen - expected) ** 2).sum() / expected + missing * expected) / (math.factorial(n) - 1))


def cells_chi_square(make: Maker, n: int, trials: int) -> float:
    """Return chi-square per degree of freedom of the table of 16 parts of places and of numbers."""
    table = np.zeros((16, 16))
    for seed in range(trials):
        np.add.at(table, (np.arange(n) * 16 // n, make(n, seed) * 16 // n), 1)
    expected = table.sum() / 256
    # Rows and columns are fixed: 15 * 15 degrees of freedom.
    return float(((table - expected) ** 2).sum() / expected / 225)


def z_score(values: list[float], mean: float) -> float:
    """Return how many standard errors the mean of the values is from what it should be."""
    return float((np.mean(values) - mean) / (np.std(values) / math.sqrt(len(values))))


def scores(make: Maker, n: int, trials: int) -> tuple[float, float, float, float]:
    """Return z-scores of displacement, serial correlation, fixed points and differing low bits."""
    displacement, serial, fixed, pairs = [], [], [], []
    for seed in range(trials):
        p = make(n, seed).astype(float)
        displacement.append(np.abs(p - np.arange(n)).mean() / n)
        serial.append(np.corrcoef(p[:-1], p[1:])[0, 1])
        fixed.append((p == np.arange(n)).sum())
        pairs.append(((p[:-1].astype(int) ^ p[1:].astype(int)) & 1).mean())
    half = (n // 2) * ((n + 1) // 2) * 2 / (n * (n - 1))
    return (
        z_score(displacement, (n * n - 1) / 3 / n / n),
        z_score(serial, -1 / n),
        z_score(fixed, 1),
        z_score(pairs, half),
    )


def main() -> None:
    """Print the tables."""
    print("| test | n | permutations | as used | network | NumPy |\n" + "| --- " * 6 + "|")
    used = lambda n, seed: Permutation(n, seed)[np.arange(n)]  # noqa: E731 -- a name for a column
    columns = (used, network, shuffled)
    for n, trials in ((3, 6000), (4, 24_000), (5, 60_000)):
        cells = [f"{small_chi_square(make, n, trials):.2f}" for make in columns]
        print(f"| chi-square over all n! | {n} | {trials:,} | " + " | ".join(cells) + " |")
    for n, trials in ((160, 4000), (1024, 1000), (5008, 400), (100_000, 40)):
        cells = [f"{cells_chi_square(make, n, trials):.2f}" for make in columns]
        print(f"| chi-square of 16 x 16 cells | {n:,} | {trials:,} | " + " | ".join(cells) + " |")
    names = ("displacement, z", "serial correlation, z", "fixed points, z", "neighbours' low bits, z")
    for n, trials in ((64, 4000), (1000, 1000), (5000, 500), (65_536, 100), (1_000_003, 12)):
        found = [scores(make, n, trials) for make in columns]
        for i, name in enumerate(names):
            print(
                f"| {name} | {n:,} | {trials:,} | " + " | ".join(f"{each[i]:+.2f}" for each in found) + " |"
            )
    print("\n| n | us per index, blocks of 256 | of 4,096 | of 1,048,576 |\n| --- | --- | --- | --- |")
    for n in (4000, 100_000, 1_281_167, 1_000_000_000, 2**30 + 1):
        made, at = Permutation(n, 7), np.random.default_rng(0).integers(0, n, 1 << 20)
        cells = []
        for block in (256, 4096, 1 << 20):
            part, times = at[:block], (1 << 20) // block
            seconds = min(timeit.repeat(partial(made.__getitem__, part), number=times, repeat=3))
            cells.append(f"{seconds / (1 << 20) * 1e6:.3f}")
        print(f"| {n:,} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
