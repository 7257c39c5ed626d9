"""Schemas with values that fit them, for every type: strategies, and a comparison by every bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shardio.codecs import RaggedColumn
from shardio.metadata import Feature

NUMBERS = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16"),
]
TENSOR_NUMBERS = [name for name in NUMBERS if name not in ("uint32", "uint64", "complex64", "complex128")]
TENSORS = ["tensor", "tensor:float32", "tensor:bfloat16[?,2]", "tensor:uint8[3]", "tensor:complex64[?]"]
SHAPES = [(), (1,), (3,), (2, 3), (None,), (None, 2), (2, None), (None, None), (2, None, None)]


def arrays(dtype: np.dtype, shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    """Any bits at all, so that NaNs keep their payloads and every integer occurs, in any layout."""
    size = int(np.prod(shape)) * dtype.itemsize
    bits = st.binary(min_size=size, max_size=size)
    if dtype.kind == "b":
        exact = hnp.arrays(np.bool_, shape)
    else:
        exact = bits.map(lambda raw: np.frombuffer(raw, dtype).reshape(shape))
    return st.builds(_laid_out, exact, st.sampled_from(["C", "F", "strided", "reversed", "swapped"]))


def _laid_out(array: np.ndarray, layout: str) -> np.ndarray:
    if layout == "swapped":
        # The bytes are turned round and the dtype with them, so no value passes through a register.
        swapped = array.copy().byteswap()
        return swapped.view(array.dtype.newbyteorder(">"))
    if array.ndim == 0 or layout == "C":
        return array
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "strided":
        return np.repeat(array, 2, axis=-1)[..., ::2]
    return array[::-1].copy()[::-1]


def features(numbers: list[str] = NUMBERS) -> st.SearchStrategy[Feature]:
    plain = st.builds(
        lambda name, shape: Feature(name, shape=shape), st.sampled_from(numbers), st.sampled_from(SHAPES)
    )
    items = st.builds(
        lambda name, shape: Feature(name, shape=shape),
        st.sampled_from(["bytes", "text", "jpeg", "image"]),
        st.sampled_from([(), (2,), (None,)]),
    )
    return plain | items | st.just(Feature("json")) | st.sampled_from(TENSORS).map(Feature)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


def values(feature: Feature) -> st.SearchStrategy[Any]:
    if feature.dtype is not None:
        sizes = st.tuples(*[st.integers(0, 3) if size is None else st.just(size) for size in feature.shape])
        return sizes.flatmap(lambda shape: arrays(feature.dtype, shape))
    if feature.kind == "tensor":
        return _tensors(feature)
    files = st.binary(max_size=20).map(lambda tail: b"\xff\xd8\xff" + tail)
    item = {"text": _TEXT, "json": _JSON, "image": files}.get(feature.kind, st.binary(max_size=20))
    if not feature.shape:
        return item
    low, high = (0, 3) if feature.shape[0] is None else (feature.shape[0], feature.shape[0])
    return st.lists(item, min_size=low, max_size=high)


def _tensors(feature: Feature) -> st.SearchStrategy[Any]:
    kind = feature.type.partition(":")[2]
    name, shape = kind.partition("[")[0] or None, Feature(kind).shape if "[" in kind else None
    numbers = st.sampled_from([each for each in NUMBERS if each != "bfloat16"] if name is None else [name])
    sizes = (
        hnp.array_shapes(min_dims=0, min_side=0, max_side=3)
        if shape is None
        else st.tuples(*[st.integers(0, 3) if size is None else st.just(size) for size in shape])
    )
    found = st.tuples(numbers, sizes).flatmap(lambda drawn: arrays(Feature(drawn[0]).dtype, drawn[1]))
    texts = st.lists(st.binary(max_size=4), min_size=1, max_size=3).map(lambda items: np.array(items, object))
    return found if name is not None else found | texts


def same(feature: Feature, got: Any, given: Any) -> bool:
    """Whether a value came back: dtype, shape and every bit."""
    if feature.kind == "tensor":
        if given.dtype == object:
            return got.dtype == object and got.tolist() == given.tolist()
        little = given.astype(given.dtype.newbyteorder("<"))
        return (got.dtype, got.shape, got.tobytes()) == (little.dtype, little.shape, little.tobytes())
    if feature.dtype is None:
        return type(got) is type(given) and got == given
    native = np.asarray(given)
    if not native.dtype.isnative:
        native = native.copy().byteswap().view(native.dtype.newbyteorder("="))
    if not feature.shape and not isinstance(got, np.generic):
        return False
    found = np.asarray(got)
    return (
        found.dtype == feature.dtype
        and found.shape == native.shape
        and np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(native).tobytes()
    )


def rows_of(column: Any) -> list[Any]:
    """The rows of a column, of whatever form."""
    return [rows_of(row) if isinstance(row, RaggedColumn) else row for row in column]
