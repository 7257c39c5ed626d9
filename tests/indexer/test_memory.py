"""Memory under 200 MB, whatever the size of the shard."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

# A shard that exists piece by piece only: one frame, over and over.
SCAN = """
    import pathlib, re, resource, sys
    import numpy as np
    from shardio import kernels
    from shardio.storage import DataFile, LocalStore
    from shardio.adoption import ScanOptions, scan_shard

    frame_bytes, frames = int(sys.argv[1]), int(sys.argv[2])
    frame = kernels.encode_frames([bytes(frame_bytes - 16)])[0]
    run = frame * ((4 << 20) // frame_bytes + 2)

    class Endless(DataFile):
        url = "endless"
        size = frame_bytes * frames

        def read(self, start, stop):
            first = start % frame_bytes
            return memoryview(run)[first : first + stop - start]

        def read_many(self, starts, stops):
            return [self.read(*each) for each in zip(starts, stops, strict=True)]

        def close(self):
            pass

    class Store(LocalStore):
        def open(self, key, **options):
            return super().open(key, **options) if sys.argv[3:] else Endless()

    folder = pathlib.Path(*sys.argv[3:])
    if sys.argv[3:]:
        import zstandard

        engine = zstandard.ZstdCompressor()
        with (folder / "x.tfrecord").open("wb") as file, engine.stream_writer(file) as out:
            for _ in range(frames >> 12):
                out.write(bytes(frame) * (1 << 12))
    scanned = scan_shard(Store(str(folder)), "x.tfrecord", bytes(16), ScanOptions())
    assert scanned.index.head.rows == frames
    scanned.index.discard()
    # What a process inherits from a large parent counts in getrusage, and not here.
    status = pathlib.Path("/proc/self/status")
    peak = re.search(r"VmHWM:\\s*([0-9]+) kB", status.read_text()) if status.exists() else None
    print(int(peak[1]) // 1024 if peak else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("frame_bytes", "frames", "compressed"),
    [(4096, 1 << 19, False), (48, 1 << 25, False), (48, 1 << 23, True)],
    ids=[
        "2 GiB in records of 4 KiB",
        "33 million records of 32 bytes",
        "of which a few bytes stand for many",
    ],
)
def test_memory_is_bounded(frame_bytes, frames, compressed, tmp_path) -> None:
    """One pass with bounded memory: under 200 MB for any shard size, whatever a record costs in its index."""
    command = [sys.executable, "-c", textwrap.dedent(SCAN), str(frame_bytes), str(frames)]
    command += [str(tmp_path)] * compressed
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # Half of what is promised: what grows with the records, or with the compression, is seen.
    assert int(done.stdout) < 100
