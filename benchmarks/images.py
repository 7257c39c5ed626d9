"""JPEGs into batches of one size: libraries that decode, what shrinking costs, and whole loaders.

    python benchmarks/images.py --peers PEERS/bin/python [decoders] [quality] [loaders]

PEERS is an environment with `torch torchvision lmdb opencv-python-headless pyvips pyvips-binary simplejpeg
PyTurboJPEG torchcodec pillow`; those that cannot be imported are left out and named.  This one needs `torch
Pillow simplejpeg scikit-image`.  Figures are medians of interleaved rounds; processor time counts all
threads and processes, so that what else a machine does changes it little.  `--turbojpeg` names
libjpeg-turbo's shared library for PyTurboJPEG, which brings none.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

SIDE = 224
BATCH = 32


# ---------------------------------------------------------------------------------------------- libraries


def decoders(  # noqa: PLR0915 - a list of libraries
    files: list[bytes], turbojpeg: str | None
) -> dict[str, Callable[[bytes], Any]]:
    """Return what each library does with a file: decode it whole, at a half, and to 224 x 224."""
    import numpy as np

    made: dict[str, Callable[[bytes], Any]] = {}

    def pillow() -> None:
        from PIL import Image

        def opened(data: bytes, *, draft: bool, size: int | None) -> Any:
            with Image.open(io.BytesIO(data)) as image:
                if draft:
                    image.draft("RGB", (SIDE, SIDE))
                image = image.convert("RGB")  # noqa: PLW2901 - it is the same picture
                if size is not None:
                    image = image.resize((size, size), Image.Resampling.BILINEAR)  # noqa: PLW2901
                return np.asarray(image)

        made["Pillow, whole"] = lambda data: opened(data, draft=False, size=None)
        made["Pillow, half (draft)"] = lambda data: opened(data, draft=True, size=None)
        made["Pillow, whole and resized"] = lambda data: opened(data, draft=False, size=SIDE)
        made["Pillow, half and resized"] = lambda data: opened(data, draft=True, size=SIDE)

    def simplejpeg_() -> None:
        import simplejpeg

        made["simplejpeg, whole"] = lambda data: simplejpeg.decode_jpeg(data, "RGB")
        made["simplejpeg, half"] = lambda data: simplejpeg.decode_jpeg(
            data, "RGB", min_height=SIDE, min_width=SIDE, min_factor=2
        )

    def pyturbojpeg() -> None:
        import turbojpeg as library

        handle = library.TurboJPEG(turbojpeg)
        made["PyTurboJPEG, whole"] = lambda data: handle.decode(data, pixel_format=library.TJPF_RGB)
        made["PyTurboJPEG, half"] = lambda data: handle.decode(
            data, pixel_format=library.TJPF_RGB, scaling_factor=(1, 2)
        )

    def opencv() -> None:
        import cv2

        cv2.setNumThreads(0)
        made["OpenCV, whole"] = lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        made["OpenCV, half"] = lambda data: cv2.imdecode(
            np.frombuffer(data, np.uint8), cv2.IMREAD_REDUCED_COLOR_2
        )

    def torchvision_() -> None:
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg
        from torchvision.transforms.v2 import functional

        torch.set_num_threads(1)

        def tensor(data: bytes) -> Any:
            return decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)

        made["torchvision.io, whole"] = tensor
        made["torchvision.io, whole and resized"] = lambda data: functional.resize(
            tensor(data), [SIDE, SIDE], antialias=True
        )

    def torchcodec_() -> None:
        import torch
        from torchcodec.decoders import decode_jpeg

        made["torchcodec, whole"] = lambda data: decode_jpeg(
            torch.frombuffer(bytearray(data), dtype=torch.uint8)
        )

    def vips() -> None:
        import pyvips

        made["pyvips, thumbnail"] = lambda data: pyvips.Image.thumbnail_buffer(
            data, SIDE, height=SIDE, size="force"
        ).numpy()

    for name, add in {
        "Pillow": pillow, "simplejpeg": simplejpeg_, "PyTurboJPEG": pyturbojpeg, "OpenCV": opencv,
        "torchvision": torchvision_, "torchcodec": torchcodec_, "pyvips": vips,
    }.items():  # fmt: skip
        before = dict(made)
        try:
            add()
            for key in made.keys() - before.keys():
                made[key](files[0])
        except Exception as error:  # noqa: BLE001 - whatever a library that is not whole says
            print(f"not measured: {name}: {str(error).splitlines()[0][:150]}", file=sys.stderr)
            made.clear()
            made.update(before)
    return made


def ours(files: list[bytes]) -> dict[str, Callable[[bytes], Any]]:
    """Return what shardio does with a file, with either library."""
    import numpy as np

    from shardio.codecs import ImageOptions, _images

    options, out = ImageOptions(size=SIDE), np.empty((SIDE, SIDE, 3), np.uint8)
    fast = _images._simplejpeg  # noqa: SLF001 - the choice is not an option

    def with_pillow(data: bytes) -> None:
        _images._simplejpeg = lambda: None  # noqa: SLF001
        try:
            _images.sized_image(data, options, out)
        finally:
            _images._simplejpeg = fast  # noqa: SLF001

    del files
    return {
        "shardio, simplejpeg, to 224": lambda data: _images.sized_image(data, options, out),
        "shardio, Pillow, to 224": with_pillow,
    }


def serve(side: str, folder: pathlib.Path, turbojpeg: str | None) -> None:
    """Be one process: say who is here, then run whoever is named on a line, and say how long it took."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    files = [path.read_bytes() for path in sorted((folder / "files").iterdir())[:200]]
    made = decoders(files, turbojpeg) if side == "peers" else ours(files)
    print(json.dumps(list(made)), file=answers)
    for line in sys.stdin:
        run = made[line.strip()]
        began = time.process_time()
        for data in files:
            run(data)
        print(json.dumps((time.process_time() - began) / len(files) * 1e6), file=answers)


