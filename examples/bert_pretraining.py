r"""Masked-language-model data for BERT, from text files to training steps; nothing is in memory whole.

    python examples/bert_pretraining.py                    # Python's own manual as text, a small vocabulary
    python examples/bert_pretraining.py --metadata-train train.txt --metadata-val val.txt --root corpus/ \\
        --vocab-file vocab.txt --no-lower-case             # your own documents

A metadata file lists documents, one path a line.  Every document is cut into sentences, the sentences into
WordPieces by the `tokenizers` library, the pieces into sequences in which some are masked.  Workers do this
document by document, so a corpus may have any size.  See `docs/training/language-models.md`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import zlib
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import BertWordPieceTokenizer
from torch import nn

import shardio
from shardio.torch import StreamingDataLoader, StreamingDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

PAD, UNKNOWN, START, END, MASK = SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@dataclass(frozen=True)
class Settings:
    """What decides about the examples; workers receive it with each document.

    Attributes:
        vocab_file: a WordPiece a line; the line's number is its id.
        do_lower_case: the vocabulary holds lower case only.
        max_seq_length: ids of an example, padded.
        max_predictions_per_seq: masked ids of an example, padded.
        masked_lm_prob: share of ids that are masked.
        dupe_factor: how often each sequence is masked, each time elsewhere.
        seed: of the masks.
    """

    vocab_file: str
    do_lower_case: bool = True
    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    masked_lm_prob: float = 0.15
    dupe_factor: int = 2
    seed: int = 12345

    @property
    def schema(self) -> dict[str, str]:
        """The features of an example, under the names that BERT's own data have."""
        length, masked = self.max_seq_length, self.max_predictions_per_seq
        return {
            "input_ids": f"int32[{length}]",
            "input_mask": f"bool[{length}]",
            "segment_ids": f"uint8[{length}]",
            "masked_lm_positions": f"int32[{masked}]",
            "masked_lm_ids": f"int32[{masked}]",
            "masked_lm_weights": f"float32[{masked}]",
        }


# ------------------------------------------------------------------------------ documents and vocabulary


def write_manual(folder: Path, *, documents: int | None = None) -> tuple[Path, Path]:
    """Write the pages of Python's manual as text files; return the metadata files of both subsets."""
    from pydoc_data.topics import topics

    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    names = []
    for title, page in sorted(topics.items())[:documents]:
        name = f"{re.sub('[^A-Za-z0-9]', '_', title)}.txt"
        (folder / "corpus" / name).write_text(page, encoding="utf-8")
        names.append(name)
    files = folder / "metadata_train.txt", folder / "metadata_val.txt"
    files[0].write_text("".join(f"{name}\n" for n, name in enumerate(names) if n % 10 != 9), encoding="utf-8")
    files[1].write_text("".join(f"{name}\n" for n, name in enumerate(names) if n % 10 == 9), encoding="utf-8")
    return files


def listed(metadata_file: Path, root: Path) -> list[str]:
    """Return the documents that a metadata file lists."""
    lines = metadata_file.read_text(encoding="utf-8").splitlines()
    return [str(root / line.strip()) for line in lines if line.strip()]


def learn_vocabulary(documents: list[str], vocab_file: Path, *, do_lower_case: bool, size: int) -> None:
    """Learn WordPieces from documents, which the library reads one after another."""
    tokenizer = BertWordPieceTokenizer(lowercase=do_lower_case)
    tokenizer.train(documents, vocab_size=size, special_tokens=list(SPECIAL), show_progress=False)
    vocab_file.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save_model(str(vocab_file.parent))
    (vocab_file.parent / "vocab.txt").replace(vocab_file)


# ------------------------------------------------------------------------------ from a document to examples


def sentences(path: str) -> Iterator[str]:
    """Yield the sentences of a document, a paragraph in memory at a time."""
    with Path(path).open(encoding="utf-8") as file:
        paragraph: list[str] = []
        for line in file:
            if line.strip():
                paragraph.append(line.strip())
                continue
            yield from segmented(" ".join(paragraph))
            paragraph = []
        yield from segmented(" ".join(paragraph))


