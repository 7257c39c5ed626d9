"""What a batch looks like: of every encoding, with every option, however many rows a rank gets."""

from __future__ import annotations

import io

import numpy as np
import pytest

import shardio
from shardio.codecs import RaggedColumn
from tests.streaming.datasets import RICH, flat, memory_url, plan, rich_value, write

pytestmark = pytest.mark.filterwarnings("ignore:some chunks are fetched more than once:UserWarning")
THREADS = pytest.mark.parametrize("threads", [0, 2])


@pytest.fixture(scope="module")
def rich():
    return {
        encoding: shardio.open(
            write(memory_url(), [9, 1, 22, 5], schema=RICH, value=rich_value, encoding=encoding)
        )
        for encoding in ("example", "tensors")
    }


@pytest.fixture(scope="module")
def steps():
    schema = {
        "context": {"n": "int64", "text": "text"},
        "feature_lists": {"step": "float32[2]", "ids": "int64[?]"},
    }
    value = lambda n: {  # noqa: E731
        "context": {"n": n, "text": f"record {n}"},
        "feature_lists": {"step": np.full((n % 4, 2), n), "ids": [range(k) for k in range(n % 3)]},
    }
    return shardio.open(write(memory_url(), [9, 25], schema=schema, value=value, encoding="sequence_example"))


def same(column, expected):
    """Compare a column with the one that a lookup gives."""
    assert type(column) is type(expected)
    if isinstance(column, dict):
        assert column.keys() == expected.keys()
        for name in column:
            same(column[name], expected[name])
    elif isinstance(column, RaggedColumn) and isinstance(column.values, RaggedColumn):
        assert len(column) == len(expected)
        for mine, theirs in zip(column, expected, strict=True):
            same(mine, theirs)
    elif isinstance(column, RaggedColumn):
        for mine, theirs in zip(column, expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)
            assert mine.dtype == theirs.dtype
    elif isinstance(column, np.ndarray):
        np.testing.assert_array_equal(column, expected)
        assert column.dtype == expected.dtype
    else:
        assert column == expected


@THREADS
@pytest.mark.parametrize("encoding", ["example", "tensors"])
def test_a_batch_is_what_a_lookup_of_its_positions_gives(rich, encoding, threads):
    ds = rich[encoding]
    stream = shardio.stream(
        ds, global_batch=8, plan=plan(), remainder="keep", positions=True, num_threads=threads
    )
    seen = []
    for batch in stream:
        positions = batch.pop("_position")
        seen += positions.tolist()
        expected = ds.read_batch(positions)
        assert batch.keys() == expected.keys()
        for name, column in batch.items():
            same(column, expected[name])
    assert sorted(seen) == list(range(len(ds)))


@THREADS
def test_steps_of_steps(steps, threads):
    stream = shardio.stream(
        steps, global_batch=4, plan=plan(), remainder="keep", positions=True, num_threads=threads
    )
    for batch in stream:
        same(batch, {**steps.read_batch(batch["_position"]), "_position": batch["_position"]})


def test_one_array_without_an_envelope():
    url = write(
        memory_url(),
        [30],
        schema={"x": "int32[3]"},
        value=lambda n: {"x": np.full(3, n, np.int32)},
        encoding="array",
    )
    batches = list(shardio.stream(shardio.open(url), global_batch=4, shuffle=False))
    assert [batch["x"].shape for batch in batches] == [(4, 3)] * 7
    assert batches[2]["x"][:, 1].tolist() == [8, 9, 10, 11]
    assert batches[0]["x"].flags.writeable


def test_without_a_schema_records_are_payloads():
    url = write(memory_url(), [10], value=lambda n: b"%d" % n)
    ds = shardio.open(url)
    assert list(shardio.stream(ds, global_batch=5, shuffle=False)) == [
        {"payload": [b"0", b"1", b"2", b"3", b"4"]},
        {"payload": [b"5", b"6", b"7", b"8", b"9"]},
    ]
    lengths = shardio.stream(ds, global_batch=5, shuffle=False, transform=len)
    assert [batch["value"].tolist() for batch in lengths] == [[1] * 5, [1] * 5]


def test_payloads_and_chosen_features(rich):
    ds = rich["example"]
    raw = shardio.open(ds.source.url, decode=False)
    payloads = flat(batch["payload"] for batch in shardio.stream(raw, global_batch=37, shuffle=False))
    assert payloads == list(raw)
    few = shardio.open(ds.source.url, features=["n", "tokens"])
    assert {tuple(batch) for batch in shardio.stream(few, global_batch=8)} == {("n", "tokens")}


def png(n, size):
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", size, (n, 0, 0)).save(out, "PNG")
    return out.getvalue()


@THREADS
def test_images_are_decoded_and_look_the_same_whoever_delivers_them(threads):
    """Whether images of a batch are one array depends on that batch alone, not on its neighbours."""
    url = write(
        memory_url(),
        [24],
        schema={"n": "int64", "image": "png"},
        value=lambda n: {"n": n, "image": png(n, (3, 2) if n < 10 else (3, 2 + n % 2))},
    )
    ds = shardio.open(url, decode="image")
    stream = shardio.stream(ds, global_batch=4, shuffle=False, num_threads=threads)
    images = [batch["image"] for batch in stream]
    assert [isinstance(column, np.ndarray) for column in images] == [True, True, False, False, False, False]
    assert images[1].shape == (4, 2, 3, 3)
    assert [int(image[0, 0, 0]) for column in images for image in column] == list(range(24))


