import numpy as np
from numpy.typing import NDArray

def resize_image(
    source: NDArray[np.uint8],
    out: NDArray[np.uint8],
    *,
    box: tuple[float, float, float, float] | None = None,
    bicubic: bool = False,
    flip: bool = False,
) -> None: ...
