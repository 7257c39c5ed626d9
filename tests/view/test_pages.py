"""Pages as values, without a server: every kind of dataset, damage, secrets, and how little is read."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

import shardio
from shardio.errors import CorruptBlockError, StorageError
from shardio.view import Pages, Search
from shardio.view._statistics import summarize
from tests.suites.errors import refused
from tests.view import made


def all_pages(pages: Pages, **which) -> dict:
    """Every page that needs no question, as JSON holds it."""
    split = which.get("split") or pages.summary()["shown_split"]
    found = {
        "summary": pages.summary(),
        "shards": pages.shards(split=split),
        "seen": pages.seen(split=split),
        "versions": pages.versions(),
        "records": pages.records(split=split),
        "record": pages.record(split=split, position=0),
        "statistics": pages.statistics(split=split),
    }
    # No NaN, no bytes, no NumPy: what comes back is what was sent.
    assert json.loads(json.dumps(found, allow_nan=False)) == json.loads(json.dumps(found))
    return found


@pytest.mark.parametrize("make", made.KINDS, ids=lambda make: make.__name__)
def test_every_kind_of_dataset_has_its_pages(make, tmp_path):
    kinds = make(tmp_path / "ds")
    pages = Pages(tmp_path / "ds")
    found = all_pages(pages)
    assert "error" not in found["record"]
    for shown in (found["records"]["records"][0], found["record"]):
        assert {name: cell["kind"] for name, cell in shown["cells"]} == kinds
    assert {each["name"] for each in found["statistics"]["features"]} == set(kinds)
    # The address is where the record is, and its bytes are the payload's.
    ds = shardio.open(tmp_path / "ds", found["summary"]["shown_split"], decode=False)
    for record in found["records"]["records"]:
        place = ds.locate(record["position"])
        whole = pages.record(position=record["position"])
        assert {name: whole[name] for name in place._fields} == place._asdict()
    assert bytes.fromhex(found["record"]["hex"]) == ds[0][:1024]
    assert pages.content(position=0).data == ds[0]
    # Images are remade, audio is what it was, and both are of types that browsers show and do not run.
    for name, cell in found["record"]["cells"]:
        for each in [cell, *cell.get("items", [])]:
            if isinstance(each, dict) and (each["kind"] in ("image", "audio") or each.get("picture")):
                media = pages.media(position=0, path=each["path"])
                wanted = {"audio/wav"} if each["kind"] == "audio" else {"image/png", "image/jpeg"}
                assert media.type in wanted, name


@pytest.mark.parametrize(
    "place",
    [
        *("v1/none", "v1/gzip", "v1/deleted", "v1/empty", "v1/tensors", "v1/array"),
        *("schema/birds", "sidecars/birds", "lifecycle/birds"),
    ],
)
def test_golden_datasets_have_their_pages(place):
    pages = Pages(made.GOLDEN / place)
    for split in pages.summary()["splits"]:
        found = all_pages(pages, split=split)
        assert found["records"]["total"] == found["summary"]["splits"][split]["records"]


def test_statistics_are_of_the_records(tmp_path):
    made.values(tmp_path / "ds")
    found = {each["name"]: each for each in Pages(tmp_path / "ds").statistics(split="train")["features"]}
    assert found["label"]["top"] == [["wren (0)", 10], ["robin (1)", 10]]
    assert (found["weight"]["present"], found["weight"]["missing"]) == (0, 20)
    assert (found["label"]["present"], found["label"]["missing"]) == (20, 0)
    assert ["NaN", "12"] in found["mel"]["facts"]
    assert ["width", "24 pixels"] in found["image"]["facts"]
    assert found["tokens"]["lengths"]["edges"][0] == 0
    assert ["max", "36"] in found["curve"]["facts"]


def test_a_sample_is_even_and_classes_have_no_mean(tmp_path):
    schema = {"n": "int64", "label": shardio.Feature("int64", classes=["wren", "robin"]), "tree": "json"}
    with shardio.DatasetWriter(tmp_path / "ds", schema=schema) as out:
        for n in range(4096):
            out.write({"n": n, "label": n % 2, "tree": {"a": n, **({"b": 1} if n % 2 else {})}})
    found = Pages(tmp_path / "ds").statistics(sample=256)
    features = {each["name"]: each for each in found["features"]}
    counts = features["n"]["histogram"]["counts"]
    assert sum(counts) == found["records"] == 256
    assert max(counts) <= min(counts) + 2, "a uniform number has no spikes"
    assert [fact[0] for fact in features["label"]["facts"]] == ["distinct"]
    assert {name for name, _ in features["label"]["top"]} == {"wren (0)", "robin (1)"}
    assert features["tree"]["top"][0] == ["a", 256]
    assert ["names", "1 to 2 in an object"] in features["tree"]["facts"]


def test_arrays_of_strings_are_counted_by_their_type():
    values = [{"names": np.array(["wren", "robin"]), "name": np.str_("wren"), "data": np.bytes_(b"x")}] * 2
    found = {each["name"]: each["facts"] for each in summarize(values, None)}
    assert found["names"] == [["kinds", "ndarray (2)"]]
    assert ["characters", "4"] in found["name"]
    assert ["characters", "1"] in found["data"]


def test_train_is_shown_first(tmp_path):
    with shardio.DatasetWriter(tmp_path / "ds") as out:
        for split in ("validation", "train", "a"):
            out.write(b"x", split=split)
    summary = Pages(tmp_path / "ds").summary()
    assert list(summary["splits"]) == ["train", "a", "validation"]
    assert summary["shown_split"] == "train"


NUMBERS = st.one_of(
    arrays.arrays(np.int64, st.integers(1, 50)),
    arrays.arrays(np.uint64, st.integers(1, 50)),
    arrays.arrays(np.float64, st.integers(1, 50)),
    arrays.arrays(np.bool_, st.integers(1, 50)),
    arrays.arrays(np.int64, st.integers(1, 50), elements=st.integers(-20, 20)),
)


def histogram(numbers: np.ndarray, folder: Path) -> dict | None:
    """Return the histogram of the items of one array in a record."""
    with shardio.DatasetWriter(folder, {"x": f"{numbers.dtype}[?]"}, mode="overwrite") as out:
        out.write({"x": numbers})
    return Pages(folder).statistics()["features"][0]["histogram"]


@given(numbers=NUMBERS)
def test_a_histogram_counts_every_finite_number_once(tmp_path_factory, numbers):
    finite = numbers[np.isfinite(numbers)]
    found = histogram(numbers, tmp_path_factory.mktemp("ds"))
    json.dumps(found, allow_nan=False)
    if found is None:
        assert not len(finite)
    else:
        assert sum(found["counts"]) == len(finite)
        assert len(found["edges"]) == len(found["counts"]) + 1
        edges = [int(edge.replace(",", "")) if isinstance(edge, str) else edge for edge in found["edges"]]
        assert edges == sorted(edges)
        if found["whole"]:
            assert found["counts"] == [int((finite == edge).sum()) for edge in edges[:-1]]
        # What JavaScript reads of it is the same number.
        as_doubles = [edge if isinstance(edge, str) else float(edge) for edge in found["edges"]]
        assert as_doubles == found["edges"]


@pytest.mark.parametrize("first", [0, 2**53 - 40, 2**53 - 10, 2**60, -(2**60)])
def test_whole_numbers_have_a_bin_of_their_own_under_their_own_name(tmp_path, first):
    edges = histogram(np.arange(first, first + 25), tmp_path)["edges"]
    assert all(isinstance(edge, str) or abs(edge) <= 2**53 for edge in edges)
    assert [int(str(edge).replace(",", "")) for edge in edges] == list(range(first, first + 26))


@pytest.mark.parametrize("values", [range(41), range(1, 65), range(-50, 50)])
def test_even_whole_numbers_make_even_bins(tmp_path, values):
    found = histogram(np.array(values), tmp_path)
    *inner, last = found["counts"]
    assert len(set(inner)) == 1
    assert last <= inner[0]
    assert all(float(edge).is_integer() for edge in found["edges"])


def test_an_array_of_one_number_is_an_array_where_a_schema_says_so(tmp_path):
    with shardio.DatasetWriter(tmp_path / "ds", {"tokens": "int32[?]"}) as out:
        out.write({"tokens": [7]})
    pages = Pages(tmp_path / "ds")
    ((name, cell),) = pages.records()["records"][0]["cells"]
    assert (name, cell["kind"], cell["shape"]) == ("tokens", "array", [1])
    (found,) = pages.statistics()["features"]
    assert ["shape", "[1]"] in found["facts"]


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint64])
def test_whole_numbers_deviate_by_what_they_do_at_both_ends_of_their_type(tmp_path, dtype):
    ends = np.iinfo(dtype)
    for values in ([ends.max - 2, ends.max], [ends.min, ends.min + 2]):
        with shardio.DatasetWriter(tmp_path, {"n": dtype.__name__}, mode="overwrite") as out:
            for value in values:
                out.write({"n": value})
        (found,) = Pages(tmp_path).statistics()["features"]
        assert dict(found["facts"])["std"] == "1"


@pytest.mark.parametrize(
    ("plane", "shades"),
    [
        ([[-1.7e308, 1.7e308], [0.0, 1.0]], [[0, 255], [128, 128]]),
        ([[0.0, 5e-324], [0.0, 5e-324]], [[0, 0], [0, 0]]),
        ([[np.nan, np.inf], [-np.inf, 1.0]], [[-1, -1], [-1, 0]]),
        ([[np.nan, np.nan], [np.nan, np.nan]], [[-1, -1], [-1, -1]]),
    ],
)
def test_any_numbers_make_a_heat_map(tmp_path, plane, shades):
    with shardio.DatasetWriter(tmp_path, {"plane": "float64[2,2]"}) as out:
        out.write({"plane": np.array(plane)})
    ((_, cell),) = Pages(tmp_path).records()["records"][0]["cells"]
    assert cell["heat"]["rows"] == shades


@pytest.mark.parametrize(
    "lists", [[[1, "a"], [2]], [[1, [2, [3]]], [2]], [[1, {"a": 1}]], [["a", 1]], [[None, 1], [1, None]]]
)
def test_lists_of_json_hold_anything(tmp_path, lists):
    with shardio.DatasetWriter(tmp_path / "ds", {"j": "json"}) as out:
        for each in lists:
            out.write({"j": each})
    (found,) = Pages(tmp_path / "ds").statistics()["features"]
    assert found["present"] == len(lists)
    assert found["facts"][0][0] == "items"


def test_a_sample_of_large_records_is_small(tmp_path, monkeypatch):
    """Records of a gigabyte: a page and a sample hold one, not sixteen."""
    with shardio.DatasetWriter(tmp_path / "ds", {"b": "bytes"}) as out:
        for _ in range(40):
            out.write({"b": bytes(2000)})
    monkeypatch.setattr("shardio.view._pages._SAMPLE_BYTES", 5000)
    monkeypatch.setattr("shardio.view._pages._PAGE_BYTES", 5000)
    pages = Pages(tmp_path / "ds")
    assert pages.statistics()["records"] == 2
    assert len(pages.records(count=10**9)["records"]) == 2


def test_damage_in_the_first_records_is_not_called_another_kind_of_record(tmp_path):
    made.examples(tmp_path / "ds")
    (shard,) = (tmp_path / "ds" / "data").glob("*.tfrecord")
    data = bytearray(shard.read_bytes())
    data[-20] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CorruptBlockError):
        Pages(tmp_path / "ds").seen()


def test_damage_stands_in_its_place_and_hides_no_other_record(tmp_path):
    with shardio.DatasetWriter(tmp_path / "ds", {"n": "int64"}, block_bytes=1000) as out:
        for n in range(200):
            out.write({"n": n})
    ds = shardio.open(tmp_path / "ds")
    place = ds.locate(100)
    with Path(place.url).open("r+b") as file:
        file.seek(place.start + 13)
        byte = file.read(1)
        file.seek(place.start + 13)
        file.write(bytes([byte[0] ^ 1]))
    pages = Pages(tmp_path / "ds")
    found = pages.records(start=60, count=80)["records"]
    damaged = {each["position"] for each in found if "error" in each}
    assert 100 in damaged
    assert 0 < len(damaged) < 40
    assert all(each["cells"] for each in found if each["position"] not in damaged)
    error = next(each["error"] for each in found if "error" in each)
    assert error["kind"] == "CorruptBlockError"
    assert place.shard in error["shard"]
    assert pages.statistics()["unreadable"] == len(damaged)


@pytest.mark.filterwarnings("ignore:.* shards:UserWarning")  # some are in no index and no table
def test_what_is_looked_for_is_found(tmp_path):
    url = tmp_path / "birds"
    shutil.copytree(made.GOLDEN / "sidecars" / "birds", url)
    ds = shardio.open(url)
    pages = Pages(url)
    assert set(pages.summary()["keys"]) == set(ds.key_features)
    key = ds[5]["id"]

    def found_of(**words: str) -> list[int]:
        found = pages.records(asked=Search(**words), count=1000)
        assert found["total"] == len(found["records"])
        return [each["position"] for each in found["records"]]

    assert found_of(key=key, feature="id") == ds.find_all(key, feature="id").tolist()
    number = int(ds[5]["number"])
    assert found_of(key=str(number), feature="number") == ds.find_all(number, feature="number").tolist()
    with refused(ValueError, "integers"):
        found_of(key="x", feature="number")
    found = found_of(where=f"number = {number}")
    assert number in {int(ds[position]["number"]) for position in found}
    assert len(found) == len(ds.filter(f"number = {number}"))


@pytest.mark.filterwarnings("ignore:records are read:UserWarning")
def test_a_search_is_paged_over_all_that_it_finds_and_its_code_finds_the_same(tmp_path):
    schema = {"n": "int64", "score": shardio.Feature("float32", optional=True), 'a "b"': "text"}
    numbers = np.random.default_rng(3).permutation(3000)
    with shardio.DatasetWriter(tmp_path / "ds", schema) as out:
        for n in numbers.tolist():
            score = {} if n % 7 == 0 else {"score": n / 4}
            out.write({"n": n, 'a "b"': f"It's {n}", **score})
    pages = Pages(tmp_path / "ds")
    asked = Search(where="n >= 1000", text="IT'S 2", sort="score", descending=True)
    wanted = [n for n in range(3000) if n >= 1000 and str(n).startswith("2")]
    wanted = sorted((n for n in wanted if n % 7), reverse=True) + [
        n for n in numbers if n in wanted and n % 7 == 0
    ]
    seen = []
    while len(seen) < len(wanted):
        found = pages.records(start=len(seen), count=150, asked=asked)
        assert (found["total"], found["all"]) == (len(wanted), 3000)
        names: dict = {}
        exec(found["python"], names)
        assert names["records"].selection.tolist() == [each["position"] for each in found["records"]]
        seen += [int(dict(each["cells"])["n"]["text"]) for each in found["records"]]
    assert seen == wanted
    assert pages.statistics(asked=asked)["total"] == len(wanted)
    assert len(pages.records(count=5000)["records"]) == 1000
    for wrong, words in ((Search(sort="scor"), "did you mean 'score'"), (Search(where="n ="), "n =")):
        with pytest.raises(ValueError, match=words):
            pages.records(asked=wrong)


def test_what_has_no_order_and_no_text_is_said(tmp_path):
    with shardio.DatasetWriter(tmp_path / "ds", {"v": "float32[3]"}) as out:
        out.write({"v": [1, 2, 3]})
    for wrong, words in ((Search(sort="v"), "has no order"), (Search(text="x"), "feature of type text")):
        with pytest.raises(ValueError, match=words):
            Pages(tmp_path / "ds").records(asked=wrong)


@pytest.mark.filterwarnings("ignore:records are read:UserWarning")
def test_conditions_made_of_a_chart_find_what_the_chart_counts(tmp_path):
    schema = {
        "n": "int64",
        "x": "float32",
        "label": shardio.Feature("int64", classes=["a'", "b"]),
        "t": "text",
    }
    rng = np.random.default_rng(1)
    with shardio.DatasetWriter(tmp_path / "ds", schema) as out:
        for k in range(200):
            out.write({"n": k % 5, "x": rng.normal(), "label": k % 2, "t": f"it's {k % 3}"})
    pages = Pages(tmp_path / "ds")
    features = {each["name"]: each for each in pages.statistics(sample=2000)["features"]}
    for name in ("n", "label", "t"):
        for (_, number), value in zip(features[name]["top"], features[name]["literals"], strict=True):
            assert pages.records(asked=Search(where=f'"{name}" = {value}'))["total"] == number
    chart = features["x"]["histogram"]
    low, high = chart["edges"][0], chart["edges"][-1]
    assert pages.records(asked=Search(where=f"x >= {low} AND x <= {high}"))["total"] == 200


def test_an_image_has_all_its_pixels(tmp_path):
    pixels = np.random.default_rng(2).integers(0, 256, (90, 3000, 3), np.uint8)
    with shardio.DatasetWriter(tmp_path / "ds", {"image": "uint8[90,3000,3]"}) as out:
        out.write({"image": pixels})
    found = Pages(tmp_path / "ds").media(position=0, path=["image"], edge=0)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(found.data))), pixels)


def test_versions_come_from_the_latest(tmp_path):
    for n in range(5):
        with shardio.DatasetWriter(tmp_path / "ds", {"n": "int64"}, mode="append") as out:
            out.write({"n": n})
    shardio.tag(tmp_path / "ds", "good", version=2)
    pages = Pages(tmp_path / "ds")
    found = pages.versions(count=4)
    assert [each["version"] for each in found["versions"]] == [6, 5, 4, 3]
    rest = pages.versions(before=3)
    assert [(each["version"], each["tags"]) for each in rest["versions"]] == [(2, ["good"]), (1, [])]
    assert not rest["earlier"]
    assert pages.summary("good")["version"] == 2
    assert pages.records("good")["total"] == 2


def test_secrets_are_on_no_page(tmp_path):
    """Values of storage options stay out of pages and errors, also those that hide in an address."""
    secret = "hunter2-and-more"
    pages = Pages("s3://bucket/none", storage_options={"key": "someone-else", "secret": secret})
    error = StorageError(f"denied for {secret}", url=f"https://user:{secret}@host/x?X-Amz-Signature={secret}")
    shown = json.dumps(pages.describe(error))
    assert secret not in shown
    assert "host/x" in shown
    shown = json.dumps(pages.describe(StorageError("no", url="https://u:pw@host/x?sig=abc,def")))
    assert "pw" not in shown
    assert "abc" not in shown


@pytest.mark.parametrize(
    ("name", "text"), [("tokenizer.json", "a wren sings"), ("../tokenizer.json", None), ("broken.json", None)]
)
def test_tokens_are_decoded_where_the_metadata_names_a_tokenizer(name, text, tmp_path):
    """A key within the dataset; labels that are no tokens, and files that are no tokenizer, stay numbers."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: number for number, word in enumerate(["a", "wren", "sings"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="a"))
    features = {"tokens": "int32[?]", "labels": "int64[3]", "n": "int64"}
    with shardio.DatasetWriter(tmp_path / "ds", features, metadata={"tokenizer": name}) as out:
        out.write({"tokens": [0, 1, 2], "labels": [-100, 1, 2], "n": 1})
    for place in (tmp_path, tmp_path / "ds"):
        tokenizer.save(str(place / "tokenizer.json"))
        (place / "broken.json").write_text("{")
    cells = dict(Pages(tmp_path / "ds").record(position=0)["cells"])
    assert cells["tokens"].get("tokens") == text
    assert "tokens" not in cells["labels"]
    assert "tokens" not in cells["n"]
