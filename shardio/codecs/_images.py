"""Image files to arrays of pixels, of any part and in any size; and the codec that does so for records.

Pillow reads every format. JPEGs, where it is installed, are decoded by simplejpeg, which is libjpeg-turbo as
in Pillow without what Pillow does around it; what it refuses Pillow looks at, so that what is an image, and
what the error says, does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from shardio import kernels
from shardio.callers import warn
from shardio.codecs._codec import Payloads, RecordCodec
from shardio.codecs._columns import RaggedColumn
from shardio.errors import CorruptRecordError, FormatError
from shardio.metadata import MAX_PIXELS, Feature, Schema, open_image, pillow, refuse_pixels

Generators: TypeAlias = Callable[[int], np.random.Generator]

_TO_RGBA = frozenset({"RGBA", "RGBa", "LA", "La", "PA"})
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_FILTERS = ("bilinear", "bicubic")
_JPEG = b"\xff\xd8\xff"
# Of smaller JPEGs several of libjpeg's scales come out at one size.
_LEAST_SCALED = 16
_TRIES = 10
_ADVICE = "decode=True gives the file's bytes"


class NoGeneratorError(ValueError):
    """A random crop was asked for where there is no epoch."""


class Box(NamedTuple):
    """A part of an image, in pixels, and whether it is mirrored left and right."""

    top: int
    left: int
    height: int
    width: int
    flip: bool = False


@dataclass(frozen=True, kw_only=True)
class CenterCrop:
    """The middle of an image, with the aspect of the size wanted; for evaluation.

    `CenterCrop()` with `image_size=(224, 224)` is torchvision's `Resize(256)` and `CenterCrop(224)` in one,
    within half a pixel.

    Attributes:
        fraction: how much of the image's shorter side it takes, in (0, 1]; 224/256 by default.
    """

    fraction: float = 0.875

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"CenterCrop(fraction={self.fraction!r}) must be in (0, 1]")

    def box(self, height: int, width: int, size: tuple[int, int]) -> Box:
        """Return the part of an image of height and width."""
        scale = self.fraction * min(height / size[0], width / size[1])
        return _centered(height, width, size[0] * scale, size[1] * scale)


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop:
    """A random part of an image, of random size and aspect, as torchvision's `RandomResizedCrop`.

    For training. Drawn from a generator keyed by the stream's seed, the epoch and the record: the same on any
    number of ranks, threads and workers, and after a resume. All images of a record that have one size get
    one part. Lookups have no epoch, so only streams and loaders crop at random.

    Attributes:
        scale: least and most part of the image's area.
        ratio: least and most width over height.
        flip: how often, in [0, 1], the image is mirrored left and right.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0

    def __post_init__(self) -> None:
        # No image that is decoded has an aspect beyond these; far beyond them floats end.
        for name, least, most in (("scale", 0.0, 1.0), ("ratio", 1 / MAX_PIXELS, MAX_PIXELS)):
            given = getattr(self, name)
            pair = isinstance(given, tuple) and len(given) == 2
            if not (pair and given[0] > 0 and least <= given[0] <= given[1] <= most):
                limits = "above 0" if name == "scale" else f"at least 1/{MAX_PIXELS}"
                message = f"RandomResizedCrop({name}={given!r}) must be (least, most)"
                raise ValueError(f"{message}, both {limits} and at most {most:.0f}")
        if not 0 <= self.flip <= 1:
            raise ValueError(f"RandomResizedCrop(flip={self.flip!r}) must be in [0, 1]")

    def box(self, height: int, width: int, rng: np.random.Generator) -> Box:
        """Return the part of an image of height and width."""
        flip = bool(rng.random() < self.flip)
        low, high = (math.log(each) for each in self.ratio)
        for _ in range(_TRIES):
            area = height * width * rng.uniform(*self.scale)
            aspect = math.exp(rng.uniform(low, high))
            across, down = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < across <= width and 0 < down <= height:
                top, left = int(rng.integers(height - down + 1)), int(rng.integers(width - across + 1))
                return Box(top, left, down, across, flip)
        aspect = min(max(width / height, self.ratio[0]), self.ratio[1])
        return _centered(height, width, width / aspect, height * aspect, flip=flip)


