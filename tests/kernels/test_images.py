"""Images in another size: every implementation is Pillow, along rows and then along columns, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

from tests.suites.errors import refused

SIDES = st.integers(1, 90)


def by_pillow(
    image: np.ndarray,
    height: int,
    width: int,
    *,
    bicubic: bool,
    flip: bool,
    box: tuple[float, float, float, float] | None = None,
) -> np.ndarray:
    left, top, right, bottom = box or (0, 0, image.shape[1], image.shape[0])
    resample = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
    planes = []
    for plane in np.moveaxis(image, 2, 0):  # channel by channel, so that none can leak into the next
        whole = Image.fromarray(np.ascontiguousarray(plane))
        rows = whole.resize((width, image.shape[0]), resample, (left, 0, right, image.shape[0]))
        planes.append(np.asarray(rows.resize((width, height), resample, (0, top, width, bottom))))
    made = np.stack(planes, axis=2)
    return made[:, ::-1] if flip else made


@settings(max_examples=max(50, settings().max_examples // 5), deadline=None)
@given(
    st.tuples(SIDES, SIDES), st.tuples(SIDES, SIDES), st.sampled_from([1, 3]), st.booleans(), st.booleans(),
    st.integers(0, 1 << 32), st.booleans(),
)  # fmt: skip
def test_pixels_are_those_of_pillow(kernels, size, wanted, channels, bicubic, flip, seed, hard) -> None:
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (*size, channels), dtype=np.uint8)
    if hard:
        image = np.where(image > 127, 255, 0).astype(np.uint8)
    out = np.full((*wanted, channels), 7, np.uint8)
    kernels.resize_image(image, out, bicubic=bicubic, flip=flip)
    np.testing.assert_array_equal(out, by_pillow(image, *wanted, bicubic=bicubic, flip=flip))


@settings(max_examples=max(40, settings().max_examples // 4), deadline=None)
@given(st.data(), st.tuples(SIDES, SIDES), st.tuples(SIDES, SIDES), st.sampled_from([1, 3]), st.booleans())
def test_pixels_of_parts_are_those_of_pillow(kernels, data, size, wanted, channels, flip) -> None:
    """Parts begin and end anywhere within pixels, and may be smaller than one."""

    def span(side: int) -> tuple[float, float]:
        ends = st.lists(st.floats(0, side, width=32) | st.integers(0, side), min_size=2, max_size=2)
        begin, end = sorted(data.draw(ends.filter(lambda both: abs(both[0] - both[1]) > 1e-3)))
        return begin, end

    (top, bottom), (left, right), bicubic = span(size[0]), span(size[1]), data.draw(st.booleans())
    image = np.random.default_rng(size).integers(0, 256, (*size, channels), dtype=np.uint8)
    out, box = np.full((*wanted, channels), 7, np.uint8), (left, top, right, bottom)
    kernels.resize_image(image, out, box=box, bicubic=bicubic, flip=flip)
    np.testing.assert_array_equal(out, by_pillow(image, *wanted, bicubic=bicubic, flip=flip, box=box))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_part_of_an_image_sees_nothing_of_the_rest(kernels, channels) -> None:
    """Also not the byte behind its last pixel: parts at every edge, and rows of any distance."""
    whole = np.random.default_rng(0).integers(0, 256, (40, 50, channels), dtype=np.uint8)
    for top, left, height, width in [
        (0, 0, 40, 50),
        (3, 5, 20, 31),
        (39, 49, 1, 1),
        (20, 25, 20, 25),
        (0, 49, 40, 1),
    ]:
        part = whole[top : top + height, left : left + width]
        ours, copied = np.empty((2, 16, 24, channels), np.uint8)
        kernels.resize_image(part, ours)
        kernels.resize_image(part.copy(), copied)
        np.testing.assert_array_equal(ours, copied)
    kernels.resize_image(whole[:, ::-1], ours)
    kernels.resize_image(whole, copied, flip=True)
    assert abs(ours.astype(int) - copied).max() <= 1  # sums in another order of their weights


def test_nothing_beside_the_output_is_written(kernels) -> None:
    batch = np.full((3, 10, 11, 3), 9, np.uint8)
    kernels.resize_image(np.zeros((30, 30, 3), np.uint8), batch[1])
    assert batch[[0, 2]].min() == 9
    assert batch[1].max() == 0


def test_what_does_not_fit_is_refused(kernels) -> None:
    image, out = np.zeros((4, 4, 3), np.uint8), np.zeros((2, 2, 3), np.uint8)
    fixed = out.copy()
    fixed.flags.writeable = False
    for source, into in [
        (image.astype(np.int8), out), (image[:, :, 0], out), (image[:0], out), (image, out[:0]),
        (image, np.zeros((2, 2, 1), np.uint8)), (np.zeros((4, 4, 4), np.uint8), np.zeros((2, 2, 4),
        np.uint8)), (image, out[:, ::-1]), (image, fixed),
    ]:  # fmt: skip
        with pytest.raises(ValueError):  # noqa: PT011 - which one does not matter
            kernels.resize_image(source, into)
    for box in [
        (0, 0, 4),
        (-1, 0, 4, 4),
        (0, 0, 4, 4.1),
        (2, 0, 2, 4),
        (0, 3, 4, 1),
        (0, 0, float("nan"), 4),
    ]:
        with refused(ValueError, "box"):
            kernels.resize_image(image, out, box=box)
    frozen = image.copy()
    frozen.flags.writeable = False
    kernels.resize_image(frozen, out)
