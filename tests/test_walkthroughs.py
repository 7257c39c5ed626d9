"""The walk-throughs of the field on small input: what `docs/training` shows is kept working."""

from __future__ import annotations

import importlib.util
import io
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

import shardio

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"shardio_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[f"shardio_{name}"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bert() -> ModuleType:
    return example("bert_pretraining")


def test_sentences(bert, tmp_path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("One. Two is\nlonger! Is e.g. this one?\n\nA paragraph", encoding="utf-8")
    assert list(bert.sentences(str(path))) == ["One.", "Two is longer!", "Is e.g. this one?", "A paragraph"]


@pytest.mark.slow
def test_bert_from_text_to_training_steps(bert, tmp_path) -> None:
    metadata = bert.write_manual(tmp_path, documents=12)
    train_files, val_files = (bert.listed(file, tmp_path / "corpus") for file in metadata)
    assert (len(train_files), len(val_files)) == (11, 1)
    vocab_file = tmp_path / "words" / "pieces.txt"
    bert.learn_vocabulary(train_files, vocab_file, do_lower_case=True, size=300)
    settings = bert.Settings(str(vocab_file), max_seq_length=32, max_predictions_per_seq=6)
    url = tmp_path / "dataset"
    with ThreadPoolExecutor(1) as executor:
        counts = bert.build(url, train_files, val_files, settings, executor=executor)
    assert min(counts.values()) > 20

    words = vocab_file.read_text(encoding="utf-8").splitlines()
    texts = {path: " ".join(bert.sentences(path)).lower() for path in val_files}
    for record in shardio.open(url, split="val"):
        ids, count = record["input_ids"], int(record["masked_lm_weights"].sum())
        places, labels = record["masked_lm_positions"][:count], record["masked_lm_ids"][:count]
        assert words[ids[0]] == "[CLS]"
        assert words[ids[record["input_mask"].sum() - 1]] == "[SEP]"
        assert not ids[~record["input_mask"]].any()
        assert len(set(places.tolist())) == count <= 6
        # With the masks undone, the example is a piece of a document again.
        ids = ids.copy()
        ids[places] = labels
        pieces = [words[n] for n in ids[record["input_mask"]]][1:-1]
        text = "".join(piece.removeprefix("##") for piece in pieces if piece != "[UNK]")
        assert any(text[:20] in "".join(whole.split()) for whole in texts.values())
    masked = [
        words[record["input_ids"][place]]
        for record in shardio.open(url, split="train")
        for place in record["masked_lm_positions"][: int(record["masked_lm_weights"].sum())]
    ]
    assert 0.7 < masked.count("[MASK]") / len(masked) < 0.9

    before, after = bert.train(url, len(words), 32, steps=12)
    assert after < before


def test_case_is_kept_where_asked(bert, tmp_path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nBird\nbird\n", encoding="utf-8")
    lower, kept = (
        bert.tokenizer_of(str(tmp_path / "vocab.txt"), flag).encode("Bird", add_special_tokens=False).tokens
        for flag in (True, False)
    )
    assert (lower, kept) == (["bird"], ["Bird"])


def blocks() -> list[str]:
    page = Path(__file__).parent.parent / "docs" / "training" / "language-models.md"
    text, _, _ = page.read_text(encoding="utf-8").partition("## BERT")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
def test_tokens_for_a_language_model(tmp_path, monkeypatch, capsys) -> None:
    """The page as it is printed, in an empty folder; the model's own check of the mask is part of it."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "page"}
    for number, code in enumerate(blocks()):
        exec(compile(code, f"block {number}", "exec"), names)
    said = capsys.readouterr().out
    assert re.search(r"1,024, 9\d\.\d+% full; \d+ longer documents cut", said), said
    assert names["rows"].report.fill > 0.99
    assert names["row"]["segment_ids"].max() > 5
    assert names["state"]["step"] == 6
    assert min(names["more"]) < names["losses"][0]
    assert names["padded"].shape == names["mask"].shape
    assert int(names["mask"].sum()) == len(names["values"]) == int(names["cu_seqlens"][-1])
    # The check of the mask can fail: without segments, documents see each other.
    blind = next(code for code in blocks() if "assert_close" in code)
    blind = blind.replace(
        "model(**row)", 'model(**{**row, "segment_ids": torch.ones_like(row["segment_ids"])})'
    )
    with pytest.raises(AssertionError, match="not close"):
        exec(compile(blind, "without segments", "exec"), names)


@pytest.fixture(scope="module")
def formats() -> ModuleType:
    return example("image_formats")


def test_png_keeps_every_pixel(formats, tmp_path) -> None:
    assert np.array_equal(formats.png(tmp_path / "d"), formats.photograph())


def test_jpeg_keeps_the_file(formats, tmp_path) -> None:
    stored, pixels = formats.jpeg(tmp_path / "d")
    with Image.open(io.BytesIO(stored)) as image:
        assert image.format == "JPEG"
        assert np.array_equal(np.asarray(image), pixels)
    assert np.abs(pixels.astype(int) - formats.photograph()).mean() < 20


def test_tiff_keeps_every_bit(formats, tmp_path) -> None:
    eight_bits, whole = formats.tiff(tmp_path / "d")
    assert whole.dtype == np.uint16
    assert np.array_equal(eight_bits[:, :, 0], whole >> 8)
    assert whole[-1, -1] == (48 * 64 - 1) * 21


def test_matrices_keep_their_shape(formats, tmp_path) -> None:
    found = formats.matrices(tmp_path / "d")
    assert [matrix.shape for matrix in found] == [(2, 3), (5, 3)]
    assert np.array_equal(found[1], np.arange(15, dtype=np.float32).reshape(5, 3))


@pytest.mark.slow
def test_records_and_files_give_the_same_images(tmp_path) -> None:
    comparison = example("records_vs_files")
    rng = np.random.default_rng(0)
    for number in range(24):
        path = tmp_path / "files" / f"class{number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (80, 90, 3), np.uint8)).save(path, "JPEG")
    shardio.convert_dataset(tmp_path / "files", tmp_path / "dataset")
    found = []
    for make, place in ((comparison.from_files, "files"), (comparison.from_records, "dataset")):
        batches = list(make(tmp_path / place, 8, 0))
        assert len(batches) == 3
        images = [
            (image.numpy().tobytes(), int(label))
            for batch in batches
            for image, label in zip(*batch, strict=True)
        ]
        found.append(sorted(images))
    assert found[0] == found[1]
    runs = comparison.compare(tmp_path, 8, 0)
    assert [(run.source, run.cache, len(run.wait)) for run in runs] == [
        ("records", "warm", 3), ("files", "warm", 3), ("records", "cold", 3), ("files", "cold", 3),
    ]  # fmt: skip
    assert "records" in comparison.table(runs, 8)
    assert comparison.plot(runs).count("<polyline") == 4


def test_torchrecord_line_by_line(tmp_path, monkeypatch) -> None:
    ours = example("torchrecord")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = []
    for number in range(20):
        path = tmp_path / f"{number}.png"
        Image.fromarray(rng.integers(0, 256, (6, 5, 3), np.uint8)).save(path)
        lines.append(f"{path} {number}")
    (tmp_path / "data_list.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    ours.write(tmp_path / "data_list.txt", tmp_path / "records", shuffle=True)
    labels = [int(record["label"]) for record in shardio.open(tmp_path / "records")]
    assert labels != sorted(labels)
    assert sorted(labels) == list(range(20))
    record = shardio.open(tmp_path / "records")[0]
    with Image.open(tmp_path / f"{record['label']}.png") as image:
        assert np.array_equal(np.asarray(image), record["image"])
    batches = list(ours.load(tmp_path / "records", batch_size=8))
    assert [tuple(batch["image"].shape) for batch in batches] == [(n, 3, 224, 224) for n in (8, 8, 4)]
    assert sorted(int(label) for batch in batches for label in batch["label"]) == list(range(20))
    golden = Path(__file__).parent / "golden" / "foreign" / "torchrecord" / "db"
    assert ours.migrate(golden, tmp_path / "migrated") == 26
