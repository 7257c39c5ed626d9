"""Write what TensorFlow makes of the sparse, sequence and ragged forms: `python -m tests.oracle.golden`."""

from __future__ import annotations

import json
from typing import Any

from tests.codecs._forms import CASES, FILE, STRICTER, array, payloads


def translated(tf: Any, description: list[Any], *, validate: bool) -> Any:
    """Say a description to TensorFlow."""
    dtypes = {"int64": tf.int64, "float32": tf.float32, "bytes": tf.string}
    form, *arguments = description
    given = [dtypes.get(each, each) if isinstance(each, str) else each for each in arguments]
    if form == "Ragged":
        return tf.io.RaggedFeature(*given, row_splits_dtype=tf.int64, validate=validate)
    return getattr(tf.io, f"{form}Feature")(*given)


def plain(tf: Any, tensor: Any) -> Any:
    """Return a tensor as JSON, as `tests.codecs._forms.plain` does a column."""
    if isinstance(tensor, tf.RaggedTensor):
        return {"splits": tensor.row_splits.numpy().tolist(), "values": plain(tf, tensor.values)}
    if isinstance(tensor, tf.SparseTensor):
        shape = tensor.dense_shape.numpy().tolist()
        parts = {"indices": plain(tf, tensor.indices), "shape": shape}
        return {**parts, "values": plain(tf, tensor.values)}
    values = array(tensor.numpy())
    return values if tensor.dtype != tf.string else {**values, "dtype": "object"}


def answer(tf: Any, case: tuple[str, dict[str, Any]], *, validate: bool = True) -> Any:
    """Return what TensorFlow makes of a case, or None where it refuses."""
    listed, records = payloads(case[0])
    features = {name: translated(tf, each, validate=validate) for name, each in case[1].items()}
    records = tf.constant(records, tf.string, shape=[len(records)])
    try:
        if not listed:
            found = tf.io.parse_example(records, features)
            return {name: plain(tf, tensor) for name, tensor in found.items()}
        _, lists, lengths = tf.io.parse_sequence_example(records, {}, features)
    except (tf.errors.InvalidArgumentError, ValueError):
        return None
    lengths = {name: plain(tf, tensor) for name, tensor in lengths.items()}
    return {"lists": {name: plain(tf, tensor) for name, tensor in lists.items()}, "lengths": lengths}


def answers(tf: Any) -> dict[str, Any]:
    """Return what TensorFlow makes of all cases; what it lets pass as it is by default, unvalidated."""
    found = {name: answer(tf, case) for name, case in CASES.items()}
    return found | {name: answer(tf, case, validate=False) for name, case in STRICTER.items()}


if __name__ == "__main__":
    import tensorflow as tf

    lines = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in answers(tf).items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
