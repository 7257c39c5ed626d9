"""What `shardio.torch.seeded` adds to a transform, in microseconds of processor time a record.

    make torchvision && PYTHONPATH=.build/torchvision python benchmarks/seeded.py

Rounds of all ways are interleaved. The usual crop and flip is that of torchvision's v2, of an image of
256 x 256 to 224 x 224; it is left out, and that is said, where torchvision is not available.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import library as torch_library

from shardio.torch import seeded

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 15


def flip(image: torch.Tensor) -> torch.Tensor:
    """Flip half of the images, drawing from the global generator."""
    return image.flip(0) if torch.rand(()) < 0.5 else image


def crop_and_flip() -> Callable[[torch.Tensor], Any] | None:
    """Return torchvision's transform, or None where it cannot be imported."""
    # Of a build for another device its compiled operators are missing, and it looks for two of them.
    operators = torch_library.Library("torchvision", "FRAGMENT")
    try:
        import torchvision
    except ImportError:
        return None
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        KEPT.append(operators)
        import torchvision
    from torchvision.transforms import v2

    print(f"# torchvision {torchvision.__version__}, torch {torch.__version__}")
    return v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()])


KEPT: list[Any] = []


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    transforms: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor, int]] = {
        "a flip of 8 x 8": (flip, torch.zeros(3, 8, 8), 500)
    }
    usual = crop_and_flip()
    if usual is None:
        print("# torchvision cannot be imported: without its crop and flip")
    else:
        transforms["crop and flip to 224 x 224"] = usual, torch.zeros(3, 256, 256, dtype=torch.uint8), 60
    print(f"# medians of {ROUNDS} interleaved rounds")
    print('| transform | alone | `generators=("torch",)` adds | `seeded` adds |\n|---|---|---|---|')
    rng = np.random.default_rng(0)
    for name, (transform, image, calls) in transforms.items():
        torch_alone, everything = seeded(transform, generators=("torch",)), seeded(transform)
        ways: list[Callable[[], Any]] = [
            lambda: transform(image),  # noqa: B023 - called in this turn of the loop
            lambda: torch_alone(image, rng),  # noqa: B023
            lambda: everything(image, rng),  # noqa: B023
        ]
        taken: list[list[float]] = [[] for _ in ways]
        for _ in range(ROUNDS):
            for times, way in zip(taken, ways, strict=True):
                began = time.thread_time()
                for _ in range(calls):
                    way()
                times.append(1e6 * (time.thread_time() - began) / calls)
        plain, alone, both = (statistics.median(times) for times in taken)
        print(f"| {name} | {plain:.0f} us | {alone - plain:.0f} us | {both - plain:.0f} us |")


if __name__ == "__main__":
    main()
