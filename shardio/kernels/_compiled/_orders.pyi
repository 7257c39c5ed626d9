import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardio.kernels._interleaving import Interleaved, Interleaving, InterleavingState, Network

def shuffle_ranges(
    words: NDArray[np.uint64], starts: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[np.uint32]: ...
def permute(values: NDArray[np.int64], network: Network, *, forward: bool = True) -> NDArray[np.int64]: ...
def interleave(shape: Interleaving, parts: ArrayLike, held: InterleavingState) -> Interleaved: ...