def segmented(paragraph: str) -> list[str]:
    """Cut a paragraph behind full stops, question and exclamation marks that a new sentence follows."""
    return [part for part in re.split(r"(?<=[.!?])\s+(?=[\"'(\[]?[A-Z0-9])", paragraph.strip()) if part]


@cache
def tokenizer_of(vocab_file: str, do_lower_case: bool) -> BertWordPieceTokenizer:  # noqa: FBT001 - a cache's key
    """Return the tokenizer, made once in each process."""
    return BertWordPieceTokenizer(vocab_file, lowercase=do_lower_case)


def sequences(path: str, settings: Settings) -> Iterator[list[int]]:
    """Yield runs of whole sentences as ids, `max_seq_length - 2` at most; longer sentences are cut."""
    tokenizer = tokenizer_of(settings.vocab_file, settings.do_lower_case)
    room = settings.max_seq_length - 2
    ids: list[int] = []
    for sentence in sentences(path):
        pieces = tokenizer.encode(sentence, add_special_tokens=False).ids[:room]
        if len(ids) + len(pieces) > room:
            yield ids
            ids = []
        ids += pieces
    if ids:
        yield ids


def masked(ids: list[int], settings: Settings, rng: np.random.Generator) -> dict[str, Any]:
    """Return one masked example: of the chosen ids 80 % become [MASK], 10 % another id, 10 % stay."""
    tokenizer = tokenizer_of(settings.vocab_file, settings.do_lower_case)
    whole = np.array([tokenizer.token_to_id(START), *ids, tokenizer.token_to_id(END)], np.int32)
    count = min(settings.max_predictions_per_seq, max(1, round(len(ids) * settings.masked_lm_prob)))
    positions = np.sort(rng.choice(np.arange(1, len(whole) - 1), min(count, len(ids)), replace=False))
    labels = whole[positions].copy()
    fate = rng.random(len(positions))
    whole[positions[fate < 0.8]] = tokenizer.token_to_id(MASK)
    other = positions[fate >= 0.9]
    whole[other] = rng.integers(len(SPECIAL), tokenizer.get_vocab_size(), len(other))
    length, most = settings.max_seq_length, settings.max_predictions_per_seq
    return {
        "input_ids": np.pad(whole, (0, length - len(whole))),
        "input_mask": np.arange(length) < len(whole),
        "segment_ids": np.zeros(length, np.uint8),
        "masked_lm_positions": np.pad(positions, (0, most - len(positions))),
        "masked_lm_ids": np.pad(labels, (0, most - len(labels))),
        "masked_lm_weights": (np.arange(most) < len(positions)).astype(np.float32),
    }


def examples_of(item: tuple[str, str], settings: Settings) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (split, example) of one document; the masks hang on the seed and the document alone."""
    split, path = item
    rng = np.random.default_rng([settings.seed, zlib.crc32(Path(path).name.encode())])
    for ids in sequences(path, settings):
        for _ in range(settings.dupe_factor):
            yield split, masked(ids, settings, rng)


# ------------------------------------------------------------------------------ a few training steps


class TinyBert(nn.Module):
    """BERT in small: embeddings, encoder layers, and a head that shares the embeddings."""

    def __init__(self, vocabulary: int, length: int, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.places = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean loss over the masked ids."""
        ids = batch["input_ids"].long()
        hidden = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        hidden = self.encoder(hidden, src_key_padding_mask=~batch["input_mask"])
        places = batch["masked_lm_positions"].long()
        chosen = hidden.gather(1, places[:, :, None].expand(-1, -1, hidden.shape[2]))
        logits = chosen @ self.words.weight.T
        losses = nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["masked_lm_ids"].long().flatten(), reduction="none"
        )
        weights = batch["masked_lm_weights"].flatten()
        loss: torch.Tensor = (losses * weights).sum() / weights.sum()
        return loss


