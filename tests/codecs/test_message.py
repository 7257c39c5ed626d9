"""Records of protobuf messages of the caller's own."""

from __future__ import annotations

import pickle

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from shardio.codecs import Message, record_codec
from shardio.errors import CorruptRecordError, SchemaError
from shardio.v1.example_pb2 import Example, Int64List
from shardio.v1.tensor_pb2 import TensorProto

Field = descriptor_pb2.FieldDescriptorProto


def _class(version, *fields, syntax="proto3"):
    """Make a message class as protoc would, without a compiler."""
    file = descriptor_pb2.FileDescriptorProto(name=f"birds{version}.proto", package="birds", syntax=syntax)
    message = file.message_type.add(name="Sighting")
    for name, number, kind, label in fields:
        message.field.add(name=name, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("birds.Sighting"))


ONE = Field.LABEL_OPTIONAL
Old = _class(1, ("species", 1, Field.TYPE_STRING, ONE), ("count", 2, Field.TYPE_INT64, ONE))
New = _class(
    2,
    ("species", 1, Field.TYPE_STRING, ONE),
    ("place", 3, Field.TYPE_STRING, ONE),
    ("weights", 4, Field.TYPE_FLOAT, Field.LABEL_REPEATED),
)
Strict = _class(3, ("species", 1, Field.TYPE_STRING, Field.LABEL_REQUIRED), syntax="proto2")


def test_messages_come_back():
    codec = Message(Old)
    messages = [Old(species="ünï", count=-3), Old(), Old(count=2**63 - 1)]
    payloads = [codec.encode(message) for message in messages]
    assert codec.decode_many(payloads) == messages
    assert [codec.decode(payload) for payload in payloads] == messages
    assert codec.decode_batch(payloads) == {"message": messages}
    assert codec.encode({"species": "ünï", "count": "-3"}) == payloads[0]
    buffer = b"".join(payloads)
    assert codec.decode_many((buffer, [0], [len(payloads[0])])) == messages[:1]


def test_old_and_new_read_each_other():
    written_new = Message(New).encode(New(species="tit", place="oak", weights=[0.5]))
    old = Message(Old).decode(written_new)
    assert (old.species, old.count) == ("tit", 0)
    assert Message(New).decode(Message(Old).encode(old)) == New(species="tit", place="oak", weights=[0.5])
    new = Message(New).decode(Message(Old).encode(Old(species="jay", count=2)))
    assert (new.species, new.place, list(new.weights)) == ("jay", "", [])


def test_json_is_protobufs_own_mapping():
    codec = Message(Old)
    message = Old(species="jay", count=2**60)
    assert codec.to_json(message) == '{"species": "jay", "count": "1152921504606846976"}'
    assert codec.from_json(codec.to_json(message)) == message
    for text in ("{", '{"colour": 1}', '{"count": "x"}'):
        with pytest.raises(SchemaError):
            codec.from_json(text)


def test_what_does_not_fit():
    codec = Message(Old)
    with pytest.raises(SchemaError):
        codec.encode(Example())
    with pytest.raises(SchemaError):
        codec.encode({"colour": 1})
    with pytest.raises(SchemaError):
        Message(Strict).encode(Strict())
    with pytest.raises(CorruptRecordError) as caught:
        codec.decode_many([b"", b"\x0a"])
    assert caught.value.row == 1
    with pytest.raises(CorruptRecordError) as caught:
        codec.decode(b"\x0a")
    assert caught.value.row is None
    with pytest.raises(ValueError, match="no feature"):
        codec.decode(b"", features=["species"])
    for other in (Old(), int, None, "Old"):
        with pytest.raises(TypeError, match="protobuf message class"):
            Message(other)


def test_it_is_a_codec_like_the_others():
    codec = Message(Int64List)
    assert record_codec(codec) is codec
    assert codec.schema is None
    assert codec.full_name == "shardio.v1.Int64List"
    assert pickle.loads(pickle.dumps(codec)) == codec
    assert codec != Message(TensorProto)
    assert len({codec, Message(Int64List)}) == 1
