"""Fuzz the kernels under atheris: whatever the bytes, both implementations say the same and nothing crashes.

    python -m tests.kernels.fuzz -max_total_time=60 [corpus folder] [libFuzzer options]

`.ci/fuzz` says how to build the extension so that libFuzzer sees the branches of the compiled
parser.
"""

from __future__ import annotations

import sys
from random import Random

import atheris  # installed only where one fuzzes

with atheris.instrument_imports(include=["shardio.kernels"]):
    from tests.kernels.differential import IMPLEMENTATIONS, draw, outcome
    from tests.kernels.messages import description, mutate


def scanned(module, data: bytes, check: str) -> tuple:
    scan = module.scan_frames(data, check=check, max_record=1 << 20)
    stops = [0, *scan.frame_stops.tolist()]
    # The checksums up to each stop, which come last, are the compiled implementation's alone.
    return (*scan[1:-1], stops, module.check_frames(data, stops[:-1], stops[1:], check=check))


def compare(data: bytes) -> None:
    """Take the first four bytes as what is asked, and the rest as what is read."""
    random = Random(data[:4])
    way, data = data[:1], data[4:]
    if way < b"\x40":
        check = random.choice(("crc32c", "crc32", "none"))
        found = [scanned(module, data, check) for module in IMPLEMENTATIONS]
    else:
        features = description(random)
        lists = description(random, lists=True) if way > b"\xa0" else None
        found = [outcome(module, [data], features, lists) for module in IMPLEMENTATIONS]
    if any(other != found[0] for other in found):
        message = f"implementations differ on {data!r}: {found}"
        raise AssertionError(message)


def vary(data: bytes, max_size: int, seed: int) -> bytes:
    """Mutate a message, replace it by a fresh one, or leave it to libFuzzer."""
    random = Random(seed)
    if random.random() < 0.2:
        records, _, lists = draw(random)
        way = random.randrange(0x40, 0xA0) if lists is None else random.randrange(0xA1, 0x100)
        return (bytes([way]) + random.randbytes(3) + records[0])[:max_size]
    if random.random() < 0.5:
        return (data[:4] + mutate(random, data[4:]))[:max_size]
    mutated: bytes = atheris.Mutate(data, max_size)
    return mutated


if __name__ == "__main__":
    atheris.Setup(sys.argv, compare, custom_mutator=vary)
    atheris.Fuzz()
