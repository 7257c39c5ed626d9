"""Models trained on packed rows: two processes with loader workers learn what one process alone does."""

from __future__ import annotations

import functools
import json
import multiprocessing

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import shardio
from shardio.codecs import RaggedColumn
from shardio.torch import StreamingDataLoader, StreamingDataset, next_tokens, segment_mask, unpack
from tests.streaming.datasets import flat
from tests.torch.jobs import as_rank, finish

LENGTH, VOCABULARY, STEPS = 24, 50, 6


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
    place = tmp_path_factory.mktemp("packed")
    with shardio.DatasetWriter(place / "documents", schema={"n": "int64", "tokens": "int32[?]"}) as out:
        for n in range(200):
            out.write({"n": n, "tokens": document(n)})
    rows = shardio.pack(shardio.open(place / "documents"), LENGTH, features=["tokens"])
    with shardio.DatasetWriter(place / "rows", schema=rows.schema) as out:
        for row in rows:
            out.write(row)
    return place


def dataset(url, way):
    """Return a stream of rows that were packed when written, or within each step."""
    if way == "written":
        return StreamingDataset(shardio.open(url / "rows"), global_batch=8, seed=1)
    pack = functools.partial(shardio.pack_columns, length=LENGTH)
    return StreamingDataset(shardio.open(url / "documents"), global_batch=24, seed=1, batch_transform=pack)


def train(url, way, world_size, **options):
    """Train some steps; return the documents of each step and the weights."""
    torch.manual_seed(0)
    model = Model()
    wrapped = DistributedDataParallel(model) if world_size > 1 else model
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.5)
    seen = []
    loader = StreamingDataLoader(dataset(url, way), **options)
    for _, batch in zip(range(STEPS), loader, strict=False):
        labels = next_tokens(batch["tokens"], batch["segment_ids"])
        count = (labels >= 0).sum()
        if world_size > 1:
            dist.all_reduce(count)
        logits = wrapped(batch["tokens"], batch["segment_ids"], batch["position_ids"])
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / count * world_size
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append([row.tolist() for row in unpack(batch["tokens"], batch["segment_ids"])])
    return seen, {name: weight.tolist() for name, weight in model.state_dict().items()}


WAYS = {"written": {"num_workers": 2, "multiprocessing_context": "fork"}, "within a step": {"num_threads": 2}}


def rank_of_two(rank, folder, url):
    found = {way: train(url, way, 2, **options) for way, options in WAYS.items()}
    (folder / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")


@pytest.mark.slow
def test_two_processes_learn_what_one_does(url, tmp_path):
    """The same documents in every step, and the same weights, though each rank packs its own rows."""
    # Spawned: a fork of a process that has used autograd may hang in it.
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=as_rank, args=(rank, 2, tmp_path, rank_of_two, url)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    assert finish(ranks, 360) == [0, 0]
    shares = [json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]
    for way in WAYS:
        expected, weights = train(url, way, 1, num_threads=0)
        for step in range(STEPS):
            together = sorted(flat(share[way][0][step] for share in shares))
            assert together == sorted(expected[step])
        for share in shares:
            for name, weight in weights.items():
                learned = torch.tensor(share[way][1][name])
                torch.testing.assert_close(learned, torch.tensor(weight), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_documents_have_the_logits_that_they_have_alone(url):
    """Packed, padded and in the variable-length form, by masked attention and by flex attention alike."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.manual_seed(0)
    model = Model().eval()
    batch = next(iter(StreamingDataLoader(dataset(url, "within a step"))))
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