def compare_decoders(folder: pathlib.Path, args: argparse.Namespace) -> None:
    """Print what libraries take for an image."""
    sides = []
    for python, side in ((sys.executable, "shardio"), (args.peers, "peers")):
        command = [python, __file__, "--serve", side, "--folder", str(folder)]
        command += ["--turbojpeg", args.turbojpeg] if args.turbojpeg else []
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        sides.append((process, json.loads(process.stdout.readline())))
    found: dict[str, list[float]] = {name: [] for _, names in sides for name in names}
    for _ in range(args.rounds):
        for process, names in sides:
            for name in names:
                print(name, file=process.stdin, flush=True)
                found[name].append(json.loads(process.stdout.readline()))
    for process, _ in sides:
        process.stdin.close()
        process.wait()
    print("| library | us of processor time an image | least |\n|---|---|---|")
    for name, values in sorted(found.items(), key=lambda item: statistics.median(item[1])):
        print(f"| {name} | {statistics.median(values):,.0f} | {min(values):,.0f} |")


# ---------------------------------------------------------------------------------------------- quality


def compare_quality(folder: pathlib.Path) -> None:
    """Print how far images are from those of which all pixels were decoded before they were resized."""
    import numpy as np
    from PIL import Image
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    from shardio.codecs import ImageOptions, RandomResizedCrop
    from shardio.codecs._images import sized_image

    files = [path.read_bytes() for path in sorted((folder / "files").iterdir())[:100]]
    print("| image | PSNR, dB | least | SSIM | least |\n|---|---|---|---|---|")
    for name, size, crop, resample in (
        ("512 x 512 to 224 (from a half), bilinear", 224, None, Image.Resampling.BILINEAR),
        ("512 x 512 to 224 (from a half), bicubic", 224, None, Image.Resampling.BICUBIC),
        ("512 x 512 to 160 (from a half), bilinear", 160, None, Image.Resampling.BILINEAR),
        ("512 x 512 to 96 (from a quarter), bilinear", 96, None, Image.Resampling.BILINEAR),
        ("random parts to 224 (mostly whole), bilinear", 224, RandomResizedCrop(), Image.Resampling.BILINEAR),
        (
            "random parts to 96 (mostly from a half), bilinear",
            96,
            RandomResizedCrop(),
            Image.Resampling.BILINEAR,
        ),
    ):
        options = ImageOptions(size=size, crop=crop, filter=resample.name.lower())
        values = []
        for number, data in enumerate(files):
            out = np.empty((size, size, 3), np.uint8)
            sized_image(data, options, out, lambda number=number: np.random.default_rng(number))
            whole = Image.open(io.BytesIO(data)).convert("RGB")
            box = options.box(whole.height, whole.width, lambda number=number: np.random.default_rng(number))
            part = whole.crop((box.left, box.top, box.left + box.width, box.top + box.height))
            wanted = np.asarray(part.resize((size, size), resample))
            similar = structural_similarity(wanted, out, channel_axis=2)
            psnr = peak_signal_noise_ratio(wanted, out) if (wanted != out).any() else 99.0
            values.append((psnr, similar))
        psnr, similar = np.array(values).T
        print(
            f"| {name} | {np.median(psnr):.1f} | {psnr.min():.1f} "
            f"| {np.median(similar):.4f} | {similar.min():.4f} |"
        )


