"""Measure what `shardio.torch.seeded` adds to a transform: `python benchmarks/seeded.py`."""

from __future__ import annotations

import timeit

import numpy as np
import torch

from shardio.torch import seeded

CALLS = 2000


def flip(image: torch.Tensor) -> torch.Tensor:
    """Flip half of the images, drawing from the global generator."""
    return image.flip(0) if torch.rand(()) < 0.5 else image


def main() -> None:
    """Print the times."""
    image, rng = torch.zeros(3, 8, 8), np.random.default_rng(0)
    torch_alone, everything = seeded(flip, generators=("torch",)), seeded(flip)
    for name, call in (
        ("plain", lambda: flip(image)),
        ('generators=("torch",)', lambda: torch_alone(image, rng)),
        ("seeded", lambda: everything(image, rng)),
    ):
        best = min(timeit.repeat(call, number=CALLS, repeat=7)) / CALLS
        print(f"{name}: {best * 1e6:.0f} us a record")


if __name__ == "__main__":
    main()