def evaluate(model: TinyBert, url: Path) -> float:
    """Return the mean loss over the validation split, every example once."""
    records = shardio.open(url, split="val")
    loader = StreamingDataLoader(
        StreamingDataset(records, global_batch=32, shuffle=False, remainder="keep", rank=0, world_size=1)
    )
    with torch.no_grad():
        losses = [(model(batch).item(), len(batch["input_ids"])) for batch in loader]
    return sum(loss * count for loss, count in losses) / sum(count for _, count in losses)


def train(url: Path, vocabulary: int, length: int, *, steps: int) -> tuple[float, float]:
    """Train for some steps from the stream; return the validation loss before and after."""
    torch.manual_seed(0)
    model = TinyBert(vocabulary, length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    before = evaluate(model, url)
    records = shardio.open(url, split="train")
    loader = StreamingDataLoader(
        StreamingDataset(records, global_batch=32, shuffle=True, seed=0, rank=0, world_size=1), num_threads=1
    )
    done = 0
    while done < steps:
        for batch in loader:
            optimizer.zero_grad()
            loss = model(batch)
            loss.backward()
            optimizer.step()
            done += 1
            if done % 10 == 0:
                print(f"step {done}: loss {loss.item():.3f}", flush=True)
            if done == steps:
                break
    return before, evaluate(model, url)


def build(
    url: Path, train_files: list[str], val_files: list[str], settings: Settings, *, executor: Any = None
) -> dict[str, int]:
    """Write both subsets as splits of one dataset, shuffled; return records by split."""
    items = [("train", path) for path in train_files] + [("val", path) for path in val_files]
    report = shardio.write_dataset(
        url, items, partial(examples_of, settings=settings), schema=settings.schema, compression="zstd",
        shuffle=True, seed=settings.seed, executor=executor,
        metadata={"vocab_file": Path(settings.vocab_file).name},
    )  # fmt: skip
    return dict(report.records)


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        description="Masked-LM data for BERT, from text files to training steps."
    )
    parser.add_argument("--folder", type=Path, default=Path("bert-data"), help="where everything goes")
    parser.add_argument("--metadata-train", type=Path, help="lists the training documents")
    parser.add_argument("--metadata-val", type=Path, help="lists the validation documents")
    parser.add_argument("--root", type=Path, help="folder that the documents' paths start from")
    parser.add_argument("--vocab-file", type=Path, help="a WordPiece a line; learned where it is not given")
    parser.add_argument(
        "--lower-case", dest="do_lower_case", default=True, action=argparse.BooleanOptionalAction
    )
    parser.add_argument("--max-seq-length", type=int, default=128)
    parser.add_argument("--max-predictions-per-seq", type=int, default=20)
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    # The library's own threads and forked workers do not mix.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if arguments.metadata_train is None:
        arguments.metadata_train, arguments.metadata_val = write_manual(arguments.folder)
        arguments.root = arguments.folder / "corpus"
    root = arguments.root or arguments.metadata_train.parent
    train_files, val_files = (
        listed(file, root) for file in (arguments.metadata_train, arguments.metadata_val)
    )
    vocab_file = arguments.vocab_file
    if vocab_file is None:
        vocab_file = arguments.folder / "wordpieces.txt"
        learn_vocabulary(train_files, vocab_file, do_lower_case=arguments.do_lower_case, size=4000)
    settings = Settings(
        str(vocab_file), arguments.do_lower_case, arguments.max_seq_length, arguments.max_predictions_per_seq
    )
    url = arguments.folder / "dataset"
    shutil.rmtree(url, ignore_errors=True)
    print(f"{len(train_files)} documents to train, {len(val_files)} to validate")
    print("examples:", build(url, train_files, val_files, settings))
    vocabulary = tokenizer_of(settings.vocab_file, settings.do_lower_case).get_vocab_size()
    before, after = train(url, vocabulary, settings.max_seq_length, steps=arguments.steps)
    print(f"validation loss {before:.3f} before, {after:.3f} after {arguments.steps} steps")


if __name__ == "__main__":
    main()
