"""Columns of differing length on their way into models: moved, padded, as variable-length sequences."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch.utils.data import DataLoader, default_convert
from torchdata.stateful_dataloader import StatefulDataLoader

import shardio
from shardio.codecs import RaggedColumn, VariableLength
from shardio.torch import RaggedTensor, StreamingDataLoader, StreamingDataset, tensors
from tests.streaming.datasets import plan, write
from tests.suites.errors import refused

LENGTHS = st.lists(st.integers(0, 9), max_size=12)
WAYS = pytest.mark.parametrize("way", [{"num_threads": 2}, {"num_threads": 0}, {"num_workers": 2}], ids=str)


def column_of(lengths, dtype="int32", inner=()):
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    values = np.arange(offsets[-1] * int(np.prod(inner, dtype=int)), dtype=dtype).reshape(-1, *inner)
    return RaggedColumn(values, offsets)


def address(values):
    return values.data_ptr() if isinstance(values, torch.Tensor) else values.__array_interface__["data"][0]


@given(LENGTHS, st.sampled_from(["int32", "uint8", "float32"]), st.sampled_from([(), (2,)]), st.booleans())
def test_both_kinds_of_column_do_what_a_loop_over_rows_does(lengths, dtype, inner, as_tensor):
    """Padding, masks, positions and segments, row by row; values of the variable-length form are shared."""
    array = column_of(lengths, dtype, inner)
    column = tensors(array) if as_tensor else array
    assert isinstance(column, RaggedTensor) == as_tensor
    longest = max(lengths, default=0)
    for to, multiple in ((None, None), (longest + 2, None), (None, 4), (longest + 1, 8)):
        padded, mask = column.pad(to, multiple=multiple, value=7), column.mask(to, multiple=multiple)
        width = longest if to is None else to
        width = -(-width // multiple) * multiple if multiple else width
        assert tuple(padded.shape) == (len(lengths), width, *inner)
        assert str(padded.dtype).endswith(dtype)
        assert np.asarray(mask).tolist() == [[k < n for k in range(width)] for n in lengths]
        for mine, row in zip(np.asarray(padded), array, strict=True):
            assert mine.tolist() == [*row.tolist(), *np.full((width - len(row), *inner), 7).tolist()]
    assert np.asarray(column.lengths).tolist() == lengths
    assert np.asarray(column.position_ids()).tolist() == [k for n in lengths for k in range(n)]
    assert np.asarray(column.segment_ids()).tolist() == [
        i + 1 for i, n in enumerate(lengths) for _ in range(n)
    ]
    values, cu_seqlens, max_seqlen = column.varlen()
    assert address(values) == address(array.values) or not sum(lengths)
    assert str(cu_seqlens.dtype).endswith("int32")
    assert np.asarray(cu_seqlens).tolist() == array.offsets.tolist()
    assert (type(max_seqlen), max_seqlen) == (int, longest)


@given(LENGTHS, st.integers(0, 12), st.integers(0, 12))
def test_a_part_of_a_column_is_one(lengths, low, high):
    part = tensors(column_of(lengths))[low:high]
    assert type(part) is RaggedTensor
    assert part.varlen().cu_seqlens.tolist() == column_of(lengths[low:high]).offsets.tolist()
    assert part.pad().tolist() == column_of(lengths)[low:high].pad().tolist()


def test_columns_move_as_tensors_do():
    """`.to` takes what a tensor's takes, and text stays where it is."""
    array = column_of([2, 0, 3])
    assert address(tensors(array).values) == address(array.values)
    column = tensors(array).to(torch.int64)
    assert column.values.dtype == column.offsets.dtype == torch.int64
    far = column.to("meta", non_blocking=True)
    assert (far.device.type, far.values.device.type, far.offsets.dtype) == ("meta", "meta", torch.int64)
    assert far.to(torch.float16).values.dtype == torch.float16
    moved = column.varlen().to("meta", torch.int32)
    assert type(moved) is VariableLength
    assert (moved.values.device.type, moved.cu_seqlens.device.type, moved.max_seqlen) == ("meta", "meta", 3)
    assert moved.values.dtype == moved.cu_seqlens.dtype == torch.int32
    text = tensors(RaggedColumn(["a", "b"], np.array([0, 2]))).to("meta")
    assert (text.values, text.device.type) == (["a", "b"], "meta")
    deep = tensors(RaggedColumn(array, np.array([0, 1, 3]))).to("meta")
    assert deep.values.values.device.type == "meta"
    shaped = tensors(RaggedColumn(np.arange(4), np.array([0, 4]), np.array([[2, 2]]))).to(torch.int16)
    assert shaped[0].tolist() == [[0, 1], [2, 3]]


@pytest.mark.slow
def test_trainers_move_columns():
    from accelerate.utils import send_to_device
    from lightning.pytorch.utilities import move_data_to_device

    for move in (send_to_device, move_data_to_device):
        column = tensors(column_of([2, 3]))
        batch = move({"tokens": column, "varlen": column.varlen()}, torch.device("meta"))
        assert batch["tokens"].values.device.type == batch["tokens"].offsets.device.type == "meta"
        assert batch["varlen"].cu_seqlens.device.type == "meta"
        assert batch["varlen"].max_seqlen == 3


