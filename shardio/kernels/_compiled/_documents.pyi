import numpy as np
from numpy.typing import NDArray

def count_documents(data: bytes | memoryview, stops: NDArray[np.int64], first: int = 0) -> int: ...