# ---------------------------------------------------------------------------------------------- loaders


def drained(make: Callable[[], Any]) -> list[float]:
    """Return images per second and processor seconds per 1,000 images, of threads and worker processes."""

    def used() -> float:
        both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(each.ru_utime + each.ru_stime for each in both)

    cpu, wall, count = used(), time.perf_counter(), 0
    loader = make()
    for batch in loader:
        images = batch["image"] if isinstance(batch, dict) else batch
        assert images.numel() == len(images) * SIDE * SIDE * 3, images.shape
        count += len(images)
    wall = time.perf_counter() - wall
    del loader, batch, images
    return [count / wall, (used() - cpu) / count * 1000]


def shardio_loader(folder: pathlib.Path, **options: Any) -> list[float]:
    """Measure a loader of ours."""
    import shardio
    from shardio.torch import StreamingDataLoader, StreamingDataset

    ds = shardio.open(folder / "photos", decode="image", image_size=(SIDE, SIDE))
    return drained(lambda: StreamingDataLoader(StreamingDataset(ds, global_batch=BATCH, seed=1), **options))


class Photos:
    """A map-style dataset over loose files or an LMDB, as people write them."""

    def __init__(self, folder: pathlib.Path, where: str, how: str) -> None:
        self.folder, self.where, self.how, self.handle = folder, where, how, None
        self.names = sorted(path.stem for path in (folder / "files").iterdir())

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: int) -> Any:
        import numpy as np
        import torch

        if self.where == "files":
            data = (self.folder / "files" / f"{self.names[number]}.jpg").read_bytes()
        else:
            if self.handle is None:
                import lmdb

                self.handle = lmdb.open(str(self.folder / "photos.lmdb"), readonly=True, lock=False).begin()
            data = self.handle.get(self.names[number].encode())
        if self.how == "torchvision":
            from torchvision.io import ImageReadMode, decode_jpeg
            from torchvision.transforms.v2 import functional

            image = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)
            return functional.resize(image, [SIDE, SIDE], antialias=True)
        from PIL import Image

        with Image.open(io.BytesIO(data)) as image:
            if self.how == "draft":
                image.draft("RGB", (SIDE, SIDE))
            resized = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(resized))


def torch_loader(folder: pathlib.Path, where: str, how: str) -> list[float]:
    """Measure torch's loader."""
    import torch

    if how == "torchvision":
        import torchvision.transforms.v2  # noqa: F401 - before the workers, and outside the time
    dataset: Any = Photos(folder, where, how)
    return drained(
        lambda: torch.utils.data.DataLoader(dataset, batch_size=BATCH, num_workers=2, shuffle=True)
    )


