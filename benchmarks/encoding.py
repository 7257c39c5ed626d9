"""Examples encoded by a schema, and by protobuf's own messages: microseconds a record, and their ratio.

    python benchmarks/encoding.py
    python benchmarks/encoding.py --features 1 20 200 --only list

Each line is one shape of record, all of whose features hold the same value.  Both take turns, and the least
of many runs counts, so that what else the machine does costs neither more than the other.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.codecs import record_codec
from shardio.v1 import example_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES: dict[str, tuple[str, Any]] = {
    "float": ("float32", 0.5),
    "int": ("int64", 7),
    "NumPy float32": ("float32", np.float32(0.5)),
    "NumPy float64": ("float32", np.float64(0.5)),
    "NumPy int64": ("int64", np.int64(7)),
    "NumPy int32": ("int64", np.int32(7)),
    "text": ("text", "a bird"),
    "text, not ASCII": ("text", "ü bird"),
    "bytes": ("bytes", b"a bird"),
    "JPEG": ("jpeg", b"\xff\xd8\xff a bird"),
    "list of 4 floats": ("float32[4]", [0.5] * 4),
    "list of 64 floats": ("float32[64]", [0.5] * 64),
    "list of 3 ints, [?]": ("int64[?]", [1, 2, 3]),
    "list of 64 ints": ("int64[64]", list(range(64))),
    "list of 2 texts": ("text[?]", ["a", "b"]),
    "list of 2 bytes": ("bytes[?]", [b"a", b"b"]),
    "array of 4 float32": ("float32[4]", np.ones(4, np.float32)),
    "array of 64 float64": ("float32[64]", np.ones(64)),
    "array of 5 int64, [?]": ("int64[?]", np.arange(5)),
}


def by_protobuf(value: dict[str, Any]) -> bytes:
    """Return an Example of protobuf's own making."""
    example = example_pb2.Example()
    features = example.features.feature
    for name, item in value.items():
        feature = features[name]
        items = item if isinstance(item, list | np.ndarray) else [item]
        if isinstance(items[0], bytes):
            feature.bytes_list.value.extend(items)
        elif isinstance(items[0], str):
            feature.bytes_list.value.extend([text.encode() for text in items])
        elif isinstance(items[0], int | np.integer):
            feature.int64_list.value.extend(items)
        else:
            feature.float_list.value.extend(items)
    made: bytes = example.SerializeToString()
    return made


def least(calls: list[Callable[[], bytes]], repeats: int, runs: int = 15) -> list[float]:
    """Return the least seconds a call takes, of each."""
    best = [float("inf")] * len(calls)
    for _ in range(runs):
        for number, call in enumerate(calls):
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            best[number] = min(best[number], (time.perf_counter() - start) / repeats)
    return best


def main() -> None:
    """Print a line for each shape of record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--features", type=int, nargs="+", default=[1, 20, 200], help="features a record")
    parser.add_argument("--only", default="", help="shapes whose names hold this")
    options = parser.parse_args()
    print(f"{'values':24}" + "".join(f"{count:>6} features, ratio" for count in options.features))
    for name, (short, item) in SHAPES.items():
        if options.only not in name:
            continue
        cells = []
        for count in options.features:
            codec = record_codec({f"f{number}": short for number in range(count)})
            value = {f"f{number}": item for number in range(count)}
            calls = [lambda c=codec, v=value: c.encode(v), lambda v=value: by_protobuf(v)]
            ours, theirs = least(calls, max(1, 400 // count))
            cells.append(f"{ours * 1e6:11.1f} us {ours / theirs:6.2f}")
        print(f"{name:24}" + " ".join(cells))


if __name__ == "__main__":
    main()