def _centered(height: int, width: int, down: float, across: float, *, flip: bool = False) -> Box:
    rows, columns = min(height, max(1, round(down))), min(width, max(1, round(across)))
    return Box((height - rows) // 2, (width - columns) // 2, rows, columns, flip)


_CROPS: dict[str, CenterCrop | RandomResizedCrop] = {"center": CenterCrop(), "random": RandomResizedCrop()}


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How images are decoded; given as `decode=` it says more than `decode="image", image_size=...` can.

    Attributes:
        size: (height, width) of every image, or one number for both; None: each as large as it is stored.
        crop: which part of the image becomes that size: None for all of it, "center" or a `CenterCrop`,
            "random" or a `RandomResizedCrop`.
        channels: 1, 3 or 4; None: as stored, but 3 where there is a size, so that images stack.
        filter: "bilinear" or "bicubic", both antialiased.

    Raises:
        ValueError, TypeError: an option that makes no sense.

    Examples:
        >>> from shardio.codecs import ImageOptions
        >>> ImageOptions(size=224, crop="center").size
        (224, 224)
    """

    size: tuple[int, int] | None = None
    crop: CenterCrop | RandomResizedCrop | None = None
    channels: int | None = None
    filter: str = "bilinear"
    random: bool = field(init=False, repr=False, default=False)

    def __init__(
        self,
        *,
        size: int | tuple[int, int] | None = None,
        crop: str | CenterCrop | RandomResizedCrop | None = None,
        channels: int | None = None,
        filter: str = "bilinear",  # noqa: A002 - the field's word for it
    ) -> None:
        if isinstance(size, int):
            size = (size, size)
        if size is not None:
            size = _checked_size(size)
        if isinstance(crop, str):
            crop = _CROPS.get(crop) or crop
        if not isinstance(crop, CenterCrop | RandomResizedCrop | None):
            message = f'image_crop={crop!r} must be "center", "random", a CenterCrop or a RandomResizedCrop'
            raise ValueError(message) if isinstance(crop, str) else TypeError(message)
        if crop is not None and size is None:
            raise ValueError("image_crop= needs image_size=: the size that the part of the image becomes")
        if channels not in (None, *_MODES):
            raise ValueError(f"channels={channels!r} must be 1, 3, 4 or None")
        if filter not in _FILTERS:
            raise ValueError(f"filter={filter!r} must be one of {', '.join(_FILTERS)}")
        values = {
            "size": size,
            "crop": crop,
            "channels": 3 if size is not None and channels is None else channels,
            "filter": filter,
            "random": isinstance(crop, RandomResizedCrop),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def bytes_each(self) -> int:
        """Bytes of an image in memory; 0 where each has its own size."""
        return 0 if self.size is None else self.size[0] * self.size[1] * (self.channels or 3)

    def box(self, height: int, width: int, generator: Callable[[], np.random.Generator] | None = None) -> Box:
        """Return which part of an image of height and width becomes the size wanted.

        Raises:
            ValueError: a random part, and no generator.
        """
        if isinstance(self.crop, RandomResizedCrop):
            if generator is None:
                raise NoGeneratorError(
                    "a random crop belongs to an epoch, which lookups do not have: stream the dataset, or "
                    'open it without image_crop= (or with image_crop="center") to look records up'
                )
            return self.crop.box(height, width, generator())
        if self.crop is None or self.size is None:
            return Box(0, 0, height, width)
        return self.crop.box(height, width, self.size)


def _checked_size(size: Any) -> tuple[int, int]:
    pair = tuple(size) if isinstance(size, tuple | list) else ()
    whole = len(pair) == 2 and all(isinstance(each, int) and each > 0 for each in pair)
    if not whole or pair[0] * pair[1] > MAX_PIXELS:
        raise ValueError(
            f"image_size={size!r} must be (height, width), at least 1 each, of at most {MAX_PIXELS} pixels"
        )
    return int(pair[0]), int(pair[1])


def decode_image(
    data: bytes | memoryview, *, size: tuple[int, int] | None = None, channels: int | None = None
) -> npt.NDArray[np.uint8]:
    """Decode an image file to uint8 [height, width, channels].

    Grayscale has 1 channel, images with alpha (or a transparent palette) 4, everything else becomes RGB.
    Of 16-bit grayscale the high byte remains.  EXIF orientation is not applied; of several frames the first
    counts.

    Args:
        data: the file's bytes, in any format that Pillow reads by itself.
        size: (height, width) that suffice.  A JPEG is then decoded at 1/2, 1/4 or 1/8 of its size, the
            smallest that is still at least this large, several times faster; other formats come whole.
        channels: 1, 3 or 4; None for as many as the image has.

    Raises:
        CorruptRecordError: the bytes are not an image, are damaged, or claim more than `MAX_PIXELS` pixels.
        FormatError: the pixels do not fit into uint8.
        ImportError: Pillow is not installed.
    """

    def shrink(height: int, width: int) -> int:
        return 1 if size is None else _shrink(height, width, size)

    return _decoded(data, shrink, channels=channels)[0]


def sized_image(
    data: bytes | memoryview,
    options: ImageOptions,
    out: npt.NDArray[np.uint8],
    generator: Callable[[], np.random.Generator] | None = None,
) -> None:
    """Decode an image file into an array, in the size and the part that options say.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its size where the part is then still at least as large as what is
    wanted; the rest is resized, antialiased, along rows and then along columns.

    Args:
        data: the file's bytes.
        options: with a size.
        out: uint8 [height, width, channels], C-contiguous.
        generator: returns the record's generator, again at every call; needed for random crops.

    Raises:
        CorruptRecordError, FormatError, ImportError: as `decode_image`.
        ValueError: a random crop, and no generator.
    """
    if options.size is None:
        raise ValueError("options without a size")
    wanted, box = options.size, Box(0, 0, 0, 0)

    def shrink(height: int, width: int) -> int:
        nonlocal box
        box = options.box(height, width, generator)
        return _shrink(box.height, box.width, wanted)

    pixels, factor = _decoded(data, shrink, channels=out.shape[2])
    part, inner = _part(pixels, box, factor)
    # Rows are resized before columns, so of a narrow and very high image there is far more in between than
    # its own pixels or those wanted.
    refuse_pixels(max(part.shape[1], out.shape[1]), part.shape[0])
    if out.shape[2] == 4:
        _resize_with_alpha(part, out, options, inner, flip=box.flip)
    elif part.shape == out.shape and not box.flip and inner == (0, 0, *part.shape[1::-1]):
        out[:] = part
    else:
        kernels.resize_image(part, out, box=inner, bicubic=options.filter == "bicubic", flip=box.flip)


def _shrink(height: int, width: int, wanted: tuple[int, int]) -> int:
    """Return the largest of 8, 4, 2 and 1 that leaves at least the size wanted."""
    most = min(height // wanted[0], width // wanted[1])
    return next((factor for factor in (8, 4, 2) if most >= factor), 1)


def _part(pixels: Any, box: Box, factor: int) -> tuple[Any, tuple[float, float, float, float]]:
    """Return the pixels of a shrunken image that a box touches; and left, top, right, bottom within them."""
    top, left = box.top // factor, box.left // factor
    bottom, right = box.top + box.height, box.left + box.width
    inner = (box.left / factor - left, box.top / factor - top, right / factor - left, bottom / factor - top)
    return pixels[top : -(-bottom // factor), left : -(-right // factor)], inner


def _resize_with_alpha(
    part: Any, out: Any, options: ImageOptions, box: tuple[float, float, float, float], *, flip: bool
) -> None:
    left, top, right, bottom = box
    image_module, _ = pillow()
    resample = image_module.Resampling[options.filter.upper()]
    image = image_module.fromarray(np.ascontiguousarray(part))
    rows = image.resize((out.shape[1], part.shape[0]), resample, (left, 0, right, part.shape[0]))
    made = np.asarray(rows.resize(out.shape[1::-1], resample, (0, top, out.shape[1], bottom)))
    out[:] = made[:, ::-1] if flip else made


def _decoded(
    data: bytes | memoryview,
    shrink: Callable[[int, int], int],
    *,
    channels: int | None = None,
) -> tuple[npt.NDArray[np.uint8], int]:
    """Return the pixels, and by what the image was shrunk while it was decoded.

    Args:
        data: the file's bytes.
        shrink: says by what, 1, 2, 4 or 8, an image of height and width may be shrunk.
        channels: 1, 3, 4, or None for as many as there are.
    """
    if bytes(data[:3]) == _JPEG:
        fast = _simplejpeg()
        made = None if fast is None else _jpeg(fast, data, shrink, channels)
        if made is not None:
            return made
    image_module, _ = pillow()
    try:
        with open_image(data) as image:
            width, height = image.size
            factor = shrink(height, width)
            if factor > 1:
                image.draft(None, (max(1, width // factor), max(1, height // factor)))
            factor = factor if image.size != (width, height) else 1
            pixels = _pixels(image)
    except (FormatError, MemoryError, NoGeneratorError):
        raise
    except Exception as error:  # Pillow's plugins raise whatever broken bytes lead them to
        unknown = isinstance(error, image_module.UnidentifiedImageError)
        why = "no format that Pillow reads" if unknown else error
        what = f"the image cannot be decoded ({type(error).__name__}: {why})"
        raise CorruptRecordError(what, advice=_ADVICE) from error
    if channels is not None and pixels.shape[2] != channels:
        image = image_module.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        pixels = np.array(image.convert(_MODES[channels])).reshape(*pixels.shape[:2], channels)
    return pixels, factor


def _jpeg(
    fast: Any, data: Any, shrink: Callable[[int, int], int], channels: int | None
) -> tuple[npt.NDArray[np.uint8], int] | None:
    """Return what `_decoded` returns, or None where the file is Pillow's to judge."""
    try:
        height, width, space, _ = fast.decode_jpeg_header(data)
    except ValueError:
        return None
    own = 1 if space == "Gray" else 3
    # Gray of colours, alpha, inks: Pillow's way of converting them is the one.
    if space not in ("Gray", "YCbCr", "RGB") or channels not in (None, own, 3) or width * height > MAX_PIXELS:
        return None
    factor = shrink(height, width)
    if factor > 1 and min(height, width) < _LEAST_SCALED:
        return None
    rows, columns = -(-height // factor), -(-width // factor)
    target = "GRAY" if own == 1 and channels != 3 else "RGB"
    try:
        pixels = fast.decode_jpeg(data, target, min_height=rows, min_width=columns, min_factor=factor)
    except ValueError:
        return None
    return (pixels, factor) if pixels.shape[:2] == (rows, columns) else None


def _pixels(image: Any) -> npt.NDArray[np.uint8]:
    mode = image.mode
    if mode in ("I", "F") or mode.startswith("I;16"):
        wide = np.asarray(image)
        if mode == "F" or wide.min() < 0 or wide.max() > 0xFFFF:
            raise FormatError(f"pixels of mode {mode} do not fit into uint8", advice=_ADVICE)
        return np.asarray(wide >> 8, np.uint8)[:, :, None]
    if mode in ("1", "L"):
        target = "L"
    elif mode in _TO_RGBA or (mode == "P" and "transparency" in image.info):
        target = "RGBA"
    else:
        target = "RGB"
    # np.array copies, so the result is writable and does not hold the file.
    array = np.array(image if mode == target else image.convert(target))
    return array[:, :, None] if array.ndim == 2 else array


@cache
def _simplejpeg() -> Any:
    """Return the module, or None where it is not installed, which is said once."""
    try:
        import simplejpeg
    except ImportError:
        warn(
            "JPEGs are decoded with Pillow, which takes longer than simplejpeg, which is not installed here: "
            'pip install "shardio[image]" has both',
        )
        return None
    return simplejpeg


def image_decoder() -> str:
    """Return what decodes JPEGs here: "simplejpeg", "Pillow", or "none"; for reports of systems."""
    from importlib.util import find_spec

    if find_spec("PIL") is None:
        return "none"
    return "Pillow" if find_spec("simplejpeg") is None else "simplejpeg"


def with_images(codec: RecordCodec, options: ImageOptions | None) -> RecordCodec:
    """Return a codec that decodes images too; the same one where there are none, or `options` is None."""
    if options is None or codec.schema is None:
        return codec
    found = ImageCodec(codec, options)
    return found if found.has_images else codec


class ImageCodec(RecordCodec):
    """A codec that decodes the images of another one's values.

    Args:
        inner: gives bytes for features that are images.
        options: how they are decoded.
    """

    inner: RecordCodec

    def __init__(self, inner: RecordCodec, options: ImageOptions) -> None:
        schema = inner.schema
        self.inner = inner
        self.schema: Schema | None = schema
        self.features = inner.features
        self.options = options
        groups = schema.groups if schema is not None else ()
        self._images = [{name: f for name, f in group.items() if f.kind == "image"} for group in groups]
        self._nested = schema is not None and schema.encoding == "sequence_example"
        self._generators: Generators | None = None

    @property
    def has_images(self) -> bool:
        """Whether there is anything to decode."""
        return any(self._images)

    @property
    def random(self) -> bool:
        """Whether a record's images depend on more than its bytes: see `keyed`."""
        return self.options.random

    def keyed(self, generators: Generators) -> Self:
        """Return this codec for one call, whose random crops are drawn from a generator for each row.

        Args:
            generators: returns the generator of a row of the call, again each time.
        """
        other = copy(self)
        other._generators = generators  # noqa: SLF001 - its own
        return other

    def encode(self, value: Any) -> bytes:
        """Encode as the inner codec does."""
        return self.inner.encode(value)

    def decode_many(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> list[Any]:
        """Decode to values with uint8 arrays [height, width, channels] for images."""
        values = self.inner.decode_many(payloads, features=self._asked(features))
        for row, value in enumerate(values):
            self._decode_value(value, row)
        return values

    def decode_batch(self, payloads: Payloads, *, features: Sequence[str] | None = None) -> dict[str, Any]:
        """Decode to columns.

        Images of one size are one array uint8 [n, height, width, channels], those of several sizes a list.
        With a size in the options each image is decoded into its place in that array.
        """
        columns = self.inner.decode_batch(payloads, features=self._asked(features))
        for part, name, feature in self._found(columns):
            column, rows = part[name], None
            if isinstance(column, RaggedColumn):  # the steps of a feature list
                rows = np.repeat(np.arange(len(column)), np.diff(column.offsets))
                part[name] = RaggedColumn(self._column(name, feature, column.values, rows), column.offsets)
            else:
                part[name] = self._column(name, feature, column)
        return columns

    def _decode_one(self, payload: bytes, features: Sequence[str] | None) -> Any:
        value = self.inner.decode(payload, features=self._asked(features))
        self._decode_value(value, 0)
        return value

    def _asked(self, features: Sequence[str] | None) -> Sequence[str] | None:
        return self.features if features is None else features

    def _decode_value(self, value: Any, row: int) -> None:
        for part, name, _ in self._found(value):
            part[name] = self._item(name, part[name], row)

    def _found(self, value: Any) -> Iterator[tuple[dict[str, Any], str, Feature]]:
        """Yield where the images of a value, or of columns, are."""
        parts = (value["context"], value["feature_lists"]) if self._nested else (value,)
        for part, images in zip(parts, self._images, strict=False):
            for name, feature in images.items():
                if name in part:
                    yield part, name, feature

    def _item(self, name: str, item: Any, row: int) -> Any:
        """Return an image, or a list of them; nothing stays nothing."""
        if item is None:
            return None
        return (
            [self._item(name, each, row) for each in item]
            if isinstance(item, list)
            else self._one(name, item, row)
        )

    def _one(self, name: str, data: bytes, row: int, out: Any = None) -> Any:
        options, size, generators = self.options, self.options.size, self._generators
        try:
            if size is None:
                return decode_image(data, channels=options.channels)
            made = np.empty((*size, options.channels or 3), np.uint8) if out is None else out
            sized_image(data, options, made, None if generators is None else lambda: generators(row))
        except FormatError as error:
            error.what = f"feature {name!r}: {error.what}"
            raise error.located(row=row) from error.__cause__
        return made

    def _column(self, name: str, feature: Feature, items: list[Any], rows: Any = None) -> Any:
        """Return the column of images; `rows` are those of the items where they are steps of a list."""
        places = range(len(items)) if rows is None else rows.tolist()
        whole = not feature.shape and None not in items
        if whole and self.options.size is not None:
            out = np.empty((len(items), *self.options.size, self.options.channels or 3), np.uint8)
            for image, data, row in zip(out, items, places, strict=True):
                self._one(name, data, row, image)
            return out
        made = [self._item(name, item, row) for item, row in zip(items, places, strict=True)]
        return np.stack(made) if whole and len({image.shape for image in made}) == 1 else made
