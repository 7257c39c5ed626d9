"""TorchRecord: LMDB environments whose values are caffe2 `TensorProtos`.

One environment holds the databases `db0`, `db1` ..., or each of the folders `db0`, `db1` ... is one; keys
are decimal numbers.  An image lies as raw bytes with width and height as its sizes and comes as uint8
[height, width, channels]; a label is decimal text.  Records of two tensors are called "image" and "label",
others "tensor0", "tensor1" ...
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shardio.codecs import read_tensors
from shardio.convert._source import Odd, Piece, Sample, Source, SourceOptions
from shardio.errors import FormatError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardio.codecs import Tensor

__all__ = ["TorchRecord"]

_MOST_DATABASES = 4096
_LOCK_FREE = {"readonly": True, "lock": False, "create": False, "meminit": False}


@dataclass(frozen=True)
class TorchRecord(Source):
    """LMDB environments on local disk."""

    kind: ClassVar[str] = "torchrecord"
    place: Any
    options: SourceOptions

    def pieces(self) -> list[Piece]:
        """Return the databases, by their numbers."""
        root = Path(self.place)
        if "://" in str(self.place):
            message = f"{self.place}: LMDB is mapped from local disk; copy the folder there first"
            raise ValueError(message)
        if root.name == "data.mdb":
            root = root.parent
        folders = [root] if (root / "data.mdb").is_file() else sorted(
            (path.parent for path in root.glob("*/data.mdb")), key=lambda path: _by_number(path.name)
        )  # fmt: skip
        if not folders:
            raise NotFoundError("there is no data.mdb here", url=str(root))
        found = []
        for folder in folders:
            size = (folder / "data.mdb").stat().st_size
            names = _databases(folder)
            found += [Piece(str(folder), "", "train", size // len(names), extra=name) for name in names]
        return found

    def read(self, piece: Piece) -> Iterator[Sample | Odd]:
        """Yield the records of a database, by the numbers of their keys."""
        label = "" if piece.extra is None else f" {piece.extra.decode()}"
        environment = _opened(Path(piece.root))
        try:
            import lmdb

            try:
                database = environment.open_db(piece.extra, create=False) if piece.extra else None
                with environment.begin(db=database) as reading:
                    keys = sorted(
                        reading.cursor().iternext(values=False), key=lambda key: _by_number(_shown(key))
                    )
                    for key in keys:
                        where = f"{piece.root}{label} key {_shown(key)}"
                        yield _parsed(bytes(reading.get(key)), where)
            except lmdb.Error as error:
                raise FormatError(f"the LMDB environment is damaged ({error})", url=piece.root) from error
        finally:
            environment.close()


def _opened(folder: Path) -> Any:
    try:
        import lmdb
    except ImportError as error:
        message = 'reading LMDB needs lmdb: pip install "shardio[convert]"'
        raise ImportError(message, name="lmdb") from error
    size = (folder / "data.mdb").stat().st_size
    try:
        environment = lmdb.open(str(folder), max_dbs=_MOST_DATABASES, **_LOCK_FREE)
        # Reading a page behind the end of a mapped file would kill the process.
        needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    except lmdb.Error as error:
        raise FormatError(
            f"this is no LMDB environment, or a damaged one ({error})", url=str(folder)
        ) from error
    if needed > size:
        environment.close()
        raise FormatError("data.mdb was cut", url=str(folder), expected=f"{needed} bytes or more", found=size)
    return environment


def _databases(folder: Path) -> list[bytes | None]:
    """Return the names of the databases in an environment; None is the only, nameless one."""
    environment = _opened(folder)
    try:
        with environment.begin() as reading:
            names: list[bytes] = []
            for key, _ in zip(reading.cursor().iternext(values=False), range(_MOST_DATABASES), strict=False):
                if not key.startswith(b"db"):
                    return [None]
                names.append(bytes(key))
    finally:
        environment.close()
    ordered: list[bytes | None] = [*sorted(names, key=lambda name: _by_number(_shown(name)))]
    return ordered or [None]


def _by_number(name: str) -> tuple[int, int, str]:
    digits = name.removeprefix("db")
    return (0, int(digits), name) if digits.isdecimal() and digits.isascii() else (1, 0, name)


def _shown(key: bytes) -> str:
    return key.decode(errors="backslashreplace")


def _parsed(payload: bytes, where: str) -> Sample | Odd:
    try:
        tensors = read_tensors(payload)
        names = [tensor.name for tensor in tensors]
        if not all(names) or len(set(names)) < len(names):
            names = (
                ["image", "label"]
                if len(tensors) == 2
                else [f"tensor{number}" for number in range(len(tensors))]
            )
        return Sample(where, {name: _value(tensor) for name, tensor in zip(names, tensors, strict=True)})
    except (FormatError, ValueError) as error:
        return Odd(where, f"the record is damaged: {error}")


def _value(tensor: Tensor) -> Any:
    values = tensor.values
    if isinstance(values, list):
        return values[0] if len(values) == 1 else values
    if values.dtype == np.uint8 and len(tensor.dims) == 2 and values.size:
        # Width and height of an image whose channels nobody wrote down.
        width, height = tensor.dims
        channels = values.size // max(1, math.prod(tensor.dims))
        if channels in (1, 3, 4) and values.size == width * height * channels:
            return values.reshape(height, width, channels)
    if values.dtype == np.uint8 and not tensor.dims:
        data = values.tobytes()
        text = data.decode("ascii", "replace")
        return int(text) if text.removeprefix("-").isdecimal() and len(text) < 19 else data
    return tensor.shaped()
