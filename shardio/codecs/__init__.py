"""Records to values and back: tf.train.Example, TensorProtos, arrays, and messages of the caller's own.

`record_codec` makes the codec of a schema, which writer, reader and streams use; the functions beside it work
without a schema.  Pure: bytes in, values out.  protobuf and Pillow load when they are first needed.
"""

from __future__ import annotations

from shardio.codecs._arrow import arrow_array, arrow_type_of, need_pyarrow, value_lengths
from shardio.codecs._codec import Payloads, RecordCodec, as_list
from shardio.codecs._codec_images import ImageCodec, with_images
from shardio.codecs._columns import (
    ColumnValues,
    RaggedColumn,
    VariableLength,
    VarLenColumn,
    are_alike,
    collate,
    common_names,
    stack,
)
from shardio.codecs._example import (
    decode_example,
    decode_sequence_example,
    encode_example,
    encode_sequence_example,
)
from shardio.codecs._images import (
    CenterCrop,
    ImageOptions,
    RandomResizedCrop,
    decode_image,
    image_decoder,
)
from shardio.codecs._infer import FeatureReport, InferenceReport, infer_schema
from shardio.codecs._make import record_codec
from shardio.codecs._mapped import MappedCodec
from shardio.codecs._mds import (
    DAMAGE as MDS_DAMAGE,
    MdsColumn,
    decode_mds_sample,
    mds_column,
    mds_columns,
    split_mds_sample,
)
from shardio.codecs._message import Message
from shardio.codecs._parse import (
    FixedLen,
    FixedLenSequence,
    Ragged,
    Sparse,
    VarLen,
    parse_examples,
    parse_sequence_examples,
)
from shardio.codecs._tensors import Tensor, decode_tensors, encode_tensors, read_tensors
from shardio.metadata import MAX_PIXELS, encode_image, parse_tensor, serialize_tensor

__all__ = [
    "MAX_PIXELS",
    "MDS_DAMAGE",
    "CenterCrop",
    "ColumnValues",
    "FeatureReport",
    "FixedLen",
    "FixedLenSequence",
    "ImageCodec",
    "ImageOptions",
    "InferenceReport",
    "MappedCodec",
    "MdsColumn",
    "Message",
    "Payloads",
    "Ragged",
    "RaggedColumn",
    "RandomResizedCrop",
    "RecordCodec",
    "Sparse",
    "Tensor",
    "VarLen",
    "VarLenColumn",
    "VariableLength",
    "are_alike",
    "arrow_array",
    "arrow_type_of",
    "as_list",
    "collate",
    "common_names",
    "decode_example",
    "decode_image",
    "decode_mds_sample",
    "decode_sequence_example",
    "decode_tensors",
    "encode_example",
    "encode_image",
    "encode_sequence_example",
    "encode_tensors",
    "image_decoder",
    "infer_schema",
    "mds_column",
    "mds_columns",
    "need_pyarrow",
    "parse_examples",
    "parse_sequence_examples",
    "parse_tensor",
    "read_tensors",
    "record_codec",
    "serialize_tensor",
    "split_mds_sample",
    "stack",
    "value_lengths",
    "with_images",
]
