"""TorchRecord: LMDB environments whose values are caffe2 `TensorProtos`.

One environment holds the databases `db0`, `db1` ..., or each of the folders `db0`, `db1` ... is one; keys
are decimal numbers.  Tensors that have names are called by them, and keep type and sizes.  A record of two
nameless tensors is one of TorchRecord's: "image", raw bytes with width and height as its sizes, comes as
uint8 [height, width, channels], and "label", decimal text, as an integer where all that was looked at are
such.  Others are called "tensor0", "tensor1" ...  Any other byte tensor without sizes is bytes; a schema
makes text, integers or bytes of it: `schema={"label": "bytes"}`.

The environment is read in a child process, since a damaged one ends its reader by a signal.
"""

from __future__ import annotations

import math
import os
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from shardio.arguments import need
from shardio.codecs import Tensor, read_tensors
from shardio.convert import _lmdb_child as child
from shardio.errors import BadRecord, FormatError, NotFoundError, StorageError
from shardio.formats import ForeignSource, Piece, Sample, SourceOptions, exact_integer, integer_type, misfit
from shardio.metadata import Feature, Schema

# What damaged pages lead to, and nothing else should.
_DEATHS: dict[int, str] = {
    int(number): number.name
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
}


@dataclass(frozen=True)
class TorchRecord(ForeignSource):
    """LMDB environments on local disk."""

    kind: ClassVar[str] = "torchrecord"
    place: Any
    options: SourceOptions

    def pieces(self) -> list[Piece]:
        """Return the databases, by their numbers."""
        root = Path(self.place)
        if "://" in str(self.place):
            raise ValueError(f"{self.place}: LMDB is mapped from local disk; copy the folder there first")
        if root.name == "data.mdb":
            root = root.parent
        folders = [root] if (root / "data.mdb").is_file() else sorted(
            (path.parent for path in root.glob("*/data.mdb")),
            key=lambda path: child.by_number(os.fsencode(path.name)),
        )  # fmt: skip
        if not folders:
            raise NotFoundError("there is no data.mdb here", url=str(root))
        found = []
        for folder in folders:
            size = (folder / "data.mdb").stat().st_size
            names = list(_chunks(folder, None)) or [b""]
            found += [Piece(str(folder), "", "train", size // len(names), extra=name) for name in names]
        return found

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord]:
        """Yield the records of a database, by the numbers of their keys."""
        label = f" {_shown(piece.extra)}" if piece.extra else ""
        chunks = _chunks(Path(piece.root), piece.extra)
        for key in chunks:
            payload = next(chunks, None)
            if payload is None:
                raise FormatError("a key has no value", url=f"{piece.root}/data.mdb", found=_shown(key))
            yield _parsed(payload, f"{piece.root}{label} key {_shown(key)}")

    def infer(self, name: str, values: Sequence[Any]) -> str | Feature | None:
        """Return the type of a tensor that is bytes, where its layout says more than bytes."""
        if not any(isinstance(value, _UntypedBytes) for value in values):
            return None
        found = [value for value in values if isinstance(value, _UntypedBytes)]
        if name == "label" and len(found) == len(values) and all(value.paired for value in found):
            return integer_type(found) or "bytes"
        images = [value.image() for value in found]
        if len(found) < len(values) or any(image is None for image in images):
            return None
        channels = {image.shape[2] for image in images if image is not None}
        return Feature("uint8", shape=(None, None, channels.pop() if len(channels) == 1 else None))

    def fit(self, value: Any, schema: Schema) -> Any:
        """Return a record with its byte tensors as the schema says."""
        return {
            name: _as_feature(name, item, schema[name])
            if isinstance(item, _UntypedBytes) and name in schema
            else item
            for name, item in value.items()
        }


class _UntypedBytes(bytes):
    """The bytes of a byte tensor, of which the schema says what they are.

    Attributes:
        dims: the sizes beside them.
        paired: it is one of a record of two nameless tensors, as TorchRecord writes images and labels.
    """

    dims: tuple[int, ...]
    paired: bool

    def image(self) -> Any:
        """Return uint8 [height, width, channels], or None where sizes and bytes are not those of an image."""
        if len(self.dims) != 2 or not self:
            return None
        # Width and height of an image whose channels were not written down.
        width, height = self.dims
        channels = len(self) // max(1, math.prod(self.dims))
        if channels not in (1, 3, 4) or len(self) != width * height * channels:
            return None
        return np.frombuffer(self, np.uint8).reshape(height, width, channels)


def _as_feature(name: str, item: _UntypedBytes, feature: Feature) -> Any:
    try:
        if feature.kind == "number":
            if len(feature.shape) == 3 and (image := item.image()) is not None:
                return image
            if feature.shape:
                return np.frombuffer(item, np.uint8)
            text = item.decode("ascii")
            return float(text) if feature.type.startswith("float") else exact_integer(text)
        return item.decode() if feature.kind == "text" else bytes(item)
    except ValueError as error:
        raise misfit("tensor", name, feature, item, error) from error


def _shown(key: bytes) -> str:
    return key.decode(errors="backslashreplace")


def _parsed(payload: bytes, where: str) -> Sample | BadRecord:
    try:
        tensors = read_tensors(payload)
        names = [tensor.name for tensor in tensors]
        paired = len(tensors) == 2 and not any(names)
        if not all(names) or len(set(names)) < len(names):
            names = ["image", "label"] if paired else [f"tensor{n}" for n in range(len(tensors))]
        return Sample(
            where, {name: _value(tensor, paired=paired) for name, tensor in zip(names, tensors, strict=True)}
        )
    except (FormatError, ValueError) as error:
        return BadRecord(where, f"the record is damaged: {error}")


def _value(tensor: Tensor, *, paired: bool) -> Any:
    values = tensor.values
    if isinstance(values, list):
        return values[0] if len(values) == 1 else values
    whole = values.size == math.prod(tensor.dims)
    # Sizes that do not multiply to the bytes that are there, or none: bytes, of which more may be known.
    if values.dtype == np.uint8 and (not tensor.dims or not whole or (paired and len(tensor.dims) == 2)):
        data = _UntypedBytes(values.tobytes())
        data.dims, data.paired = tensor.dims, paired
        return data
    return tensor.shaped()


def _chunks(folder: Path, name: bytes | None) -> Iterator[bytes]:
    """Yield what the child process writes; with its death or its word as an error that names the file.

    Raises:
        FormatError: the environment is damaged.
        StorageError: the child process failed for another reason.
        ImportError: lmdb is not installed.
    """
    need("reading TorchRecord", "shardio[convert]", "LMDB")
    # The child finds lmdb where this process would.
    command = [sys.executable, "-P", child.__file__, os.pathsep.join(sys.path), str(folder)]
    command += [] if name is None else [os.fsdecode(name)]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(  # noqa: S603 - this Python, and a file of ours
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said
        ) as process,
    ):
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        try:
            while len(head := process.stdout.read(4)) == 4:
                (size,) = struct.unpack("<I", head)
                if size == child.END:
                    return
                data = process.stdout.read(size)
                if len(data) < size:
                    break
                yield data
            process.wait()
            said.seek(0)
            raise _death(folder, process.returncode, said.read(1 << 16).decode(errors="replace").strip())
        finally:
            # A consumer that stops in the middle leaves no process behind.
            process.kill()


def _death(folder: Path, code: int, said: str) -> FormatError | StorageError:
    url = f"{folder}/data.mdb"
    advice = "copy the folder again from where it was made"
    if code == child.DAMAGED and said:
        return FormatError(said, url=url, advice=advice)
    if -code in _DEATHS:
        what = f"the LMDB environment is damaged: the process that read it ended by {_DEATHS[-code]}"
        return FormatError(what, url=url, advice=advice)
    last = said.splitlines()[-1][:300] if said else None
    return StorageError(f"the process that read LMDB ended early, with code {code}", url=url, found=last)