def test_loaders_of_torch_pin_and_convert_columns(monkeypatch):
    from torch.utils.data._utils.pin_memory import pin_memory

    pinned = []

    def note(tensor, *_):
        pinned.append(tensor)
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", note)
    column = tensors(column_of([2, 3]))
    batch = pin_memory(default_convert({"tokens": column, "varlen": column.varlen()}), "cpu")
    assert len(pinned) == 4
    assert type(batch["tokens"]) is RaggedTensor
    assert type(batch["varlen"]) is VariableLength


def test_rows_of_a_collate_fn_become_a_column():
    rows = [torch.arange(3), torch.arange(0), np.arange(2)]
    column = RaggedTensor.of_rows(rows)
    assert [row.tolist() for row in column] == [[0, 1, 2], [], [0, 1]]
    assert RaggedTensor.of_rows([], torch.int32, (None, 4)).pad(2).shape == (0, 2, 4)
    with refused(TypeError, "row 1", "torch.float32"):
        RaggedTensor.of_rows([torch.arange(3), torch.zeros(2)])


@pytest.mark.slow  # for them torch imports its compiler
def test_nested_tensors_share_the_memory():
    column = tensors(column_of([2, 3], "float32"))
    nested = column.nested()
    assert nested.values().data_ptr() == column.values.data_ptr()
    assert [row.tolist() for row in nested.unbind()] == [row.tolist() for row in column]


@pytest.mark.parametrize("as_tensor", [False, True])
def test_what_makes_no_sense_is_refused(as_tensor):
    make = tensors if as_tensor else (lambda column: column)
    column = make(column_of([2, 5, 1]))
    with refused(ValueError, "to="):
        column.pad(4)
    with refused(ValueError, "row 1"):
        column.mask(4)
    with refused(ValueError, "multiple="):
        column.pad(multiple=0)
    for value in (0.5, 1 << 40):
        with pytest.raises(ValueError, match="does not fit"):
            column.pad(value=value)
    with refused(ValueError, "-100"):
        make(column_of([1], "uint8")).pad(value=-100)
    assert np.isnan(np.asarray(make(column_of([1], "float32")).pad(2, value=np.nan))[0, 1])
    assert np.asarray(make(column_of([1], "float32")).pad(2, value=0.1))[0, 1] == np.float32(0.1)
    backwards = make(RaggedColumn(np.arange(3), np.array([0, 3, 1])))
    for call in (backwards.pad, backwards.varlen, backwards.position_ids):
        with refused(ValueError, "row 1", "-2"):
            call()
    text = make(RaggedColumn(["a"], np.array([0, 1])))
    shaped = make(RaggedColumn(np.arange(4), np.array([0, 4]), np.array([[2, 2]])))
    for odd in (text, shaped, make(RaggedColumn(column_of([1, 1]), np.array([0, 2])))):
        for call in (odd.pad, odd.varlen):
            with pytest.raises(TypeError, match="rows of"):
                call()


# ---------------------------------------------------------------------------------------------- from datasets


def tokens_of(n):
    return {"n": n, "tokens": np.arange(n % 7, dtype=np.int32) + n}


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    schema = {"n": "int64", "tokens": "int32[?]"}
    return shardio.open(
        write(tmp_path_factory.mktemp("ragged") / "d", [60, 40], schema=schema, value=tokens_of)
    )


def check(batch):
    """Hold the tokens of a batch against its numbers."""
    column = batch["tokens"]
    wanted = [tokens_of(n)["tokens"].tolist() for n in batch["n"].tolist()]
    assert [row.tolist() for row in column] == wanted
    values, cu_seqlens, _ = column.varlen()
    assert values.tolist() == [token for row in wanted for token in row]
    assert cu_seqlens.tolist() == np.cumsum([0, *map(len, wanted)]).tolist()
    assert column.pad(8, value=-1).tolist() == [[*row, *[-1] * (8 - len(row))] for row in wanted]


def test_columns_of_lookups_and_streams(ds):
    check(ds.read_batch([5, 3, 99]))
    batches = list(shardio.stream(ds, global_batch=8, remainder="keep"))
    assert len(batches) == 13
    for batch in batches:
        check(batch)


@WAYS
def test_columns_of_loaders(ds, way):
    """Through threads and worker processes, every batch; the loader's own, torch's and torchdata's."""
    data = StreamingDataset(ds, global_batch=8, remainder="keep", plan=plan())
    batches = list(StreamingDataLoader(data, **way))
    assert len(batches) == 13
    for batch in batches:
        assert type(batch["tokens"]) is RaggedTensor
        check(batch)
    workers = way.get("num_workers", 0)
    for loader in (DataLoader, StatefulDataLoader):
        batches = list(
            loader(StreamingDataset(ds, global_batch=8, plan=plan()), batch_size=None, num_workers=workers)
        )
        assert len(batches) == 12
        for batch in batches:
            assert type(batch["tokens"]) is RaggedTensor
            check(batch)
    assert type(pickle.loads(pickle.dumps(batches[0]["tokens"]))) is RaggedTensor
