"""The same job in a bucket: write, look up, stream an epoch, stream it again from the cache, verify.

    make demo                                        after the first half, on a server of its own
    SHARDIO_DEMO_URL=s3://bucket/prefix make demo    in a bucket of yours, with your usual credentials
    python examples/demo_bucket.py gs://bucket/prefix

Without an address it starts an S3 server on the loopback (moto, which is made for tests and slow).  In your
bucket it makes a folder of a random name under the address, and names it in the end, for you to remove.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import demo

import shardio
from shardio.torch import StreamingDataLoader, StreamingDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = 5


@contextlib.contextmanager
def loopback_s3() -> Iterator[str]:
    """Run an S3 server with one bucket while the block lasts; yield the bucket's URL.

    The clients find it by the variables that AWS's own programs read, which a real bucket does not need.
    """
    import s3fs

    # Settings for somebody's real buckets would lead elsewhere.
    for name in (
        "AWS_ENDPOINT_URL_S3",
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
        "AWS_PROFILE",
        "AWS_SESSION_TOKEN",
    ):
        os.environ.pop(name, None)
    # On a port that it chooses: one that was free a moment ago may be another program's.
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("s3_server.py")), "0"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, **pipes) as server:
        try:
            address = server.stdout.readline().strip()
            if not address:
                raise SystemExit("the S3 server (moto) did not start")
            os.environ |= {
                "AWS_ENDPOINT_URL": address,
                "AWS_ACCESS_KEY_ID": "demo",
                "AWS_SECRET_ACCESS_KEY": "demo",
                "AWS_DEFAULT_REGION": "us-east-1",
            }
            s3fs.S3FileSystem(skip_instance_cache=True).mkdir("shardio-demo")
            yield "s3://shardio-demo"
        finally:
            server.terminate()


def step(number: int, text: str) -> None:
    """Say what comes next."""
    print(f"\n[bucket {number}/{STEPS}] {text}", flush=True)


def epoch(url: str, cache: shardio.CacheOptions, label: str) -> dict[str, Any]:
    """Stream a shuffled epoch of decoded tensors through threads; return what reading has done."""
    records = shardio.open(url, split="train", cache=cache)
    dataset = StreamingDataset(
        records, global_batch=64, shuffle=True, seed=0, remainder="keep", transform=tensors
    )
    seen, begin = 0, time.perf_counter()
    for batch in StreamingDataLoader(dataset, num_threads=2):
        seen += len(batch["label"])
    if seen != len(records):
        raise SystemExit(f"{url}: the epoch had {seen} images and not {len(records)}")
    stats = records.stats
    seconds = time.perf_counter() - begin
    print(
        f"{label}: {seen:,} images in {seconds:.1f} s, {stats['bytes_read'] / 1e6:.1f} MB from the bucket, "
        f"{stats['cache_hits']:,} pieces from the cache"
    )
    return {**stats, "seconds": seconds}


def tensors(record: dict[str, Any]) -> dict[str, Any]:
    """Decode and resize one photograph."""
    image, label = demo.to_tensor(record)
    return {"image": image.numpy(), "label": label}


def run(root: str, count: int) -> None:
    """Do everything, in order, in a folder of its own under `root`."""
    begin = time.perf_counter()
    url = f"{root.rstrip('/')}/photographs-{secrets.token_hex(4)}"
    step(1, f"write {count:,} photographs to {url}; shards appear whole, the commit is one conditional PUT")
    demo.write_photographs(url, demo.photographs(), count)

    step(2, "what it is, and a second version: one more commit, readers of the first stay with it")
    before = shardio.open(url, split="train")
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write(before[0], split="train")
    after = shardio.open(url, split="train")
    print(f"version {before.version} has {len(before):,} records, version {after.version} {len(after):,}")
    demo.command("info", url)

    step(3, "random lookups")
    lookup = demo.look_up(url, 100)

    step(4, "two shuffled epochs, decoded in 2 threads, with a cache on local disk")
    with tempfile.TemporaryDirectory() as folder:
        cache = shardio.CacheOptions(folder, max_bytes=1 << 30)
        epoch(url, cache, "first epoch")
        second = epoch(url, cache, "second epoch")
        if second["bytes_read"]:
            raise SystemExit("the second epoch read from the bucket")
        demo.command("info", "--cache", folder)

    step(5, "verify every byte, and look for what interrupted writers left")
    demo.command("verify", url)
    demo.command("gc", url)

    print("\n=== bucket")
    for label, text in (
        ("lookups", f"{lookup / 1000:.1f} ms each, one after another: two requests side by side"),
        ("cache", "the second epoch read nothing from the bucket"),
        ("total", f"{time.perf_counter() - begin:.0f} s; remove {url} if it is yours"),
    ):
        print(f"{label:<10}{text}")


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "url",
        nargs="?",
        default=os.environ.get("SHARDIO_DEMO_URL"),
        help="s3://, gs:// or az:// address to write under; a server of its own without one",
    )
    parser.add_argument("--photographs", type=int, default=800, metavar="N", help="how many crops to store")
    arguments = parser.parse_args()
    with contextlib.nullcontext(arguments.url) if arguments.url else loopback_s3() as root:
        run(root, arguments.photographs)


if __name__ == "__main__":
    main()
