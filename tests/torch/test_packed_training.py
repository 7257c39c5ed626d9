"""Models over packed rows: each document has the logits that it has alone."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import shardio
from shardio.codecs import RaggedColumn
from shardio.torch import StreamingDataLoader, StreamingDataset, next_tokens, segment_mask, unpack

LENGTH, VOCABULARY = 24, 50


class Model(torch.nn.Module):
    """One layer of attention over packed rows."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(VOCABULARY, 8), torch.nn.Embedding(LENGTH, 8)
        self.qkv, self.head = torch.nn.Linear(8, 24), torch.nn.Linear(8, VOCABULARY)

    def forward(self, tokens, segment_ids, position_ids):
        x = self.tokens(tokens) + self.places(position_ids)
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        return self.head(x + scaled_dot_product_attention(q, k, v, attn_mask=segment_mask(segment_ids))[:, 0])


def document(n):
    rng = np.random.default_rng(n)
    return rng.integers(0, VOCABULARY, rng.integers(2, LENGTH + 1)).astype(np.int32)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    place = tmp_path_factory.mktemp("packed") / "documents"
    with shardio.DatasetWriter(place, schema={"n": "int64", "tokens": "int32[?]"}) as out:
        for n in range(200):
            out.write({"n": n, "tokens": document(n)})
    return place


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_documents_have_the_logits_that_they_have_alone(url):
    """Packed, padded and in the variable-length form, by masked attention and by flex attention alike."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.manual_seed(0)
    model = Model().eval()
    pack = functools.partial(shardio.pack_columns, length=LENGTH)
    data = StreamingDataset(shardio.open(url), global_batch=24, seed=1, batch_transform=pack)
    batch = next(iter(StreamingDataLoader(data)))
    segments = batch["segment_ids"]
    assert int(segments.max()) > 2
    with torch.no_grad():
        logits = model(batch["tokens"], segments, batch["position_ids"])
        alone = []
        for tokens in unpack(batch["tokens"], segments):
            ones, places = torch.ones_like(tokens), torch.arange(len(tokens))
            alone.append(model(tokens[None], ones[None], places[None])[0])
        for found, wanted in zip(unpack(logits, segments), alone, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        # The variable-length form: one row with all documents of it, one after another.
        column = unpack(batch["tokens"], segments)
        values, cu_seqlens, max_seqlen = column.varlen()
        assert max_seqlen == max(map(len, alone))
        whole = model(values[None], column.segment_ids()[None], column.position_ids()[None])[0]
        for number, wanted in enumerate(alone):
            torch.testing.assert_close(
                whole[cu_seqlens[number] : cu_seqlens[number + 1]], wanted, rtol=1e-4, atol=1e-5
            )

        x = model.tokens(batch["tokens"]) + model.places(batch["position_ids"])
        q, k, v = model.qkv(x)[:, None].chunk(3, -1)

        def same_document(b, h, one, other):
            return (segments[b, one] == segments[b, other]) & (one >= other)

        mask = create_block_mask(same_document, len(x), None, LENGTH, LENGTH, device="cpu")
        flexed = flex_attention(q, k, v, block_mask=mask)
        plain = scaled_dot_product_attention(q, k, v, attn_mask=segment_mask(segments))
        torch.testing.assert_close(flexed, plain, rtol=1e-4, atol=1e-5)
        both = segment_mask(segments, causal=False)
        assert (both == both.transpose(-1, -2)).all()
        assert both.any(-1).all()


def test_tensors_and_arrays_unpack_alike():
    tokens, segments = np.array([[7, 8, 9, 0], [1, 0, 0, 0]]), np.array([[1, 1, 2, 0], [1, 0, 0, 0]])
    arrays, made = shardio.unpack(tokens, segments), unpack(torch.tensor(tokens), torch.tensor(segments))
    assert type(arrays) is RaggedColumn
    assert [row.tolist() for row in arrays] == [row.tolist() for row in made] == [[7, 8], [9], [1]]
    nothing = unpack(torch.zeros(0, 4), torch.zeros(0, 4, dtype=torch.int32))
    assert len(nothing) == 0
    assert next_tokens(torch.tensor(tokens), torch.tensor(segments)).tolist() == [
        [8, *[-100] * 3],
        [-100] * 4,
    ]
    with pytest.raises(ValueError, match="must begin with the same two sizes"):
        unpack(torch.zeros(2, 3), torch.zeros(2, 4))
