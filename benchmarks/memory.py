"""How much memory a default stream holds over what imports take: 8 KB tokens over many epochs.

    python benchmarks/memory.py [--epochs 20] [--megabytes 512] [--threads 2] [--plain] [--bucket]

Random tokens that half compress, batches of 64, no option but the number of threads; zstd on local disk, or
not compressed (`--plain`), or from a server (`--bucket`). The stream runs in a process of its own. Resident
memory (Linux) is looked at after each 20 batches; pages of mapped files that the system may take back at any
time are counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import shardio

# Last: files beside this one have names that packages have, too.
sys.path.append(str(Path(__file__).parent))
from range_server import open_dataset, served

TOKENS = 2048


def write(folder: Path, megabytes: int, compression: str | None) -> None:
    """Write rows of int32 below 2^16, which compress to half."""
    rows = np.random.default_rng(0).integers(0, 1 << 16, (4096, TOKENS), dtype=np.int32)
    schema = {"tokens": f"int32[{TOKENS}]"}
    with shardio.DatasetWriter(folder, schema=schema, compression=compression, shard_bytes=64 << 20) as out:
        for number in range(megabytes * (1 << 20) // (4 * TOKENS)):
            out.write({"tokens": rows[number % len(rows)]})


def resident() -> tuple[float, float]:
    """Return the resident megabytes of this process: its own, and of mapped files."""
    fields = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    own, files, shared = (int(fields[name].split()[0]) / 1024 for name in ("RssAnon", "RssFile", "RssShmem"))
    return own + shared, files


def follow(url: str, epochs: int, threads: int) -> None:
    """Stream, and print the most that each epoch held."""
    import shardio.streaming

    warm = np.zeros(1 << 20)
    del warm
    ds = open_dataset(url)
    gc.collect()
    base = resident()
    print("| epoch | its own, MB over imports | mapped files, MB over imports |\n|---|---|---|")
    for epoch in range(epochs):
        most = (0.0, 0.0)
        stream = shardio.stream(ds, global_batch=64, seed=epoch, num_threads=threads)
        for number, _ in enumerate(stream):
            if number % 20 == 0:
                now = resident()
                most = (max(most[0], now[0] - base[0]), max(most[1], now[1] - base[1]))
        print(f"| {epoch + 1} | {most[0]:,.0f} | {most[1]:,.0f} |", flush=True)
    assert shardio.streaming


def main() -> None:
    """Write, then stream in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plain", action="store_true", help="no compression")
    parser.add_argument("--bucket", action="store_true", help="read from an object server")
    parser.add_argument("--folder", help="where the data goes; a temporary folder by default")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        follow(arguments.one, arguments.epochs, arguments.threads)
        return
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder)))
        write(folder / "bench" / "ds", arguments.megabytes, None if arguments.plain else "zstd")
        url = stack.enter_context(served(folder)) if arguments.bucket else str(folder / "bench" / "ds")
        words = ["--one", url, "--epochs", str(arguments.epochs), "--threads", str(arguments.threads)]
        subprocess.run([sys.executable, "-P", __file__, *words], check=True)


if __name__ == "__main__":
    main()
