"""Records to values and back: tf.train.Example, TensorProtos, arrays, and messages of the caller's own.

`record_codec` makes the codec of a schema, which writer, reader and streams use; the functions beside it work
without a schema.  Pure: bytes in, values out.  protobuf and Pillow load when they are first needed.
"""

from __future__ import annotations

from shardio.codecs._arrow import (
    arrow_array as arrow_array,
    arrow_type_of as arrow_type_of,
    need_pyarrow as need_pyarrow,
    value_lengths as value_lengths,
)
from shardio.codecs._codec import Payloads as Payloads, RecordCodec as RecordCodec, as_list as as_list
from shardio.codecs._columns import (
    ColumnValues as ColumnValues,
    RaggedColumn as RaggedColumn,
    VariableLength as VariableLength,
    VarLenColumn as VarLenColumn,
    are_alike as are_alike,
    collate as collate,
    common_names as common_names,
    stack as stack,
)
from shardio.codecs._example import (
    decode_example as decode_example,
    decode_sequence_example as decode_sequence_example,
    encode_example as encode_example,
    encode_sequence_example as encode_sequence_example,
)
from shardio.codecs._huggingface import (
    HF_METADATA as HF_METADATA,
    hf_feature as hf_feature,
    hf_json as hf_json,
    with_names as with_names,
    without_names as without_names,
)
from shardio.codecs._images import (
    CenterCrop as CenterCrop,
    ImageCodec as ImageCodec,
    ImageOptions as ImageOptions,
    RandomResizedCrop as RandomResizedCrop,
    decode_image as decode_image,
    image_decoder as image_decoder,
    with_images as with_images,
)
from shardio.codecs._infer import (
    FeatureReport as FeatureReport,
    InferenceReport as InferenceReport,
    infer_schema as infer_schema,
)
from shardio.codecs._make import record_codec as record_codec
from shardio.codecs._mapped import MappedCodec as MappedCodec
from shardio.codecs._mds import (
    MDS_DAMAGE as MDS_DAMAGE,
    MdsColumn as MdsColumn,
    decode_mds_sample as decode_mds_sample,
    mds_column as mds_column,
    mds_columns as mds_columns,
    mds_encoding_of as mds_encoding_of,
    split_mds_sample as split_mds_sample,
)
from shardio.codecs._message import Message as Message
from shardio.codecs._parse import (
    FixedLen as FixedLen,
    FixedLenSequence as FixedLenSequence,
    Ragged as Ragged,
    Sparse as Sparse,
    VarLen as VarLen,
    parse_examples as parse_examples,
    parse_sequence_examples as parse_sequence_examples,
)
from shardio.codecs._tensors import (
    Tensor as Tensor,
    decode_tensors as decode_tensors,
    encode_tensors as encode_tensors,
    read_tensors as read_tensors,
)
from shardio.metadata import (
    MAX_PIXELS as MAX_PIXELS,
    encode_image as encode_image,
    parse_tensor as parse_tensor,
    serialize_tensor as serialize_tensor,
)