@THREADS
@pytest.mark.parametrize(
    "options", [{}, {"transform": lambda v: {"x": v["box"], "n": v["n"], "t": v["text"]}}]
)
def test_a_rank_without_rows_gets_an_empty_batch_like_any_other(rich, options, threads):
    """A rank may get a batch of 0 rows with the right keys, dtypes and trailing shapes."""
    shares = []
    for rank in range(6):
        stream = shardio.stream(
            rich["example"],
            global_batch=6,
            plan=plan(ranks=2),
            rank=rank,
            world_size=6,
            remainder="keep",
            num_threads=threads,
            **options,
        )
        shares.append(list(stream))
    assert {len(share) for share in shares} == {7}
    last = [share[-1] for share in shares]
    assert sorted(len(batch["n"]) for batch in last) == [0] * 5 + [1]
    for batch, whole in zip(last, (share[0] for share in shares), strict=True):
        assert batch.keys() == whole.keys()
        for name, column in whole.items():
            assert type(batch[name]) is type(column)
            if isinstance(column, np.ndarray):
                assert batch[name].dtype == column.dtype
                assert batch[name].shape[1:] == column.shape[1:]


@pytest.mark.parametrize("options", [{"transform": lambda v: {"n": v["n"], "x": v["box"]}}, {}])
def test_an_empty_batch_comes_first_too(rich, options):
    """Resumed at the last step, a rank has seen no other batch to make an empty one like."""
    ds = rich["example"][:7]
    given = {"global_batch": 3, "plan": plan(ranks=1, workers=1), "remainder": "keep", **options}
    one = shardio.stream(ds, **given)
    it = iter(one)
    next(it), next(it)
    state = one.state_dict()
    shares = []
    for rank in range(3):
        stream = shardio.stream(ds, rank=rank, world_size=3, **given)
        stream.load_state_dict(state)
        (batch,) = list(stream)
        shares.append(batch)
    assert sorted(len(batch["n"]) for batch in shares) == [0, 0, 1]
    name = "x" if options else "box"
    assert {batch[name].shape[1:] for batch in shares} == {(2, 2)}
    assert {batch[name].dtype for batch in shares} == {np.dtype(np.float32)}


def test_images_of_an_empty_batch_keep_their_shape():
    url = write(memory_url(), [3], schema={"image": "png"}, value=lambda n: {"image": png(n, (5, 4))})
    stream = shardio.stream(
        shardio.open(url, decode="image"), global_batch=2, remainder="keep", rank=0, world_size=2
    )
    assert [batch["image"].shape for batch in stream] == [(1, 4, 5, 3), (0, 4, 5, 3)]


def test_tensors_of_a_batch_stack_whatever_was_decoded_with_them():
    """Rows of two shapes that are decoded together; and a batch without rows, like any other."""
    url = write(
        memory_url(), [7], schema={"x": "tensor:float32"}, value=lambda n: {"x": np.ones(2 if n < 4 else 3)}
    )
    given = {"global_batch": 2, "remainder": "keep", "shuffle": False, "world_size": 2}
    found = [list(shardio.stream(shardio.open(url), rank=rank, **given)) for rank in range(2)]
    shapes = [[batch["x"].shape for batch in share] for share in found]
    assert shapes == [[(1, 2), (1, 2), (1, 3), (0, 2)], [(1, 2), (1, 2), (1, 3), (1, 3)]]


class Point:
    def __init__(self, n):
        self.n = n


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda v: v["n"], np.int64),
        (lambda v: float(v["n"]), np.float64),
        (lambda v: v["box"], np.float32),
        (lambda v: bool(v["n"]), np.bool_),
    ],
)
def test_what_a_transform_returns_becomes_one_column(rich, made, expected):
    batch = next(iter(shardio.stream(rich["example"], global_batch=4, transform=made)))
    assert list(batch) == ["value"]
    assert batch["value"].dtype == expected


def test_other_objects_stay_a_list(rich):
    batch = next(iter(shardio.stream(rich["example"], global_batch=4, transform=lambda v: Point(v["n"]))))
    assert [type(item) for item in batch["value"]] == [Point] * 4


def test_names_that_differ_from_record_to_record_are_refused(rich):
    stream = shardio.stream(
        rich["example"], global_batch=37, transform=lambda v: {"even" if v["n"] % 2 == 0 else "odd": 1}
    )
    with pytest.raises(ValueError, match="the same names for every record"):
        list(stream)


def test_a_batch_transform_sees_columns_and_may_return_anything(rich):
    stream = shardio.stream(
        rich["example"], global_batch=9, batch_transform=lambda c: (c["n"] * 2, len(c)), positions=True
    )
    doubled, count = next(iter(stream))
    assert count == len(RICH) + 1
    assert (doubled % 2 == 0).all()
