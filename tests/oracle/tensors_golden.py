"""Write `tests/golden/tensorflow/tensors.json` by TensorFlow itself: serialized tensors and their values.

And `tensor-features.tfrecord`: Examples with such tensors in features of bytes, as TensorFlow's own tutorial
stores arrays. `python -m tests.oracle.tensors_golden`, where tensorflow is installed; what it wrote is kept.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

TYPES = (
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "bool", "complex64", "complex128", "bfloat16",
)  # fmt: skip
SHAPES = [(), (3,), (2, 3), (0,), (2, 0, 3)]
STRINGS: list[tuple[tuple[int, ...], Any]] = [
    ((), b"abc"),
    ((2,), [b"a", b""]),
    ((2, 2), [[b"x" * 200, b"y"], [b"\xff\x00", b""]]),
    ((0,), np.array([], object)),
]
TARGET = Path(__file__).parents[1] / "golden" / "tensorflow" / "tensors.json"


def case(name: str, array: Any, data: bytes, dtype: str) -> dict[str, Any]:
    flat = np.asarray(array).reshape(-1)
    values: list[Any]
    if dtype == "string":
        values = [base64.b64encode(item).decode() for item in flat.tolist()]
    elif flat.dtype.kind == "c":
        values = [[float(item.real), float(item.imag)] for item in flat]
    else:
        values = [float(item) for item in flat]
    shape = list(np.asarray(array).shape)
    text = base64.b64encode(data).decode()
    return {"name": name, "dtype": dtype, "shape": shape, "values": values, "data": text}


def cases() -> list[dict[str, Any]]:
    found = []
    numbers = np.random.default_rng(0)
    for name in TYPES:
        for shape in SHAPES:
            drawn = numbers.integers(0, 2 if name == "bool" else 100, shape)
            tensor = tf.cast(tf.constant(drawn, tf.int64), name)
            written = tf.io.serialize_tensor(tensor).numpy()
            found.append(case(f"serialize {name} {shape}", tensor.numpy(), written, name))
        if name == "bfloat16":
            continue
        given = np.asarray([1, 0, 1, 1], name)
        written = tf.make_tensor_proto(given).SerializeToString()
        found.append(case(f"make_tensor_proto {name}", given, written, name))
        # In the field of the type, the last value repeated.
        written = tf.make_tensor_proto(np.asarray(1, name), shape=(2, 3)).SerializeToString()
        found.append(case(f"repeated {name}", tf.io.parse_tensor(written, name).numpy(), written, name))
    for shape, items in STRINGS:
        tensor = tf.constant(items, tf.string, shape=shape)
        written = tf.io.serialize_tensor(tensor).numpy()
        found.append(case(f"serialize string {shape}", tensor.numpy(), written, "string"))
    written = tf.make_tensor_proto(b"z", shape=(3,)).SerializeToString()
    found.append(case("repeated string", tf.io.parse_tensor(written, tf.string).numpy(), written, "string"))
    return found


def example(number: int) -> bytes:
    tensors = {
        "grid": tf.ones((number, 2), tf.float32) * number,
        "half": tf.cast(tf.range(number), tf.bfloat16),
        "scalar": tf.constant(number, tf.int64),
        "words": tf.constant(["a", "b" * number]),
    }
    lists = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[tf.io.serialize_tensor(each).numpy()]))
        for name, each in tensors.items()
    }
    message = tf.train.Example(features=tf.train.Features(feature=lists))
    payload: bytes = message.SerializeToString(deterministic=True)
    return payload


if __name__ == "__main__":
    with tf.io.TFRecordWriter(str(TARGET.with_name("tensor-features.tfrecord"))) as out:
        for count in range(4):
            out.write(example(count))
    content = {"tensorflow": tf.__version__, "cases": cases()}
    TARGET.write_text(json.dumps(content, indent=0) + "\n", encoding="utf-8")
