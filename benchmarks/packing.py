"""How full packed rows are, and what packing costs beside writing them.

    python benchmarks/packing.py

Documents have log-normal lengths, as web text has; those longer than a row are cut. "In order" fills rows
with documents as they come, and begins another row where one does not fit. Times are those of the processor,
so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import numpy as np

import shardio


def documents_of(count: int) -> list[np.ndarray]:
    """Return tokens of documents with a median of 400 and a mean of 820 tokens."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(6.0, 1.2, count).astype(np.int64), 1, 200_000)
    tokens = rng.integers(0, 50_000, int(lengths.sum()), np.int32)
    return np.split(tokens, np.cumsum(lengths)[:-1])


def in_order(documents: list[np.ndarray], length: int) -> float:
    """Return how full rows are that take documents as they come."""
    rows, used = 1, 0
    for document in documents:
        for size in [length] * (len(document) // length) + [len(document) % length]:
            if used + size > length:
                rows, used = rows + 1, 0
            used += size
    return sum(map(len, documents)) / (rows * length)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=50_000)
    count = parser.parse_args().documents
    documents = documents_of(count)
    tokens = sum(map(len, documents))
    print(f"{count:,} documents, {tokens:,} tokens of int32")
    print("| row | buffer, tokens | fill | fill in order | documents/s packed | tokens/s packed |")
    print("| --- | --- | --- | --- | --- | --- |")
    for length in (512, 2048, 8192, 32768):
        for buffer in (1 << 18, 1 << 20, 1 << 22, 1 << 24):
            best = np.inf
            for _ in range(3):
                rows = shardio.pack(documents, length, cut=True, buffer_tokens=buffer)
                start = time.process_time()
                for _ in rows:
                    pass
                best = min(best, time.process_time() - start)
            print(
                f"| {length:,} | {buffer:,} | {rows.report.fill:.2%} | {in_order(documents, length):.2%} | "
                f"{count / best:,.0f} | {tokens / best:,.0f} |"
            )
    print("| 2,048, written, compression | seconds | MB | documents/s |")
    print("| --- | --- | --- | --- |")
    for compression in (None, "zstd"):
        with tempfile.TemporaryDirectory() as folder:
            rows = shardio.pack(documents, 2048, cut=True)
            start = time.process_time()
            with shardio.DatasetWriter(f"{folder}/d", schema=rows.schema, compression=compression) as out:
                for row in rows:
                    out.write(row)
            seconds = time.process_time() - start
            stored = shardio.open(f"{folder}/d").num_bytes
        print(f"| {compression} | {seconds:.1f} | {stored / 1e6:,.0f} | {count / seconds:,.0f} |")


if __name__ == "__main__":
    main()