LOADERS: dict[str, tuple[str, Callable[[pathlib.Path], list[float]]]] = {
    "shardio, 2 threads": ("here", lambda folder: shardio_loader(folder, num_threads=2)),
    "shardio, 2 worker processes": ("here", lambda folder: shardio_loader(folder, num_workers=2)),
} | {
    f"torch over {place}, 2 workers, {said}": (
        "peers", lambda folder, where=where, how=how: torch_loader(folder, where, how)
    )
    for how, said in (
        ("draft", "Pillow with `draft`"), ("whole", "Pillow"), ("torchvision", "torchvision.io")
    )
    for where, place in (("files", "loose files"), ("lmdb", "LMDB"))
}  # fmt: skip


def prepare(folder: pathlib.Path, count: int) -> None:
    """Write the photographs as files and as a dataset."""
    import shardio

    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    from streaming import photographs

    (folder / "files").mkdir()
    size = 0
    with shardio.DatasetWriter(folder / "photos", schema={"image": "jpeg", "label": "int64"}) as out:
        for number, jpeg in enumerate(photographs(count)):
            (folder / "files" / f"{number:06d}.jpg").write_bytes(jpeg)
            out.write({"image": jpeg, "label": number})
            size += len(jpeg)
    print(f"# {count} JPEGs of 512 x 512, {size / count / 1000:.0f} KB each")


def prepare_lmdb(folder: pathlib.Path) -> None:
    """Write the photographs as an LMDB."""
    import lmdb

    with lmdb.open(str(folder / "photos.lmdb"), map_size=1 << 34) as env, env.begin(write=True) as txn:
        for path in sorted((folder / "files").iterdir()):
            txn.put(path.stem.encode(), path.read_bytes(), append=True)


def compare_loaders(folder: pathlib.Path, args: argparse.Namespace) -> None:
    """Print rates and processor time of loaders."""
    command = [args.peers, __file__, "--prepare-lmdb", "--folder", str(folder)]
    subprocess.run(command, check=True)
    found: dict[str, list[list[float]]] = {name: [] for name in LOADERS}
    for _ in range(args.rounds):
        for name, (where, _) in LOADERS.items():
            python = sys.executable if where == "here" else args.peers
            command = [python, __file__, "--one", name, "--folder", str(folder)]
            out = subprocess.run(command, capture_output=True, text=True, check=False)
            if out.returncode:
                sys.exit(f"{name}: {out.stderr}")
            found[name].append(json.loads(out.stdout.splitlines()[-1]))
    print("| loader | images/s | least | most | CPU seconds per 1,000 images |\n|---|---|---|---|---|")
    for name, values in found.items():
        rates, cpu = zip(*values, strict=True)
        middle = statistics.median(rates)
        print(
            f"| {name} | {middle:,.0f} | {min(rates):,.0f} | {max(rates):,.0f} "
            f"| {statistics.median(cpu):.2f} |"
        )


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=["decoders", "quality", "loaders"])
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--turbojpeg")
    parser.add_argument("--photos", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the data goes; a temporary folder by default")
    for name in ("--serve", "--one"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--prepare-lmdb", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, pathlib.Path(args.folder), args.turbojpeg)
    elif args.one:
        print(json.dumps(LOADERS[args.one][1](pathlib.Path(args.folder))))
    elif args.prepare_lmdb:
        prepare_lmdb(pathlib.Path(args.folder))
    else:
        load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
        print(
            f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load}"
        )
        with tempfile.TemporaryDirectory(dir=args.folder) as name:
            folder = pathlib.Path(name)
            prepare(folder, args.photos)
            if "decoders" in args.what:
                compare_decoders(folder, args)
            if "quality" in args.what:
                compare_quality(folder)
            if "loaders" in args.what:
                compare_loaders(folder, args)


if __name__ == "__main__":
    main()
