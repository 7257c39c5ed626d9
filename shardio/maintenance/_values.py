"""Whether the records of a shard give values: each is decoded by the schema, its images to pixels.

Checksums tell that records are as they were written; this tells whether what was written can be used.
Images are decoded in threads, which their decoders allow; memory holds a block, and an image for each thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio.codecs import RecordCodec, decode_image
from shardio.errors import CorruptRecordError, FormatError, SchemaError, ShardioError
from shardio.format import Framing, payload_bounds
from shardio.maintenance._findings import Survey
from shardio.maintenance._indexed import CheckedBlock
from shardio.metadata import Feature, Schema, ShardEntry, ValueMismatchError, pillow
from shardio.reader import value_codec

_ADVICE = 'readers with on_error="skip" leave such records out'


@contextmanager
def value_check(survey: Survey, schema: Schema | None) -> Iterator[ValueCheck]:
    """Give what decodes the records of a dataset, while its threads run.

    Args:
        survey: takes the findings.
        schema: of the dataset.

    Raises:
        ModuleNotFoundError: the schema has images, and Pillow is not installed.
    """
    groups = () if schema is None else schema.groups
    images = [{name: f for name, f in group.items() if f.kind == "image"} for group in groups]
    if any(images):
        pillow()  # said once, and not of each record
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "shardio-verify") as pool:
        yield ValueCheck(survey, schema, images, pool)


@dataclass(eq=False, repr=False)
class ValueCheck:
    """Decodes the records of one shard after another.

    Args:
        survey: takes the findings.
        schema: of the dataset, None where it has none.
        images: the features that are images, by name: those of a record, and those of its feature lists.
        pool: decodes images.
    """

    survey: Survey
    schema: Schema | None
    images: list[dict[str, Feature]]
    pool: ThreadPoolExecutor

    def of_shard(self, entry: ShardEntry, url: str, deleted: NDArray[np.int64] | None) -> _ShardValues:
        """Return what takes the blocks of a shard; deleted rows are left out."""
        return _ShardValues(self, entry, url, deleted)

    def wrong(self, codec: RecordCodec, payloads: list[bytes]) -> Iterator[tuple[int, ShardioError]]:
        """Yield (number, error) of each record that gives no value, by rising number."""
        errors: dict[int, ShardioError] = {}
        values = _decoded(codec, payloads, errors)
        found = ((row, *item) for row, value in values for item in self._images_of(value))
        for row, error in self.pool.map(_undecoded, found) if any(self.images) else ():
            if error is not None:
                errors.setdefault(row, error)
        yield from sorted(errors.items())

    def _images_of(self, value: Any) -> Iterator[tuple[str, Feature, Any]]:
        nested = self.schema is not None and self.schema.encoding == "sequence_example"
        parts = (value["context"], value["feature_lists"]) if nested else (value,)
        for part, images in zip(parts, self.images, strict=False):
            for name, feature in images.items():
                # A line that is read whole is the value of its one feature.
                yield name, feature, part[name] if isinstance(part, dict) else part


class _ShardValues:
    def __init__(
        self, check: ValueCheck, entry: ShardEntry, url: str, deleted: NDArray[np.int64] | None
    ) -> None:
        self._check = check
        self._entry = entry
        self._url = url
        self._deleted = np.empty(0, np.int64) if deleted is None else deleted
        self._codec = value_codec([int(entry.framing)], check.schema)

    def take(self, block: CheckedBlock) -> None:
        """Decode the good records of a block."""
        rows, view = block.rows_without(self._deleted), memoryview(block.decoded)
        tails = [bytes(view[max(0, stop - 2) : stop]) for stop in block.stops.tolist()]
        lines = self._entry.framing is Framing.LINES
        begins, ends = payload_bounds(
            self._entry.framing, block.starts, block.stops, tails if lines else None
        )
        payloads = [bytes(view[begins[row] : ends[row]]) for row in rows.tolist()]
        wrong = self._check.wrong(self._codec, payloads)
        self._note((int(rows[row]) + block.first, error) for row, error in wrong)

    def _note(self, wrong: Iterable[tuple[int, ShardioError]]) -> None:
        """Note what is wrong; consecutive rows of which the same is said are one finding."""
        numbered = enumerate(wrong)
        for _, run in groupby(numbered, lambda item: (item[1][0] - item[0], str(item[1][1]))):
            of_run = [item for _, item in run]
            error = of_run[0][1]
            error.row, error.advice = None, _ADVICE
            self._check.survey.undecodable_records += len(of_run)
            place = {"shard": self._entry.key, "row": of_run[0][0], "row_stop": of_run[-1][0] + 1}
            self._check.survey.note("value", error, url=self._url, **place)


def _decoded(
    codec: RecordCodec, payloads: list[bytes], errors: dict[int, ShardioError]
) -> Iterable[tuple[int, Any]]:
    """Return (number, value) of the records that the codec decodes; the errors of the others are added."""
    try:
        return list(enumerate(codec.decode_many(payloads)))
    except (SchemaError, FormatError):
        values = []
    for row, payload in enumerate(payloads):
        try:
            values.append((row, codec.decode(payload)))
        except (SchemaError, FormatError) as error:
            errors[row] = error
    return values


def _undecoded(found: tuple[int, str, Feature, Any]) -> tuple[int, ShardioError | None]:
    """Return the number of a record, and why an image of it does not decode."""
    row, name, feature, value = found
    try:
        _decode_images(name, feature, value)
    except (SchemaError, FormatError) as error:
        return row, error
    return row, None


def _decode_images(name: str, feature: Feature, value: Any) -> None:
    """Decode what a feature holds; nothing, and the default, need not be an image.

    Raises:
        CorruptRecordError, FormatError: an image does not decode, or is one of another type.
    """
    if value is None or value == feature.default:
        return
    if isinstance(value, list):
        for each in value:
            _decode_images(name, feature, each)
        return
    try:
        feature.check_images([value])
        decode_image(value)
    except ValueMismatchError as error:
        what = f"feature {name!r} holds something else"
        raise CorruptRecordError(what, expected=error.expected, found=error.found) from None
    except FormatError as error:
        error.what = f"feature {name!r}: {error.what}"
        raise
